"""`fabrictime doctor` as an operator runs it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.embedded_log import EmbeddedLog

ROOT = Path(__file__).resolve().parents[4]


def doctor(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "fabrictime", "doctor", "--dir", str(folder / "data"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def host(tmp_path):
    """Return a folder with the settings and the fleet file of a host whose NIC is loopback."""
    key = tmp_path / "probe.key"
    key.touch(0o600)
    key.write_text("ab" * 32)
    name = socket.gethostname()
    (tmp_path / "fleet.toml").write_text(f'[[nics]]\nhost = "{name}"\ndevice = "lo"\naddress = "127.0.0.1"\n')
    (tmp_path / "fabrictime.toml").write_text(
        f'[up]\nfleet = "{tmp_path}/fleet.toml"\n[probes]\nudp_port = 0\nkey_file = "{key}"\n'
    )
    return tmp_path


def test_a_host_with_its_log_has_no_failed_check(host, tmp_path):
    with EmbeddedLog(tmp_path / "log") as log:
        done = doctor(host, "--log", f"127.0.0.1:{log.port}", "--json", "--only", "files", "--only", "kafka")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == 0
    assert {check["area"] for check in answer["checks"]} == {"files", "kafka"}


def test_a_fault_has_its_fix_below_it_and_exit_code_1(host):
    (host / "probe.key").chmod(0o644)
    done = doctor(host, "--log", "127.0.0.1:9", "--only", "files")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    fault = next(index for index, line in enumerate(lines) if "probe key" in line)
    assert "mode 0644, expected 0600" in lines[fault]
    assert lines[fault + 1].strip().startswith(f"fix: chmod 600 {host}/probe.key")
    assert lines[-1] == "checks failed: 1, warnings: 0"


def test_an_unknown_area_is_one_line(host):
    done = doctor(host, "--only", "moon")
    assert done.returncode == 2
    assert done.stderr.startswith("fabrictime: --only moon: expected one of files, agent")
