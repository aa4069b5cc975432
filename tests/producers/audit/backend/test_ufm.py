"""Events of UFM's log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_services import UFM
from producers.audit.backend.ufm import UfmEvent, ufm_events
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus


def test_an_event_has_time_severity_port_and_text() -> None:
    first, second = ufm_events(UFM)
    port = "IBPort [Switch: leaf1 / 3]"
    assert first == UfmEvent(1_794_911_741.0, "CRITICAL", port, "Link went down")
    assert second.severity == "INFO"


@given(st.text(max_size=200))
def test_odd_lines_are_left_out(text: str) -> None:
    ufm_events(text)
    assert len(ufm_events(f"{text}\n{UFM}")) >= 2
    assert ufm_events("2026-13-45 99:99:99.1 [1] [2] CRITICAL [a] b: c") == []


def test_a_host_without_ufm_is_skipped() -> None:
    host = HEALTHY.copy()
    del host.files["/opt/ufm/files/log/event.log"]
    assert run_check(CHECKS["backend.ufm-events"], host).status is AuditStatus.SKIPPED
