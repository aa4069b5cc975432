"""Two runs compared."""

from __future__ import annotations

import pytest

from fabrictime.audit.diff import Change, RunDiff, diff
from schemas.records import AuditResult, AuditStatus
from tests.fabrictime.audit.fleets import F, P, S, U, fact, fleet, report, result

MTU, NUMA = "backend.mtu", "software.numa-balancing"


def compared(before: list[AuditResult], after: list[AuditResult]) -> RunDiff:
    return diff(report(before), report(after))


@pytest.mark.parametrize(
    ("check", "before", "after", "change"),
    [
        (MTU, P, F, Change.NEW_ERROR),
        (MTU, None, F, Change.NEW_ERROR),
        (MTU, U, F, Change.NEW_ERROR),
        (MTU, S, F, Change.NEW_ERROR),
        (NUMA, P, F, Change.NEW_WARNING),
        (MTU, P, U, Change.NEW_UNKNOWN),
        (MTU, None, U, Change.NEW_UNKNOWN),
        (MTU, F, P, Change.FIXED),
        (NUMA, F, P, Change.FIXED),
        (MTU, F, U, Change.OTHER),
        (MTU, F, S, Change.OTHER),
        (MTU, F, None, Change.OTHER),
        (MTU, P, S, Change.OTHER),
        (MTU, U, P, Change.OTHER),
        (MTU, P, P, None),
        (MTU, F, F, None),
        (MTU, None, P, None),
        (MTU, P, None, None),
        (MTU, S, None, None),
    ],
)
def test_kinds_of_change(
    check: str, before: AuditStatus | None, after: AuditStatus | None, change: Change | None
) -> None:
    def run(status: AuditStatus | None) -> list[AuditResult]:
        return [result("node.oom", "h1"), *([result(check, "h1", status)] if status else [])]

    found = compared(run(before), run(after))
    assert [each.change for each in found.checks] == ([] if change is None else [change])
    assert found.is_worse == (change is Change.NEW_ERROR)


def test_a_check_that_fails_for_another_cause_is_a_change() -> None:
    (change,) = compared([result(MTU, "h1", F, "eth1")], [result(MTU, "h1", F, "eth2")]).checks
    assert (change.change, change.before, change.after) == (Change.OTHER_CAUSE, "error: eth1", "error: eth2")
    assert change.remedy.startswith("monitor: ip link set")


def test_new_errors_stand_first_and_hosts_share_a_line() -> None:
    before = [result(MTU, f"n{k}") for k in (2, 10, 3)] + [result(NUMA, "n2", F, "1")]
    after = [result(MTU, f"n{k}", F, "1500") for k in (10, 2)] + [result(MTU, "n3"), result(NUMA, "n2")]
    found = compared(before, after)
    assert [(each.change, each.check, each.hosts) for each in found.checks] == [
        (Change.NEW_ERROR, MTU, ("n2", "n10")),
        (Change.FIXED, NUMA, ("n2",)),
    ]


def test_changed_texts_are_listed_and_figures_are_not() -> None:
    def run(kernel: str, memory: float) -> list[AuditResult]:
        return [result(MTU, "h1", facts=[fact("kernel", kernel), fact("memory_gib", memory)])]

    (value,) = compared(run("6.5", 2015), run("6.8", 1951)).values
    assert (value.name, value.before, value.after, value.hosts) == ("kernel", "6.5", "6.8", ("h1",))


def test_hosts_of_one_run_are_named_and_not_compared() -> None:
    found = compared([result(MTU, "h1"), result(MTU, "h2")], [result(MTU, "h2"), result(MTU, "h3", F)])
    assert (found.hosts_gone, found.hosts_new, found.checks) == (("h1",), ("h3",), ())


def test_a_host_that_no_longer_answers_is_a_new_unknown() -> None:
    found = diff(report([result(MTU, "h1")]), report([], missing=["h1"]))
    assert [(each.change, each.check) for each in found.checks] == [(Change.NEW_UNKNOWN, "agent.answer")]


def test_equal_runs_have_no_difference() -> None:
    assert compared(list(fleet(20)), list(fleet(20))).checks == ()
