"""Stalled collectives: the rule on samples, and GPUs that do not answer."""

from __future__ import annotations

import json

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_gpu import activity
from producers.audit.base import run_check
from producers.audit.gpu.nvml import ACTIVITY
from producers.audit.gpu.stalled import CHECKS, is_stalled
from producers.audit.host.base import NVML
from schemas.records import AuditStatus

(CHECK,) = CHECKS
W = 1000


@pytest.mark.parametrize(
    ("busy", "power", "expected"),
    [
        ([100, 100, 99], [140 * W, 150 * W, 145 * W], True),
        ([3, 0, 1], [70 * W] * 3, False),  # idle
        ([100, 100, 98], [520 * W, 600 * W, 650 * W], False),  # a job computes
        ([100, 60, 100], [140 * W] * 3, False),  # the collective ended in between
        ([100, 100, 100], [140 * W, 400 * W, 140 * W], False),
    ],
)
def test_a_gpu_is_stalled_in_every_sample_or_not_at_all(
    busy: list[int], power: list[int], expected: bool
) -> None:
    assert is_stalled(busy, power, 700 * W) is expected


def test_no_sample_is_no_answer() -> None:
    with pytest.raises(ValueError, match="0 samples"):
        is_stalled([], [], 700 * W)
    with pytest.raises(ValueError, match="power limit of 0 mW"):
        is_stalled([100], [1], 0)


def test_lost_and_unsupported_gpus() -> None:
    host, found = HEALTHY.copy(), activity()
    found["gpus"][2] = {"lost": "GPU is lost"}
    found["gpus"][4]["power_mw"] = [None] * 5
    host.commands[NVML, ACTIVITY] = json.dumps(found)
    result = run_check(CHECK, host)
    assert result.status is AuditStatus.PASSED
    assert {each.subject: each.status for each in result.findings}["GPU 4"] is AuditStatus.SKIPPED
    assert len(result.findings) == 7
    host.commands[NVML, ACTIVITY] = json.dumps({"gpus": [{"lost": "GPU is lost"}] * 8})
    assert run_check(CHECK, host).status is AuditStatus.UNKNOWN


def test_a_host_without_a_driver_is_unknown_and_one_without_gpus_skipped() -> None:
    host = HEALTHY.copy()
    del host.commands[NVML, ACTIVITY]
    assert run_check(CHECK, host).status is AuditStatus.UNKNOWN
    for path in [path for path in host.files if path.endswith("/vendor")]:
        host.files[path] = "0x8086"
    assert run_check(CHECK, host).status is AuditStatus.SKIPPED
