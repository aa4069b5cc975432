"""Sentences for what is not there, and for what would help."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from producers.audit.base import Check, Finding, advice, checked, run_check, stated
from producers.audit.checks import CHECKS
from producers.audit.host.base import Host, Unreadable
from producers.audit.reasons import absence, help_for, mismatch
from schemas.records import AuditAction, AuditStatus

ANY = next(iter(CHECKS.values()))
EMPTY = RecordedHost({}, {})


def result_of(*findings: Finding, error: Exception | None = None):
    def find(_: Host) -> Iterator[Finding]:
        yield from findings
        if error is not None:
            raise error

    check = Check(
        ANY.check_id, ANY.category, "", find, ANY.severity, AuditAction.REPLACE, "Replace the cable"
    )
    return run_check(check, EMPTY)


def test_no_host_is_described_by_an_error_of_the_system() -> None:
    for check in CHECKS.values():
        if not check.active:
            result = run_check(check, EMPTY)
            for text in (result.text, *(finding.text for finding in result.findings)):
                assert "No such file" not in text, check.check_id
                assert "Error" not in text, check.check_id


def test_a_missing_file_is_a_sentence() -> None:
    assert absence("/sys/class/infiniband: No such file or directory") == "this host has no RDMA device"
    assert absence("/sys/class/infiniband/mlx5_0/x: No such device") == "this host has no RDMA device"
    assert absence("/proc/odd: No such file or directory") == "this host has no /proc/odd"
    assert absence("chronyc: not installed") == "chronyc: not installed"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("Size"), "unexpected content: it lacks 'Size'"),
        (IndexError("list index out of range"), "unexpected content: it lacks a column or line"),
        (TypeError("bad operand"), "unexpected content: a value is of another type"),
        (ZeroDivisionError("division by zero"), "unexpected content: a number is zero or too large"),
        (ValueError("rate 'x', expected Gb/sec"), "unexpected content: rate 'x', expected Gb/sec"),
        (Unreadable("nvml: no answer"), "nvml: no answer"),
    ],
)
def test_unexpected_content_is_described_without_terms_of_python(error: Exception, text: str) -> None:
    assert mismatch(error) == text
    assert result_of(error=error).text == text


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("dmesg: read kernel buffer failed: Operation not permitted", "Run it as root"),
        ("ipmitool sel elist: no end within 30 s", "Find what it waits for"),
        ("nvidia-ml-py: not installed", "Install the program"),
        ("munge -n: exit code 6", "Run the command"),
        ("some GPUs lower the speed at rest: repeat under load", "Repeat the check while a job runs"),
        ("answers no echo request", "Run the check again on the idle host: `fabrictime audit --only x.y`"),
    ],
)
def test_an_unknown_result_has_its_help(text: str, helps: str) -> None:
    assert help_for("x.y", text).startswith(helps)


def test_no_part_is_replaced_for_an_unknown_result() -> None:
    unknown = result_of(Finding("eth0", AuditStatus.UNKNOWN, "answers no echo request"))
    assert advice(unknown)[0] is AuditAction.MONITOR
    assert "cable" not in advice(unknown)[1]
    assert advice(result_of(checked(False, "down")))[1] == "Replace the cable"


def test_a_pass_leaves_out_the_expectation() -> None:
    for text in ("MTU 9000, most interfaces of like cards have 1500", "MTU 9000; expected 1500 or 9000"):
        assert checked(True, text).text == "MTU 9000"
        assert checked(False, text).text == text
    assert checked(True, "1 page, expected at most 10; pending: 0").text == "1 page; pending: 0"


def test_a_fact_and_a_text_are_printed_once() -> None:
    result = result_of(
        *(
            finding
            for n in range(5)
            for finding in (checked(True, "MTU 9000", f"e{n}"), stated("mtu", 9000, f"e{n}"))
        ),
        stated("kernel", "6.8"),
    )
    assert result.text == "e0, e1, e2 and 2 more: MTU 9000; kernel 6.8"
    assert len(result.findings) == 11
    faults = result_of(*(checked(False, "down", f"e{n}") for n in range(5)))
    assert faults.text == "e0: down; e1: down; e2: down; and 2 more"


def test_large_numbers_have_no_exponent() -> None:
    assert stated("threads", 16_000_000).text == "threads 16000000"
    for check in CHECKS.values():
        if not check.active and "error-ratios" not in check.check_id and "quality" not in check.check_id:
            assert "e+" not in run_check(check, HEALTHY.copy()).text
