"""Parsers of systemctl and scontrol, and the service that a machine type needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.base import run_check
from producers.audit.services import CHECKS, SHOW, properties, scheduler_state
from schemas.records import AuditStatus
from tests.producers.audit.recorded import HEALTHY
from tests.producers.audit.recorded_gpu import GPUS, address

BY_ID = {check.check_id: check for check in CHECKS}


def test_properties_of_units() -> None:
    text = "Id=a.service\nActiveState=active\n\nId=b.service\nActiveState=failed\n"
    assert properties(text)["b"]["ActiveState"] == "failed"
    assert set(properties(text)) == {"a", "b"}


@pytest.mark.parametrize(
    ("state", "states"),
    [
        ("IDLE", {"IDLE"}),
        ("MIXED+DRAIN", {"MIXED", "DRAIN"}),
        ("DOWN*", {"DOWN"}),
        ("IDLE~+POWERED_DOWN", {"IDLE", "POWERED_DOWN"}),
    ],
)
def test_states_of_a_node(state: str, states: set[str]) -> None:
    text = f"NodeName=gpu-001\n   State={state} ThreadsPerCore=1\n   Reason=fan 2 [root@2026-11-20]\n"
    assert scheduler_state(text) == (states, "fan 2 [root@2026-11-20]")


def test_a_unit_without_its_condition_is_not_needed() -> None:
    host = HEALTHY.copy()
    host.commands[SHOW] = host.commands[SHOW].replace(
        "ActiveState=active\nConditionResult=yes", "ActiveState=inactive\nConditionResult=no", 1
    )
    assert run_check(BY_ID["software.services"], host).status is AuditStatus.PASSED


def test_a_rack_needs_imex() -> None:
    host = HEALTHY.copy()
    for index in range(GPUS):
        host.files[f"/sys/bus/pci/devices/{address(index)}/device"] = "0x2941"
    result = run_check(BY_ID["software.fabric-manager"], host)
    assert result.status is AuditStatus.FAILED
    assert result.text == "nvidia-imex: not installed, expected active"


@given(st.text(max_size=120))
def test_odd_output_is_an_error_of_value(text: str) -> None:
    properties(text)
    try:
        scheduler_state(text)
    except (ValueError, IndexError):
        return
