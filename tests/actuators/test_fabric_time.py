"""Fabric time of a machine: a valid page's model, else the system clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from actuators.clock_page import Content, PageFile
from actuators.fabric_time import FabricTime
from actuators.timescale import RawClockModel, SlewedModel
from native.core.hostclock import raw_ns
from schemas.records import ClockSync

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
