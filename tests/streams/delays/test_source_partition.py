"""Source partitions: messages sorted into closed windows."""

from __future__ import annotations

import numpy as np

from native.core.columns import ProbeColumns
from streams.delays.source_partition import Source

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


def test_a_later_message_closes_a_window_with_all_that_it_contains() -> None:
    source = make_source()
    assert source.add(10 * S, 5, 100, batch(0), "first") == []
    assert source.add(10 * S + 1, 6, 100, batch(0, "h1/b", samples=3), "second") == []
    assert source.open_samples == 5
    [window] = source.add(11 * S, 7, 100, batch(1), "third")
    assert (window.cut.window, window.cut.first_offset, window.cut.next_offset) == (10, 5, 7)
    assert (window.samples, window.bytes, window.tokens) == (5, 200, ["first", "second"])
    assert window.nics.keys() == {"h1/a", "h1/b"}
    assert source.open_samples == 2


def test_a_rejected_message_and_a_tombstone_belong_to_the_offset_range() -> None:
    source = make_source()
    source.add(10 * S, 5, 100, None, "rejected")
    source.skip(10 * S, 6, "tombstone")
    [window] = source.add(11 * S, 7, 100, batch(0), "next")
    assert (window.rejected, window.samples, window.bytes) == (1, 0, 100)
    assert (window.tokens, window.cut.next_offset) == (["rejected", "tombstone"], 7)


def test_a_batch_that_comes_twice_counts_once_also_in_another_window() -> None:
    source = make_source()
    source.add(10 * S, 5, 100, batch(3), 0)
    source.add(10 * S, 6, 100, batch(3), 1)
    [first] = source.add(11 * S, 7, 100, batch(3), 2)
    [second] = source.add(12 * S, 8, 100, batch(4), 3)
    assert (first.duplicates, first.samples) == (1, 2)
    assert (second.duplicates, second.samples) == (1, 0)
