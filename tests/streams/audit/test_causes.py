"""A fault that two checks find is one error."""

from __future__ import annotations

from schemas.records import AuditAction, AuditResult, AuditSeverity, AuditStatus
from streams.audit.causes import one_error_per_cause
from streams.audit.results import FLEET, Found, Rule, Scope, results_of

F, P = AuditStatus.FAILED, AuditStatus.PASSED
SCOPE = Scope("r1", 1, {}, {})


def of(check: str, *found: tuple[str, str, AuditStatus]) -> list[AuditResult]:
    rule = Rule(check, "as planned", AuditSeverity.ERROR, AuditAction.MONITOR, "move the cable")
    return results_of(
        rule, [Found(host, device, status, f"{device} of {host}") for host, device, status in found], SCOPE
    )


def errors(results: list[AuditResult]) -> list[tuple[str, str]]:
    return [
        (each["host"], each["check"])
        for each in one_error_per_cause(results)
        if each["status"] == F and each["severity"] == AuditSeverity.ERROR
    ]


def test_the_rail_of_a_swapped_nic_refers_to_its_cable() -> None:
    rails = of("fabric.rails", ("h1", "eth1", F), ("h1", "eth2", P), ("h2", "eth2", F))
    cables = of("fabric.cables", ("h1", "eth1", F), ("h2", "eth2", F))
    assert errors([*rails, *cables]) == [("h1", "fabric.cables"), ("h2", "fabric.cables")]
    first = one_error_per_cause([*rails, *cables])[0]
    assert (first["status"], first["severity"]) == (F, AuditSeverity.WARNING)
    assert first["text"] == "see fabric.cables: eth1 of h1"


def test_a_fault_without_another_check_stays_an_error() -> None:
    rails = of("fabric.rails", ("h1", "eth1", F), ("h1", "eth2", F))
    assert errors(rails) == [("h1", "fabric.rails")]
    elsewhere = of("fabric.cables", ("h1", "eth1", F), ("h2", "eth1", F), (FLEET, "leaf1:p1", F))
    assert ("h1", "fabric.rails") in errors([*rails, *elsewhere])


def test_a_result_that_did_not_fail_is_unchanged() -> None:
    rails, cables = of("fabric.rails", ("h1", "eth1", P)), of("fabric.cables", ("h1", "eth1", F))
    assert one_error_per_cause([*rails, *cables]) == [*rails, *cables]
