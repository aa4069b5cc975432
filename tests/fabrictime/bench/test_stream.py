"""The stream bench: its load in samples, its batches, and the record that ends a window."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.bench import stream
from fabrictime.bench._fleet import SyntheticFleet
from fabrictime.bench.stream import Load
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import CLOCK_OFFSETS, DELAYS
from tests.records import make


def message(topic: Any, kind: str, at_ms: int, **fields: Any) -> Message:
    value = codec.encode(kind, make(kind, **fields))
    return Message(at_ms * 1_000_000, topic.name, 0, 0, "", value)


def test_a_window_has_every_nics_batches_with_the_loads_samples() -> None:
    load = Load(nics=3, flush_ms=500, pairs_per_path=2, windows=1, peers=2, paths=2)
    fleet = SyntheticFleet(load.nics, peers=load.peers, paths=load.paths, epoch_ns=1_760_000_000 * 10**9)
    batches = stream._one_window(fleet, load, flushes=2)
    assert [name for name, _ in batches] == 2 * list(fleet.members)
    assert load.samples_per_batch == 16
    counts = [
        sum(len(each["sent"]) for each in codec.decode(value, "ProbeBatch")["samples"])
        for _, value in batches
    ]
    assert set(counts) == {16}


def finished(monkeypatch: pytest.MonkeyPatch, messages: list[Any], exit_code: int | None = None) -> int:
    monkeypatch.setattr(stream, "_messages", lambda *_: iter(messages))
    process = SimpleNamespace(poll=lambda: exit_code)
    worker: Any = SimpleNamespace(process=process, tail=lambda: "no memory")
    return stream._finished_ms("", 5, 2, worker)


def test_a_window_ends_with_the_last_of_all_delays_and_the_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        message(DELAYS, "PathDelays", 10, nic="h1/e", window=5),
        message(DELAYS, "PathDelays", 99, nic="h2/e", window=4),
        message(CLOCK_OFFSETS, "ClockOffsets", 20, window=5),
        None,
        message(DELAYS, "PathDelays", 30, nic="h2/e", window=5),
    ]
    assert finished(monkeypatch, messages) == 30
    with pytest.raises(RuntimeError, match="delays of 1 of 2 NICs, offsets True"):
        finished(monkeypatch, messages[:3])


def test_a_worker_that_ends_is_reported_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="the worker ended: no memory"):
        finished(monkeypatch, [None], exit_code=1)
