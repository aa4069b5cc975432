"""Drives and shared mounts: odd SMART data, stale handles, missing rights."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.base import run_check
from producers.audit.drives import CHECKS, smart
from producers.audit.host import Unreadable
from schemas.records import AuditStatus
from tests.producers.audit.recorded import HEALTHY
from tests.producers.audit.recorded_machine import SMART

BY_ID = {check.check_id: check for check in CHECKS}


def test_smart_data_is_a_table() -> None:
    assert smart('{"smart_status": {"passed": true}}') == {"smart_status": {"passed": True}}
    for text in ("", "[]", "smartctl 7.4"):
        with pytest.raises(ValueError):
            smart(text)


@given(st.recursive(st.none() | st.booleans() | st.integers(), lambda each: st.lists(each, max_size=3)))
def test_odd_smart_data_is_never_passed(odd: object) -> None:
    host = HEALTHY.copy()
    host.commands[SMART] = json.dumps(
        {"smart_status": odd, "nvme_smart_health_information_log": {"critical_warning": odd}}
    )
    for name in ("smart", "nvme-wear"):
        assert run_check(BY_ID[f"storage.{name}"], host).status is not AuditStatus.PASSED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("stat --file-system /data: exit code 1, stat: Stale file handle", AuditStatus.FAILED),
        ("stat --file-system /data: no end within 5 s", AuditStatus.FAILED),
        ("stat: Permission denied", AuditStatus.UNKNOWN),
    ],
)
def test_a_server_that_does_not_answer_fails_and_a_missing_right_is_unknown(
    error: str, status: AuditStatus
) -> None:
    host = HEALTHY.copy()

    def refuse(*_: str) -> str:
        raise Unreadable(error)

    host.run = refuse  # type: ignore[method-assign]
    result = run_check(BY_ID["storage.shared-mounts"], host)
    assert result.status is status
    assert error in result.text
