"""Results of findings: the worst status, the text, the remedy, and the limits of the schema."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.records import AuditAction, AuditSeverity, AuditStatus
from streams.audit.results import FLEET, UNKNOWN_REMEDY, Found, Rule, Scope, latest, one_line, results_of
from tests.streams.audit.facts import stated

RULE = Rule("fabric.test", "All is well", AuditSeverity.ERROR, AuditAction.REPLACE, "Replace the cable")
SCOPE = Scope("r1", 5_000, {"h1": "h100"}, {"h1": "fabric"})


def test_a_result_has_the_worst_status_and_quotes_its_findings() -> None:
    found = [Found("h1", f"eth{k}", AuditStatus.FAILED, f"eth{k} is dead") for k in range(5)]
    found += [Found("h1", "eth9", AuditStatus.PASSED, "fine"), Found(FLEET, "", AuditStatus.UNKNOWN, "few")]
    first, second = results_of(RULE, found, SCOPE)
    assert (first["host"], first["status"], first["remedy"]) == (FLEET, "UNKNOWN", UNKNOWN_REMEDY)
    assert second["text"] == "eth0 is dead; eth1 is dead; eth2 is dead; and 2 more"
    assert (second["sku"], second["shard"], len(second["findings"])) == ("h100", "fabric", 6)
    for each in (first, second):
        codec.encode("AuditResult", each)  # type: ignore[arg-type]


def test_a_remedy_of_a_finding_replaces_the_rules() -> None:
    found = [Found("h1", "eth1", AuditStatus.FAILED, "swapped", "swap leaf3:swp7 and leaf3:swp8")]
    assert results_of(RULE, found, SCOPE)[0]["remedy"] == "swap leaf3:swp7 and leaf3:swp8"


def test_long_and_unprintable_text_fits_the_schema() -> None:
    found = [Found("h1", "e\n" * 500, AuditStatus.FAILED, "x\x00" * 900)]
    codec.encode("AuditResult", results_of(RULE, found, SCOPE)[0])  # type: ignore[arg-type]
    assert one_line("a\nb" * 400).endswith("...")


def test_a_host_that_reports_twice_counts_once_with_its_newest_result() -> None:
    old, new = stated("h1", {"driver": "1"}, checked_ns=1), stated("h1", {"driver": "2"}, checked_ns=2)
    assert latest([new, old]) == latest([old, new]) == [new]


def test_a_scope_without_results_is_refused() -> None:
    with pytest.raises(ValueError, match="no audit result"):
        Scope.of([])
