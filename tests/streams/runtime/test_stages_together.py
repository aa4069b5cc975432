"""Delay stage and clock solver together, without Kafka: batches with known clocks in, records out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fabrictime.bench._fleet import SyntheticFleet
from native.core import batches_of
from schemas.kafka.message import Message
from schemas.topics import PROBES
from streams.clock.solver import SYNCED, UNSYNCED, ShardClocks
from streams.delays.counters import JumpLimit
from streams.delays.records import clock_fits, fit_window
from streams.delays.source_partition import ClosedWindow, Source
from streams.runtime.tables import Member

MS = 1_000_000
WINDOW = 1000 * MS
BASE = 1_760_000_000 * WINDOW
LIMIT = JumpLimit(100_000, 1000)


def run(
    fleet: SyntheticFleet, windows: int, at_flush: Callable[[int], None] = lambda flush: None, skip: Any = ()
) -> tuple[list[list[dict[str, Any]]], list[list[dict[str, Any]]]]:
    """Ten flushes per window; return each window's fits and offsets. `skip`: lost (flush, NIC)s."""
    source, solver = Source("p/0", WINDOW, 150 * MS), ShardClocks("fabric")
    closed: list[ClosedWindow] = []
    offset = 0
    for flush in range(windows * 10 + 1):
        at_flush(flush)
        start = BASE + flush * 100 * MS - 102 * MS
        for name in fleet.members:
            batch = fleet.columns(name, start, start + 100 * MS, 10)
            if (flush, name) not in skip:
                message = Message(start + 102 * MS, PROBES.name, 0, offset, None, bytes(100))
                closed += source.add_messages([message], batches_of([batch]))
                offset += 1
    fits = []
    for window in closed:
        members = {nic: Member(nic, nic.split("/")[0], "fabric", nic) for nic in window.nics}
        fits.append(clock_fits(fit_window(window), members, ["fabric"], WINDOW, LIMIT))
    return fits, [solver.solve(records[0]["window"], WINDOW, records, {}) for records in fits]


def errors(fleet: SyntheticFleet, records: list[dict[str, Any]]) -> dict[str, tuple[float, float, str]]:
    """Clock to (error ns against the median, bound ns, state)."""
    found = {}
    for record in records:
        for state in record["clocks"]:
            clock = fleet.members[state["clock"]].clock
            true_ns = state["at_ns"]
            for _ in range(4):
                true_ns -= clock.reading_at(true_ns) - state["at_ns"]
            found[state["clock"]] = (state["at_ns"] - true_ns + state["offset_ns"], state)
    middle = sorted(ahead for ahead, _ in found.values())[len(found) // 2]
    return {name: (ahead - middle, s["bound_ns"], s["state"]) for name, (ahead, s) in found.items()}


def nics(fits: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {nic["nic"]: nic for record in fits for nic in record["nics"]}


@pytest.mark.parametrize("flush_of_jump", [31, 35, 39])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_jump_within_a_window_is_over_after_two_windows(flush_of_jump: int, restarts: bool) -> None:
    fleet = SyntheticFleet(6, peers=5, paths=1, epoch_ns=BASE)
    name = "host0002/eth0"

    def jump(flush: int) -> None:
        if flush == flush_of_jump:
            nic = fleet.members[name]
            nic.clock = replace(nic.clock, offset_ns=nic.clock.offset_ns + 5 * MS)
            if restarts:
                nic.run, nic.batch = nic.run + 1, 0

    fits, offsets = run(fleet, 7, jump)
    seen = [nics(records)[name] for records in fits]
    assert [abs(nic["clock_jump_ns"]) > 4 * MS for nic in seen] == [False] * 3 + [True] + [False] * 3
    assert [nic["restarts"] for nic in seen] == [0] * 3 + [int(restarts)] + [0] * 3
    for window in (3, 4, 5, 6):
        for other, (error, bound, state) in errors(fleet, offsets[window]).items():
            if other != name:
                assert state == SYNCED
                assert abs(error) <= bound < 10_000
    assert errors(fleet, offsets[3])[name][2] == UNSYNCED
    for window in (5, 6):
        error, bound, state = errors(fleet, offsets[window])[name]
        assert state == SYNCED
        assert abs(error) <= bound < 10_000


def test_a_prober_that_restarts_on_the_same_clock_stays_synced() -> None:
    fleet = SyntheticFleet(5, peers=4, paths=1, epoch_ns=BASE)

    def restart(flush: int) -> None:
        if flush == 33:
            nic = fleet.members["host0001/eth0"]
            nic.run, nic.batch = nic.run + 1, 0

    fits, offsets = run(fleet, 5, restart)
    assert [nics(records)["host0001/eth0"]["restarts"] for records in fits] == [0, 0, 0, 1, 0]
    assert {state for w in offsets[1:] for _, _, state in errors(fleet, w).values()} == {SYNCED}


def test_a_lost_batch_is_counted_where_the_gap_shows() -> None:
    fleet = SyntheticFleet(3, peers=2, paths=1, epoch_ns=BASE)
    fits, _ = run(fleet, 3, skip={(14, "host0000/eth0"), (15, "host0000/eth0"), (19, "host0001/eth0")})
    lost = [{nic: found["lost_batches"] for nic, found in nics(records).items()} for records in fits]
    assert [w["host0000/eth0"] for w in lost] == [0, 2, 0]
    assert [w["host0001/eth0"] for w in lost] == [0, 0, 1]


def test_bounds_hold_and_are_a_few_us_on_an_idle_fabric() -> None:
    fleet = SyntheticFleet(8, peers=7, paths=2, epoch_ns=BASE, offset_ns=3e6, drift_ppb=12_000)
    _, offsets = run(fleet, 12)
    for records in offsets[1:]:
        for error, bound, state in errors(fleet, records).values():
            assert state == SYNCED
            assert abs(error) <= bound
            assert bound < 4_000
