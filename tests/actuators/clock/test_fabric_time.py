"""Fabric time of a machine: a valid page's model, else the system clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actuators.clock.fabric_time import FabricTime, SimulatedHostTime
from actuators.clock.page import Content, PageFile
from actuators.clock.timescale import RawClockModel, SlewedModel
from native.core.hostclock import raw_ns
from schemas.records import ClockSync
from tests.actuators.desk import Desk, decision, heard

S = 1_000_000_000
AHEAD_NS = 10**17
"""The pages' time is so far ahead of the system clock's."""


def write(path: Path, *, state: ClockSync = ClockSync.SYNCED, lasts_ns: int = 60 * S) -> PageFile:
    now_ns = raw_ns()
    model = RawClockModel(now_ns, time.time_ns() + AHEAD_NS, 0.0, 1.0, 0.0, 0.0)
    page = PageFile(path, "h1")
    page.write(Content(state, SlewedModel(model), expires_raw_ns=now_ns + lasts_ns, written_raw_ns=now_ns))
    return page


def is_of_page(now: FabricTime) -> bool:
    ahead_ns = now() - time.time_ns()
    assert min(abs(ahead_ns), abs(ahead_ns - AHEAD_NS)) < S
    return ahead_ns > AHEAD_NS // 2


def test_the_time_is_that_of_the_first_valid_page(tmp_path: Path) -> None:
    missing, good = tmp_path / "none", tmp_path / "clock"
    page = write(good)
    now = FabricTime([missing, good])
    assert is_of_page(now)
    assert now.known
    page.close()


@pytest.mark.parametrize("given", [{"state": ClockSync.UNSYNCED}, {"lasts_ns": -1}])
def test_an_unsynced_or_expired_page_is_not_used(tmp_path: Path, given: dict[str, object]) -> None:
    page = write(tmp_path / "clock", **given)  # type: ignore[arg-type]
    now = FabricTime([tmp_path / "clock"])
    assert not is_of_page(now)
    assert not now.known
    page.close()


def test_a_retired_or_foreign_file_is_not_used(tmp_path: Path) -> None:
    page = write(tmp_path / "clock")
    page.retire()
    page.close()
    (tmp_path / "other").write_bytes(b"rubbish")
    assert not is_of_page(FabricTime([tmp_path / "clock", tmp_path / "other"]))
    assert not is_of_page(FabricTime([]))


def test_simulated_hosts_have_the_time_of_their_simulation() -> None:
    now = SimulatedHostTime()
    assert abs(now() - time.time_ns()) < S, "the simulation has not connected yet"
    now.take(100 * S)
    assert now() == 100 * S
    now.take(90 * S)
    assert now() == 90 * S, "another simulation began"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, simulated_time=SimulatedHostTime())
    yield made
    made.close()


@pytest.mark.parametrize(("now_s", "outcome"), [(100.9, "APPLIED"), (101.0, "EXPIRED")])
def test_a_decision_expires_by_simulated_time(desk: Desk, now_s: float, outcome: str) -> None:
    program = desk.own("FLOW sock:7 50000 MOVE")
    program.sendall(b"TIME %d\n" % round(now_s * S))
    desk.until(lambda: desk.clock_ns() == round(now_s * S))
    desk.it.take(decision(expires_at_ns=101 * S))
    if outcome == "APPLIED":
        assert heard(program) == ["MOVE 1 sock:7 50001 h1"]
        program.sendall(b"DONE 1 50001 SIMULATED\n")
    desk.until(lambda: desk.reports)
    assert [each for _, each in desk.outcomes] == [outcome]
    assert desk.reports[0]["at_ns"] == round(now_s * S)


def test_a_slow_simulation_answers_in_its_own_time(desk: Desk) -> None:
    program = desk.own("FLOW sock:7 50000 MOVE")
    for now_ns, outcomes in ((100 * S, []), (100 * S + S // 5, []), (100 * S + S // 2, ["FAILED"])):
        program.sendall(b"TIME %d\n" % now_ns)
        desk.until(lambda due_ns=now_ns: desk.clock_ns() == due_ns)
        if now_ns == 100 * S:
            desk.it.take(decision(expires_at_ns=101 * S))
        desk.endpoints.tick()
        assert [each for _, each in desk.outcomes] == outcomes


def test_real_hosts_take_no_time_from_an_endpoint(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    program = desk.own("FLOW sock:7 50000 MOVE")
    program.sendall(b"TIME 5\n")
    desk.until(lambda: desk.endpoints.refused)
    assert heard(program) == ["ERROR TIME: expected of a simulated fleet only"]
    desk.close()
