"""Checks run at once, each within its limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import Finding, passed
from producers.audit.checks import CHECKS
from producers.audit.host.base import Host
from producers.audit.runner import AT_ONCE, run_checks
from schemas.records import AuditStatus

ANY = CHECKS["node.uptime"]


def test_every_check_has_one_result() -> None:
    found = [result.check.check_id for result in run_checks(list(CHECKS.values()), HEALTHY)]
    assert sorted(found) == sorted(CHECKS)
    assert list(run_checks([], HEALTHY)) == []


def test_checks_that_hang_are_unknown_and_hold_up_no_other() -> None:
    ended = threading.Event()

    def hang(_: Host) -> Iterator[Finding]:
        ended.wait(60)
        yield passed("too late")

    hanging = [replace(ANY, check_id=f"hang{n}", find=hang, limit_s=0.2) for n in range(2 * AT_ONCE)]
    found = {result.check.check_id: result for result in run_checks([*hanging, ANY], HEALTHY)}
    ended.set()
    assert found[ANY.check_id].status is AuditStatus.PASSED
    for check in hanging:
        assert found[check.check_id].status is AuditStatus.UNKNOWN
        assert found[check.check_id].text == "no end within 0.2 s"


def test_at_the_runs_end_all_checks_that_remain_are_unknown() -> None:
    ended = threading.Event()

    def hang(_: Host) -> Iterator[Finding]:
        ended.wait(60)
        yield passed("too late")

    hanging = [replace(ANY, check_id=f"hang{n}", find=hang, limit_s=100.0) for n in range(2 * AT_ONCE)]
    found = list(run_checks([ANY, *hanging], HEALTHY, time.monotonic() + 0.3))
    ended.set()
    assert found[0].check is ANY
    assert found[0].took_s > 0
    assert {each.text for each in found[1:]} == {"the run's time limit was reached"}
    assert len(found) == 1 + len(hanging)


def test_an_unexpected_error_is_unknown() -> None:
    def find(_: Host) -> Iterator[Finding]:
        yield passed("fine")
        raise TypeError("bad operand")

    (found,) = run_checks([replace(ANY, find=find)], HEALTHY)
    assert (found.status, found.text) == (
        AuditStatus.UNKNOWN,
        "unexpected content: a value is of another type",
    )


def test_a_check_that_still_hangs_is_not_run_again() -> None:
    release, begun = threading.Event(), list[int]()

    def hang(_: Host) -> Iterator[Finding]:
        begun.append(1)
        release.wait(60)
        yield passed("at last")

    hanging: set[str] = set()
    check = replace(ANY, check_id="hang", find=hang, limit_s=0.1)
    texts = [result.text for _ in range(3) for result in run_checks([check], HEALTHY, float("inf"), hanging)]
    assert texts == ["no end within 0.1 s", *["it still hangs from a former run"] * 2]
    assert len(begun) == 1
    release.set()
    until_s = time.monotonic() + 30
    while hanging and time.monotonic() < until_s:
        threading.Event().wait(0.01)
    (found,) = run_checks([replace(check, limit_s=30.0)], HEALTHY, float("inf"), hanging)
    assert found.status is AuditStatus.PASSED


def test_loads_run_one_after_another() -> None:
    running, highest = set[int](), [0]
    lock = threading.Lock()

    def load(_: Host) -> Iterator[Finding]:
        with lock:
            running.add(threading.get_ident())
            highest[0] = max(highest[0], len(running))
        with lock:
            running.discard(threading.get_ident())
        yield passed("done")

    loads = [replace(ANY, check_id=f"load{n}", find=load, active=True) for n in range(20)]
    found = list(run_checks([*loads, ANY], HEALTHY))
    assert len(found) == 21
    assert highest == [1]
