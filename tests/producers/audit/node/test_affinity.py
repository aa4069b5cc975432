"""Places of GPUs and NICs in the PCIe tree."""

from __future__ import annotations

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_gpu import address
from fabrictime.testbed.audit.recorded_machine import NICS
from producers.audit.base import run_check
from producers.audit.node.affinity import CHECKS, shared_bridges
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}
ROOT = "/sys/devices/pci0000:15"


def test_shared_bridges() -> None:
    switch = f"{ROOT}/0000:15:01.0/0000:16:00.0"
    assert shared_bridges(f"{switch}/0000:17:00.0", f"{switch}/0000:19:00.0") == 2
    assert shared_bridges(f"{switch}/0000:17:00.0", f"{ROOT}/0000:15:01.0/0000:18:00.0") == 1
    assert shared_bridges(f"{switch}/0000:17:00.0", f"{ROOT}/0000:15:02.0/0000:18:00.0") == 0
    assert shared_bridges(f"{ROOT}/0000:15:02.0", f"{ROOT}/0000:15:03.0") == 0


def test_hosts_without_switches_need_the_same_numa_node_only() -> None:
    host = HEALTHY.copy()
    for number, device in enumerate([path for path in host.links if "/bus/pci/" in path]):
        root = f"/sys/devices/pci0000:{number + 1:02x}/0000:{number + 1:02x}:01.0"
        host.links[device] = f"{root}/{device.rpartition('/')[2]}"
    result = run_check(BY_ID["pcie.gpu-nic"], host)
    assert result.status is AuditStatus.PASSED, result.text
    facts = {each.fact.text for each in result.findings if each.fact is not None}
    assert facts == {"a NUMA node"}


def test_the_pairing_is_a_fact() -> None:
    result = run_check(BY_ID["pcie.gpu-nic"], HEALTHY)
    first = result.findings[0]
    assert first.subject == f"GPU {address(0)}"
    assert first.text == f"shares a PCIe switch with its nearest NIC {NICS[0]}"


def test_a_host_without_rdma_devices_is_skipped() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if "infiniband" not in path}
    assert run_check(BY_ID["pcie.gpu-nic"], host).status is AuditStatus.SKIPPED
