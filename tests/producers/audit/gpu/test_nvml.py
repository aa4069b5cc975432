"""The real nvidia-ml-py package reads our stand-in for the library of NVML, healthy and with faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fabrictime.testbed.audit.faults_gpu import LIBRARY, changed, no_peers, stalled
from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_gpu import activity, report
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.gpu import nvidia
from producers.audit.gpu.nvml import ACTIVITY, pci_address
from producers.audit.host import live
from producers.audit.host.base import NVML, Unreadable
from producers.audit.host.live import LiveHost
from schemas.records import AuditStatus

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the stand-in for NVML's library."""
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(
        ["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True
    )
    return folder


def _run(library: Path, fault: str = "", *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_FAULT": fault, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "producers.audit.gpu.nvml", *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _read(library: Path, fault: str = "") -> dict[str, Any]:
    done = _run(library, fault)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_healthy_library(library: Path) -> None:
    assert _read(library) == report()


def test_faults_of_the_library_are_those_of_the_injector(library: Path) -> None:
    for fault, (_, values) in LIBRARY.items():
        expected = changed(report(), values)
        found = _read(library, fault)
        if fault == "lost":  # the others do not reach it
            for each in expected["gpus"]:
                if "peers" in each:
                    each["peers"] = [0] * 7
        assert found == expected, fault
    missing = report()
    missing["gpus"].pop()
    for each in missing["gpus"]:
        each["peers"].pop()
    assert _read(library, "missing") == missing
    assert _read(library, "driver mismatch")["driver"] == "570.86.15"
    isolated = report()
    no_peers(isolated)
    assert _read(library, "no peers") == isolated


def test_samples_of_utilisation_and_power(library: Path) -> None:
    faults = ("", "stalled", "lost", "unreadable utilisation")
    with ThreadPoolExecutor() as pool:  # each waits for five seconds of samples
        done = pool.map(lambda fault: _run(library, fault, ACTIVITY), faults)
    outputs = {fault: one.stdout for fault, one in zip(faults, done, strict=True)}
    assert json.loads(outputs[""]) == activity()
    host = HEALTHY.copy()
    stalled(host)
    assert json.loads(outputs["stalled"]) == json.loads(host.commands[NVML, ACTIVITY])
    assert json.loads(outputs["lost"])["gpus"][3] == {"lost": "GPU is lost"}
    host.commands[NVML, ACTIVITY] = outputs["unreadable utilisation"]
    result = run_check(CHECKS["gpu.stalled"], host)
    assert result.status is AuditStatus.UNKNOWN
    assert result.text.startswith("GPU 3: unreadable: utilisation_percent: ")


def test_an_unreadable_value_is_unknown(library: Path) -> None:
    host = HEALTHY.copy()
    host.commands[NVML,] = _run(library, "unreadable ECC").stdout
    result = run_check(CHECKS["gpu.ecc-uncorrectable"], host)
    assert result.status is AuditStatus.UNKNOWN
    assert result.text.startswith("GPU 3: ecc_uncorrected: ")


def test_a_driver_that_does_not_answer(library: Path) -> None:
    done = _run(library, "no driver")
    assert done.returncode
    assert "NVML: Driver Not Loaded" in done.stderr


def test_a_driver_that_hangs_makes_every_check_unknown_at_once(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("NVML_FAULT", "hang")
    monkeypatch.setitem(live.LIMITS_S, NVML, 1.0)
    live_host = LiveHost()
    host = HEALTHY.copy()
    host.run = live_host.run  # type: ignore[method-assign]
    for check in nvidia.CHECKS:
        result = run_check(check, host)
        assert result.status is AuditStatus.UNKNOWN, check.check_id
        assert "nvml: no end within 1 s" in result.text
    with pytest.raises(Unreadable, match="no end within"):
        live_host.run(NVML)


def test_addresses() -> None:
    assert pci_address("00000000:AB:00.0") == "0000:ab:00.0"
    with pytest.raises(ValueError, match="invalid literal"):
        pci_address("odd")
