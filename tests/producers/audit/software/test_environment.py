"""Variables of files, and processes of /proc."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.software.environment import CHECKS, HARMFUL, assignments, processes
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}


def test_assignments_of_the_shells() -> None:
    text = "# NCCL_IB_DISABLE=1\nexport A=1\nB='two'\n  setenv C 3\nif [ x ]; then\nNCCL_ALGO = Ring\n"
    assert list(assignments(text)) == [("A", "1"), ("B", "two"), ("C", "3"), ("NCCL_ALGO", "= Ring")]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("NCCL_IB_DISABLE=0", AuditStatus.PASSED),
        ("NCCL_IB_DISABLE=1", AuditStatus.FAILED),
        ("NCCL_DEBUG=WARN", AuditStatus.PASSED),
        ("NCCL_NET=Socket", AuditStatus.FAILED),
        ("NCCL_SOCKET_IFNAME=eth0", AuditStatus.PASSED),
        ("NCCL_SOCKET_IFNAME=lo", AuditStatus.FAILED),
        ("CUDA_VISIBLE_DEVICES=", AuditStatus.FAILED),
    ],
)
def test_the_value_decides(line: str, status: AuditStatus) -> None:
    host = HEALTHY.copy()
    host.files["/etc/nccl.conf"] = line
    assert run_check(BY_ID["software.environment"], host).status is status


def test_patterns_are_valid() -> None:
    for pattern, effect in HARMFUL.values():
        re.compile(pattern)
        assert effect


def test_emulated_rdma_on_a_host_without_a_nic_is_no_fault() -> None:
    host = HEALTHY.copy()
    host.files["/proc/modules"] = "rdma_rxe 1 0 - Live 0x0\n"
    assert run_check(BY_ID["software.modules-denied"], host).status is AuditStatus.PASSED
    host.files["/proc/modules"] = "rdma_rxe 1 0 - Live 0x0\nmlx5_ib 1 0 - Live 0x0\n"
    assert run_check(BY_ID["software.modules-denied"], host).status is AuditStatus.FAILED


def test_processes_with_odd_names() -> None:
    assert ("812", "a (b) D", "R") in set(processes(HEALTHY))


@given(st.text(max_size=80))
def test_odd_files_end_no_check(text: str) -> None:
    host = HEALTHY.copy()
    host.files["/etc/profile.d/odd.sh"] = text
    host.files["/proc/1/stat"] = text
    for check in CHECKS:
        assert run_check(check, host).text.isprintable()
