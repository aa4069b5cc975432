"""Checks of kernel and services, where a healthy host may differ."""

from __future__ import annotations

from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus

CHECK = CHECKS["software.gpu-direct"]


def without_peer_memory() -> RecordedHost:
    host = HEALTHY.copy()
    host.files["/proc/modules"] = "nvidia 56000000 900 - Live 0x0\n"
    return host


def test_the_open_module_of_nvidia_needs_no_module_of_peer_memory() -> None:
    host = without_peer_memory()
    assert run_check(CHECK, host).status is AuditStatus.FAILED
    host.files["/proc/driver/nvidia/version"] = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
    )
    result = run_check(CHECK, host)
    assert (result.status, result.text) == (
        AuditStatus.PASSED,
        "the open kernel module exports GPU memory by DMA-BUF",
    )


def test_a_host_without_rdma_needs_no_gpu_direct() -> None:
    host = without_peer_memory()
    host.files = {
        path: text for path, text in host.files.items() if not path.startswith("/sys/class/infiniband/")
    }
    assert run_check(CHECK, host).status is AuditStatus.SKIPPED
