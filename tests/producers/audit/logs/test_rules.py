"""Tables of rules for lines of the kernel log, and the events that lines form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.checks import CHECKS
from producers.audit.logs.lines import Line, parse_line
from producers.audit.logs.rules import EVENT_S, Event, Matcher, all_rules, events_of, findings, rules
from schemas.records import AuditStatus

NIC = Matcher(rules("kernel-log.nic")).find
HEALTH = "mlx5_core 0000:{}:00.0: poll_health:939:(pid 0): device's health compromised"
HOUR_S = 3600.0


def dated(*lines: str, apart_s: float = 0.001) -> list[Line]:
    return [parse_line(f"[{1000 + number * apart_s:12.6f}] {line}") for number, line in enumerate(lines)]


def statuses(events: list[Event], now_s: float = 2000.0) -> dict[str, AuditStatus]:
    return {finding.subject: finding.status for finding in findings(events, now_s)}


def test_every_rule_states_its_source_and_belongs_to_a_check() -> None:
    for rule in all_rules():
        assert rule.source, rule.pattern.pattern
        assert rule.text
        assert rule.check in CHECKS or not rule.check


def test_two_cards_are_two_subjects() -> None:
    events = events_of(dated(HEALTH.format("17"), HEALTH.format("2a"), HEALTH.format("17")), NIC)
    assert [(event.subject, event.lines) for event in events] == [("0000:17:00.0", 2), ("0000:2a:00.0", 1)]


@given(st.integers(1, 30), st.floats(0.0001, 0.9))
def test_lines_within_the_window_are_one_event(lines: int, share: float) -> None:
    apart_s = EVENT_S * share / lines
    (event,) = events_of(dated(*[HEALTH.format("17")] * lines, apart_s=apart_s), NIC)
    assert event.lines == lines
    assert len(events_of(dated(*[HEALTH.format("17")] * lines, apart_s=EVENT_S + 1), NIC)) == lines


@pytest.mark.parametrize(
    "end",
    [
        "mlx5_core 0000:17:00.0: mlx5_health_try_recover:345:(pid 9): health recovery succeeded",
        "pci 0000:17:00.0: [15b3:1021] type 00 class 0x020000 PCIe Endpoint",
    ],
)
def test_a_fault_ends_by_a_later_line(end: str) -> None:
    lines = dated(HEALTH.format("17"), HEALTH.format("2a"), end)
    assert statuses(events_of(lines, NIC)) == {
        "0000:17:00.0": AuditStatus.PASSED,
        "0000:2a:00.0": AuditStatus.FAILED,
    }
    again = [*lines, *dated(HEALTH.format("17"))]
    assert statuses(events_of(again, NIC))["0000:17:00.0"] is AuditStatus.FAILED


def test_a_link_that_comes_up_ends_a_stuck_queue() -> None:
    stuck = "bnxt_en 0000:a8:00.0 eth5: TX timeout detected, starting reset task!"
    up = "bnxt_en 0000:a8:00.0 eth5: NIC Link is Up, 100000 Mbps full duplex"
    assert statuses(events_of(dated(stuck), NIC)) == {"eth5": AuditStatus.FAILED}
    assert statuses(events_of(dated(stuck, up), NIC)) == {"eth5": AuditStatus.PASSED}
    often = dated(*[stuck, up] * 3, apart_s=EVENT_S)
    assert statuses(events_of(often, NIC)) == {"eth5": AuditStatus.FAILED}
    assert statuses(events_of(often, NIC), now_s=2000 + 2 * HOUR_S) == {"eth5": AuditStatus.PASSED}


def test_corrected_errors_have_a_threshold() -> None:
    find = Matcher(rules("kernel-log.machine")).find
    lines = ["{%d}[Hardware Error]: event severity: corrected"]
    for count, status in ((99, AuditStatus.PASSED), (100, AuditStatus.FAILED)):
        log = dated(*[lines[0] % number for number in range(count)], apart_s=5.0)
        assert statuses(events_of(log, find)) == {"": status}
        assert statuses(events_of(log, find), now_s=2000 + 25 * HOUR_S) == {"": AuditStatus.PASSED}


@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_lines_are_counted_once(texts: list[str]) -> None:
    lines = [parse_line(text) for text in texts]
    for check in {rule.check for rule in all_rules()}:
        events = events_of(lines, Matcher(rules(check)).find)
        assert sum(event.lines for event in events) <= len(lines)
        assert list(findings(events, 10.0)) or not events
