"""A check's result from its findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import Finding, failed, passed, run_check, worst
from producers.audit.checks import CHECKS
from producers.audit.host.base import Host, Missing
from schemas.records import AuditStatus

ANY = CHECKS["node.uptime"]


def test_the_worst_finding_decides() -> None:
    order = (AuditStatus.FAILED, AuditStatus.UNKNOWN, AuditStatus.PASSED, AuditStatus.SKIPPED)
    for index, status in enumerate(order):
        assert worst(iter(order[index:])) is status
    assert worst(iter(())) is AuditStatus.SKIPPED


def test_a_part_that_vanishes_midway_is_unknown() -> None:
    def find(_: Host) -> Iterator[Finding]:
        yield passed("fine", "mlx5_0")
        raise Missing("mlx5_1: No such file or directory")

    result = run_check(replace(ANY, find=find), HEALTHY)
    assert (result.status, result.text) == (AuditStatus.UNKNOWN, "mlx5_1: No such file or directory")


def test_many_findings_are_counted() -> None:
    def find(_: Host) -> Iterator[Finding]:
        yield from (failed("down", f"eth{number}") for number in range(9))

    result = run_check(replace(ANY, find=find), HEALTHY)
    assert result.text == "eth0: down; eth1: down; eth2: down; and 6 more"
    assert len(result.findings) == 9
