"""Checks that compute with torch: values and speeds of GPUs against each other, and hosts without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fabrictime.testbed.audit import recorded_active as recorded
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.host.base import OVERLAP, TRAINING
from producers.audit.host.live import LiveHost
from producers.audit.load.torch_checks import CHECKS
from producers.audit.settings import CheckSettings
from schemas.records import AuditStatus

BY_ID = {check.check_id: check for check in CHECKS}


@pytest.mark.parametrize(
    ("command", "check_id"), [(TRAINING, "gpu.training"), (OVERLAP, "collectives.overlap")]
)
def test_a_host_without_torch_or_gpus_is_skipped(command: str, check_id: str) -> None:
    host = HEALTHY.copy()
    host.commands[command,] = json.dumps({"missing": "torch is not installed"})
    result = run_check(BY_ID[check_id], host)
    assert (result.status, result.text) == (AuditStatus.SKIPPED, "torch is not installed")
    for path in [path for path in host.files if path.endswith("/vendor")]:
        host.files[path] = "0x8086"
    assert run_check(BY_ID[check_id], host).text == "no GPU on PCIe"


def test_the_gpu_with_other_weights_is_named() -> None:
    host = HEALTHY.copy()
    host.commands[TRAINING,] = recorded.trained(3, digest="other")
    failed = [
        each for each in run_check(BY_ID["gpu.training"], host).findings if each.status is AuditStatus.FAILED
    ]
    assert [(each.subject, each.text) for each in failed] == [
        ("cuda:3", "weights other, on the host's other GPUs 447711327a26ec41")
    ]


def test_facts_for_the_fleet() -> None:
    facts = [each.fact for check in CHECKS for each in run_check(check, HEALTHY).findings if each.fact]
    assert {each.name for each in facts} == {
        "training_tflops",
        "training_weights",
        "overlap_hidden_share",
        "all_gather_gb_per_s",
    }
    assert {each.text for each in facts if each.name == "training_weights"} == {
        "torch 2.7.1: 447711327a26ec41"
    }


def test_a_gpu_without_an_outcome_is_unknown_and_ends_no_other() -> None:
    host = HEALTHY.copy()
    found = json.loads(recorded.trained())
    found["devices"][5] = {"device": "cuda:5", "error": "exit code 1, CUDA error: out of memory"}
    host.commands[TRAINING,] = json.dumps(found)
    result = run_check(BY_ID["gpu.training"], host)
    assert result.status is AuditStatus.UNKNOWN
    assert result.text == "cuda:5: exit code 1, CUDA error: out of memory"
    assert len(result.findings) == 1 + 7 * 4
    host.commands[OVERLAP,] = json.dumps({"torch": "2.7.1", "error": "rank 2: exit code 1, no message"})
    assert run_check(BY_ID["collectives.overlap"], host).status is AuditStatus.UNKNOWN


def test_the_interpreter_of_the_settings_runs_the_script(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    host = LiveHost(settings=CheckSettings(torch_python=str(stand_in)))
    assert host.load(20.0, TRAINING).endswith("producers/audit/load/training.py\n")
