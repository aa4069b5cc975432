"""Source partitions: messages sorted into closed windows."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from native.core import ProbeColumns, batches_of
from schemas.kafka.message import Message
from schemas.topics import PROBES
from streams.delays.source_partition import ClosedWindow, Source

S = 1_000_000_000
WINDOW_NS, SILENCE_NS = S, 150_000_000


def batch(number: int, nic: str = "h1/a", samples: int = 2) -> ProbeColumns:
    values = np.full(samples, 1000, np.int64)
    return ProbeColumns(
        nic,
        run=1,
        batch=number,
        clock_ns=number * S,
        system_ns=number * S,
        peers=["h2/a"],
        path=np.array([9320], np.int32),
        spacing_ns=np.zeros(1, np.int32),
        lost=np.zeros(1, np.int32),
        no_t3=np.zeros(1, np.int32),
        start=np.array([0, samples], np.int64),
        sent=number * S + np.arange(samples, dtype=np.int64),
        forward=values,
        turnaround=values,
        reverse=values,
    )


def make_source() -> Source:
    return Source("fabric.probes/0", WINDOW_NS, SILENCE_NS)


def add(
    source: Source, append_ns: int, offset: int, content: ProbeColumns | None, size: int = 100
) -> list[ClosedWindow]:
    """Add one message; without content it was rejected."""
    stored = Message(append_ns, PROBES.name, 0, offset, None, bytes(size))
    return source.add_messages([stored], batches_of([content]))


def test_a_later_message_closes_a_window_with_all_that_it_contains() -> None:
    source = make_source()
    assert add(source, 10 * S, 5, batch(0)) == []
    assert add(source, 10 * S + 1, 6, batch(0, "h1/b", samples=3)) == []
    assert source.open_samples == 5
    [window] = add(source, 11 * S, 7, batch(1))
    assert (window.cut.window, window.cut.first_offset, window.cut.next_offset) == (10, 5, 7)
    assert (window.samples, window.bytes, window.offsets) == (5, 200, [5, 6])
    assert window.nics.keys() == {"h1/a", "h1/b"}
    assert source.open_samples == 2


def test_a_rejected_message_and_a_tombstone_belong_to_the_offset_range() -> None:
    source = make_source()
    add(source, 10 * S, 5, None)
    source.add_messages([Message(10 * S, PROBES.name, 0, 6, None, None)], batches_of([None]))
    [window] = add(source, 11 * S, 7, batch(0))
    assert (window.rejected, window.samples, window.bytes) == (1, 0, 100)
    assert (window.offsets, window.cut.next_offset) == ([5, 6], 7)


def test_a_batch_that_comes_twice_counts_once_also_in_another_window() -> None:
    source = make_source()
    add(source, 10 * S, 5, batch(3))
    add(source, 10 * S, 6, batch(3))
    [first] = add(source, 11 * S, 7, batch(3))
    [second] = add(source, 12 * S, 8, batch(4))
    assert (first.duplicates, first.samples) == (1, 2)
    assert (second.duplicates, second.samples) == (1, 0)


MOMENTS_MS = st.lists(st.integers(0, 6_000), min_size=1, max_size=40)


@given(MOMENTS_MS, st.lists(st.integers(1, 8), min_size=1, max_size=40), st.booleans())
def test_messages_together_give_the_windows_of_messages_one_by_one(
    moments_ms: list[int], sizes: list[int], are_sorted: bool
) -> None:
    """Also late messages, steps of log time back, gaps, tombstones and rejected messages."""
    moments_ms = sorted(moments_ms) if are_sorted else moments_ms
    stored = [
        Message(
            10 * S + at_ms * 1_000_000,
            PROBES.name,
            0,
            7 + n,
            None,
            None if at_ms % 7 == 0 else bytes(at_ms % 50),
        )
        for n, at_ms in enumerate(moments_ms)
    ]
    contents = [None if at_ms % 5 == 0 or at_ms % 7 == 0 else batch(n) for n, at_ms in enumerate(moments_ms)]
    one_by_one, together = make_source(), make_source()
    expected = [
        window
        for message, content in zip(stored, contents, strict=True)
        for window in one_by_one.add_messages([message], batches_of([content]))
    ]
    closed, begin = [], 0
    for size in itertools.cycle(sizes):
        if begin >= len(stored):
            break
        end = begin + size
        closed += together.add_messages(stored[begin:end], batches_of(contents[begin:end]))
        begin = end
    expected += one_by_one.tick(99 * S, 9 * S, True)
    closed += together.tick(99 * S, 9 * S, True)
    assert [facts_of(window) for window in closed] == [facts_of(window) for window in expected]


def facts_of(window: ClosedWindow) -> tuple[object, ...]:
    """Return the facts of a closed window."""
    nics = {
        name: (
            nic.counters.batches,
            nic.counters.lost_batches,
            nic.samples.samples,
            nic.samples.fit().records(name),
        )
        for name, nic in window.nics.items()
    }
    return window.cut, window.bytes, window.rejected, window.duplicates, window.offsets, nics
