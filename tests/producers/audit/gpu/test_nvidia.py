"""Checks of NVIDIA GPUs: figures for the fleet, lost GPUs, hosts without GPUs, odd reports."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from fabrictime.testbed.audit.recorded_gpu import address, report
from producers.audit.base import run_check
from producers.audit.gpu.nvidia import CHECKS, gpus
from producers.audit.host.base import NVML, Unreadable
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def _without_gpus() -> RecordedHost:
    host = HEALTHY.copy()
    for path in [path for path in host.files if path.endswith("/vendor")]:
        host.files[path] = "0x8086"
    return host


def test_a_host_without_gpus_skips_every_check() -> None:
    for check in CHECKS:
        assert run_check(check, _without_gpus()).status is AuditStatus.SKIPPED


def test_gpus_without_a_driver_are_unknown() -> None:
    host = HEALTHY.copy()
    del host.commands[NVML,]
    for check in CHECKS:
        assert run_check(check, host).status is AuditStatus.UNKNOWN, check.check_id


def test_figures_for_the_fleet() -> None:
    facts = {
        (each.subject, each.fact.name): each.fact.number
        for check in CHECKS
        for each in run_check(check, HEALTHY).findings
        if each.fact is not None
    }
    assert facts["GPU 3", "temperature_celsius"] == 41.0
    assert facts["GPU 7", "nvlinks"] == 18.0
    assert facts["NVML", "gpus"] == 8.0


def test_a_lost_gpu_is_left_out_and_all_lost_are_unknown() -> None:
    host, found = HEALTHY.copy(), report()
    found["gpus"][0] = {"lost": "GPU is lost"}
    host.commands[NVML,] = json.dumps(found)
    assert [gpu.index for gpu in gpus(host)] == [1, 2, 3, 4, 5, 6, 7]
    host.commands[NVML,] = json.dumps({**found, "gpus": [{"lost": "GPU is lost"}] * 8})
    with pytest.raises(Unreadable, match="no GPU answers NVML"):
        gpus(host)
    assert run_check(BY_ID["gpu.answers"], host).status is AuditStatus.FAILED


def test_half_of_the_gpus_is_a_partition_and_seven_are_a_loss() -> None:
    for count, status in ((4, AuditStatus.PASSED), (7, AuditStatus.FAILED)):
        host, found = HEALTHY.copy(), report()
        found["gpus"] = found["gpus"][:count]
        host.commands[NVML,] = json.dumps(found)
        for index in range(count, 8):
            host.files[f"/sys/bus/pci/devices/{address(index)}/vendor"] = "0x8086"
        assert run_check(BY_ID["gpu.count"], host).status is status


@given(JSON, st.sampled_from(sorted(report()["gpus"][0])))
def test_odd_reports_end_no_check(odd: object, name: str) -> None:
    host, found = HEALTHY.copy(), report()
    found["gpus"][2][name] = odd
    for text in (json.dumps(odd), json.dumps(found), json.dumps({"gpus": odd})):
        host.commands[NVML,] = text
        for check in CHECKS:
            assert run_check(check, host).text.isprintable()
