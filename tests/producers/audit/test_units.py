"""Properties that systemctl shows, and the service that a machine type needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from producers.audit.base import run_check
from producers.audit.units import CHECKS, properties
from schemas.records import AuditStatus
from tests.producers.audit.recorded import HEALTHY
from tests.producers.audit.recorded_gpu import GPUS, address

BY_ID = {check.check_id: check for check in CHECKS}


def test_properties_of_units() -> None:
    text = "Id=a.service\nActiveState=active\n\nId=b.service\nActiveState=failed\n"
    assert properties(text)["b"]["ActiveState"] == "failed"
    assert set(properties(text)) == {"a", "b"}


def test_a_rack_needs_imex() -> None:
    host = HEALTHY.copy()
    for index in range(GPUS):
        host.files[f"/sys/bus/pci/devices/{address(index)}/device"] = "0x2941"
    result = run_check(BY_ID["software.fabric-manager"], host)
    assert result.status is AuditStatus.FAILED
    assert result.text == "nvidia-imex: not installed, expected active"


@given(st.text(max_size=120))
def test_odd_output(text: str) -> None:
    assert isinstance(properties(text), dict)
