"""Records of closed windows: valid, complete, and equal for any batching."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.bench._fleet import SyntheticFleet
from native.core import ClockLine, ProbeColumns, batches_of
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import PROBES
from streams.delays.counters import JumpLimit
from streams.delays.records import clock_fits, fit_window, path_delays
from streams.delays.source_partition import ClosedWindow, Source
from streams.delays.stage import continued_from
from streams.runtime.tables import Member

MS = 1_000_000
WINDOW = 1000 * MS
SILENCE = 150 * MS
BASE = 1_760_000_000 * WINDOW
LIMIT = JumpLimit(100_000, 1000)


def member(nic: str, shard: str = "fabric") -> Member:
    return Member(nic, nic.split("/")[0], shard, f"{nic.split('/')[0]}/system")


def messages(fleet: SyntheticFleet, windows: int = 3, each_ms: int = 100) -> list[tuple[int, ProbeColumns]]:
    """Return (append_ns, batch)s in log order."""
    found = []
    for step, name in itertools.product(range(windows * 1000 // each_ms), fleet.members):
        start = BASE + step * each_ms * MS
        found.append((start + each_ms * MS + 2 * MS, fleet.columns(name, start, start + each_ms * MS, 2)))
    return found


def read(source: Source, log: list[tuple[int, ProbeColumns]], begin: int = 0) -> list[ClosedWindow]:
    stored = [Message(log[i][0], PROBES.name, 0, i, None, bytes(1000)) for i in range(begin, len(log))]
    return source.add_messages(stored, batches_of([batch for _, batch in log[begin:]]))


def records_of(windows: list[ClosedWindow], shard: str = "fabric") -> list[dict[str, Any]]:
    made = []
    for window in windows:
        members = {nic: member(nic, shard) for nic in window.nics}
        made += clock_fits(fit_window(window), members, [shard], WINDOW, LIMIT)
    return made


def test_fits_round_trip_and_count_every_sample() -> None:
    log = messages(SyntheticFleet(4, peers=3, paths=2, epoch_ns=BASE))
    source = Source("fabric.probes/0", WINDOW, SILENCE)
    windows = read(source, log) + source.tick(BASE + 9 * WINDOW, 5 * WINDOW, caught_up=True)
    records = records_of(windows)
    for record in records:
        assert codec.decode(codec.encode("ClockFits", record), "ClockFits") == record
    assert sum(r["samples"] for r in records) == sum(len(batch.sent) for _, batch in log)
    assert sum(r["messages"] for r in records) == len(log)
    filled = [r for r in records if r["messages"]]
    assert filled[0]["first_offset"] == 0
    assert all(a["next_offset"] == b["first_offset"] for a, b in itertools.pairwise(filled))
    assert {n["clock"] for r in filled for n in r["nics"]} == {f"host{i:04d}/system" for i in range(4)}


def test_a_rejected_message_is_counted_and_keeps_its_offset() -> None:
    source = Source("fabric.probes/0", WINDOW, SILENCE)
    rejected = [
        Message(BASE, PROBES.name, 0, 0, None, bytes(7)),
        Message(BASE + WINDOW, PROBES.name, 0, 1, None, bytes(7)),
    ]
    (window,) = source.add_messages(rejected, batches_of([None, None]))
    (record,) = records_of([window])
    assert (record["rejected"], record["messages"], record["bytes"]) == (1, 1, 7)
    assert (record["first_offset"], record["next_offset"]) == (0, 1)


def test_large_windows_are_cut_into_parts_that_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.delays.records.MAX_ELEMENTS", 4)
    source = Source("fabric.probes/0", WINDOW, SILENCE)
    log = messages(SyntheticFleet(6, peers=3, paths=1, epoch_ns=BASE), windows=1)
    windows = read(source, log) + source.tick(BASE + 9 * WINDOW, 5 * WINDOW, caught_up=True)
    first = next(w for w in windows if w.nics)
    records = records_of([first])
    assert [r["part"] for r in records] == list(range(5))
    assert {r["parts"] for r in records} == {5}
    assert sum(len(r["pairs"]) for r in records) == 18
    assert sum(r["samples"] for r in records) == first.samples
    bodies = path_delays(
        first.nics["host0000/eth0"].samples, member("host0000/eth0"), 1, WINDOW, {}, "UNSYNCED", 0
    )
    assert len(bodies) == 1


def test_every_shard_gets_a_record_of_every_source() -> None:
    source = Source("fabric.probes/0", WINDOW, SILENCE)
    log = messages(SyntheticFleet(2, peers=1, paths=1, epoch_ns=BASE), windows=1)
    window = next(w for w in read(source, [*log, (BASE + 5 * WINDOW, log[0][1])]) if w.nics)
    members = {"host0000/eth0": member("host0000/eth0", "a"), "host0001/eth0": member("host0001/eth0", "b")}
    records = clock_fits(fit_window(window), members, ["a", "b", "c"], WINDOW, LIMIT)
    assert [(r["shard"], len(r["nics"])) for r in records] == [("a", 1), ("b", 1), ("c", 0)]
    assert sum(r["messages"] for r in records) == window.cut.messages


def test_path_delays_are_one_way_where_clocks_are_known_and_null_where_not() -> None:
    fleet = SyntheticFleet(3, peers=2, paths=2, epoch_ns=BASE, jitter_ns=100)
    source = Source("fabric.probes/0", WINDOW, SILENCE)
    log = messages(fleet, windows=1)
    window = next(w for w in read(source, [*log, (BASE + 5 * WINDOW, log[0][1])]) if w.nics)
    models = {}
    for name, nic in fleet.members.items():
        rate = -nic.clock.drift_ppb / (1 + nic.clock.drift_ppb * 1e-9)
        at = nic.clock.reading_at(BASE)
        models[name] = ClockLine(at, BASE - at, rate, 10.0)
    name = "host0001/eth0"

    def decoded(state: str, known: dict[str, ClockLine]) -> dict[str, Any]:
        (body,) = path_delays(window.nics[name].samples, member(name), 7, WINDOW, known, state, 5)
        return codec.decode(codec.header("PathDelays") + body, "PathDelays")

    record = decoded("SYNCED", models)
    assert record["window_start_ns"] == 7 * WINDOW + 5
    assert (record["state"], record["part"], record["parts"]) == ("SYNCED", 0, 1)
    assert len(record["paths"]) == 4
    for path in record["paths"]:
        assert path["forward_min_ns"] == pytest.approx(5_000, abs=400)
        assert path["reverse_min_ns"] == pytest.approx(5_000, abs=400)
        assert path["bound_ns"] == 20.0
        assert sum(path["forward_bucket_count"]) == path["count"] > 0
    without = decoded("UNSYNCED", models)
    assert all(p["forward_min_ns"] is None and p["rtt_min_ns"] is not None for p in without["paths"])
    one_peer = decoded("SYNCED", {k: v for k, v in models.items() if k != "host0000/eth0"})
    assert {p["peer"]: p["forward_p50_ns"] is None for p in one_peer["paths"]} == {
        "host0000/eth0": True,
        "host0002/eth0": False,
    }


@settings(max_examples=15)
@given(late=st.lists(st.integers(0, 79), max_size=5), commit=st.integers(0, 3))
def test_a_new_owner_publishes_identical_records(late: list[int], commit: int) -> None:
    """The first owner crashes after publishing some windows; the next reads from the commit, at another
    pace."""
    fleet = SyntheticFleet(2, peers=1, paths=1, epoch_ns=BASE)
    log = messages(fleet, windows=4)
    delayed = set(late)
    first, windows = Source("s/0", WINDOW, SILENCE), []
    for offset, (append_ns, batch) in enumerate(log):
        if offset in delayed:
            windows += first.tick(append_ns + 400 * MS, 400 * MS, caught_up=True)
        stored = Message(append_ns, PROBES.name, 0, offset, None, bytes(1000))
        windows += first.add_messages([stored], batches_of([batch]))
    windows += first.tick(BASE + 5 * WINDOW, WINDOW, caught_up=True)
    published = records_of(windows)
    filled = [r for r in published if r["messages"]]
    position = filled[commit % len(filled)]["first_offset"]
    ranges, states = continued_from(published, "s/0", position)
    second = Source("s/0", WINDOW, SILENCE, ranges, states)
    again = records_of(read(second, log, position))
    expected = [r for r in filled if r["first_offset"] >= position]
    assert len(again) == len(expected)
    for mine, theirs in zip(again, expected, strict=True):
        for pair_a, pair_b in zip(mine["pairs"], theirs["pairs"], strict=True):
            np.testing.assert_equal(pair_a, pair_b)
        assert mine == theirs
