"""The machine of a measurement: comparable figures, and nothing that names its owner."""

import getpass
import json
import os
import socket
import subprocess
import sys

import psutil
import pytest

from fabrictime.bench import _machine


def test_a_report_has_the_facts_that_make_figures_comparable_and_no_names():
    found = _machine.machine()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_gib"] > 0
    assert found["versions"]["numpy"]
    text = json.dumps(found)
    assert socket.gethostname() not in text
    assert os.path.expanduser("~") not in text
    assert f'"{getpass.getuser()}"' not in text


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(_machine, "_PACKAGES", ("numpy", "no-such-package-anywhere"))
    assert list(_machine.machine()["versions"]) == ["numpy"]


def test_without_cpuinfo_the_architecture_stands_for_the_model(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(_machine.Path, "read_text", missing)
    assert _machine._cpu_model() == _machine.platform.machine()


def test_the_peak_memory_of_a_process_is_its_own_not_that_of_its_parent():
    program = "from fabrictime.bench._machine import peak_mb; print(peak_mb())"
    ballast = b"x" * 200_000_000
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(child.stdout) < 200
    assert _machine.peak_mb() > len(ballast) / 1e6


def test_a_process_without_peak_memory_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_machine, "Path", lambda _: tmp_path / "status")
    (tmp_path / "status").write_text("Name: zombie\n")
    with pytest.raises(RuntimeError, match="has no line VmHWM"):
        _machine.peak_mb()


def test_ports_that_are_free_differ():
    assert len(set(_machine.free_ports(5))) == 5


def test_busy_processes_end_with_their_block():
    before = psutil.Process().children()
    with _machine.busy_processes(2):
        children = [child for child in psutil.Process().children() if child not in before]
        assert len(children) == 2
    assert not any(child.is_running() for child in children)


def test_the_niceness_holds_while_the_block_runs():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with _machine.at_niceness(min(19, before + 1)):
        assert os.getpriority(os.PRIO_PROCESS, 0) == min(19, before + 1)
