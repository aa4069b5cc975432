"""Records of results fit their schema, whatever a check found."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from producers.audit.base import Fact, Finding, Result, failed, passed
from producers.audit.checks import CHECKS
from producers.audit.report import AGENT, MAX_FINDINGS, AuditedHost, result_record
from schemas import codec
from schemas.messages import decode_message
from schemas.records import AuditResult, AuditStatus
from schemas.topics import AUDIT

HOST = AuditedHost("h1", "fabric", "h100")
ANY = CHECKS["node.uptime"]


def record_of(result: Result) -> AuditResult:
    record = result_record(result, "run", HOST, checked_ns=10**18, checks=3)
    assert decode_message(AUDIT, b"run", codec.encode(AUDIT.type, record)) == record
    return record


def test_a_result_keeps_its_values() -> None:
    fact = Fact("uptime_s", "12", 12.0)
    result = Result(ANY, AuditStatus.FAILED, "up 12 s", (replace(failed("up 12 s", "a"), fact=fact),), 0.25)
    record = record_of(result)
    assert (record["run"], record["host"], record["shard"], record["sku"]) == ("run", *HOST)
    assert (record["check"], record["category"], record["title"]) == (ANY.check_id, ANY.category, ANY.title)
    assert (record["took_ns"], record["checks"]) == (250_000_000, 3)
    assert record["findings"] == [{"subject": "a", "status": "FAILED", "text": "up 12 s"}]
    assert record["facts"] == [{"name": "uptime_s", "subject": "a", "text": "12", "number": 12.0}]


def test_of_too_many_findings_those_that_did_not_pass_are_kept() -> None:
    findings = (*(passed("fine", f"eth{n}") for n in range(MAX_FINDINGS)), failed("down", "eth9999"))
    record = record_of(Result(ANY, AuditStatus.FAILED, "down", findings))
    assert len(record["findings"]) == MAX_FINDINGS
    assert record["findings"][0]["subject"] == "eth9999"


def test_the_agents_own_check_fits_too() -> None:
    assert record_of(Result(AGENT, AuditStatus.PASSED, "x", ()))["check"] == "agent.answer"


@given(st.text(max_size=700), st.floats() | st.none())
def test_any_text_and_number_fits(text: str, number: float | None) -> None:
    finding = Finding(text, AuditStatus.PASSED, text, Fact(text, text, number))
    record = record_of(Result(ANY, AuditStatus.PASSED, text, (finding,)))
    assert len(record["findings"][0]["subject"]) <= 256
    assert len(record["text"]) <= 512
