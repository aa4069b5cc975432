"""Properties that systemctl shows, and the service that a machine type needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_gpu import GPUS, address
from producers.audit.base import run_check
from producers.audit.software.units import CHECKS, SHOW, SUBNET_MANAGER_PID, properties
from schemas.records import AuditStatus

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


def test_switches_behind_infiniband_devices_need_the_fabric_manager_and_its_subnet_manager() -> None:
    host = HEALTHY.copy()
    host.files["/sys/bus/pci/devices/0000:c5:00.0/class"] = "0x060400\n"
    host.files["/sys/class/infiniband/mlx5_3/device/vpd"] = b"\x82\x10\x00ConnectX-7 SMDL=SW_MNG\x78"
    check = BY_ID["software.fabric-manager"]
    assert run_check(check, host).status is AuditStatus.PASSED
    host.files[SUBNET_MANAGER_PID] = "911"
    assert run_check(check, host).text == "nvlsm: process 911 has ended, which sets up the routes of NVLink"
    host.files["/proc/910/stat"] = "910 (nvlsm) S 1 910 910 0 -1"
    assert run_check(check, host).status is AuditStatus.PASSED
    host.commands[SHOW] = host.commands[SHOW].replace("nvidia-fabricmanager", "nvidia-other")
    result = run_check(check, host)
    assert result.text == "nvidia-fabricmanager: not installed, expected active"


@given(st.text(max_size=120))
def test_odd_output(text: str) -> None:
    assert isinstance(properties(text), dict)
