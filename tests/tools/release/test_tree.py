"""The file tree of the agent's packages: dependencies, unit, settings."""

import re
import shutil
import subprocess
import tomllib

import pytest

from fabrictime.install.host_checks import CAPABILITIES
from tools.install import names_of
from tools.release import tree


def test_the_agent_has_its_own_dependencies_and_none_of_the_servers():
    packages = set(tree.agent_requirements())
    assert names_of([""]) <= packages
    assert not packages & {"faust-streaming", "chdb", "nicegui", "clickhouse-connect", "pyarrow"}


def test_the_shipped_settings_set_nothing():
    assert tomllib.loads((tree.SOURCES / "fabrictime.toml").read_text()) == {}


def options():
    unit = (tree.SOURCES / "fabrictime.service").read_text()
    lines = [line for line in unit.splitlines() if line and line[0] not in "#["]
    return [line.partition("=")[::2] for line in lines], unit


def test_each_capability_of_the_unit_has_its_reason_and_doctor_knows_it():
    entries, unit = options()
    values = dict(entries)
    names = values["AmbientCapabilities"].split()
    assert values["CapabilityBoundingSet"].split() == names
    for name in names:
        assert re.search(rf"^# {name}: \w", unit, re.MULTILINE), name
    assert set(names) == set(CAPABILITIES)


def test_the_unit_starts_the_installed_command_in_isolated_mode():
    values = dict(options()[0])
    assert values["ExecStart"].startswith("/opt/fabrictime/bin/python -I -m fabrictime up --config /etc/")
    assert values["User"] == "fabrictime"
    assert values["NoNewPrivileges"] == "yes"
    assert values["ProtectSystem"] == "strict"


with_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def calls_of(group):
    """Return the system calls of a group, with those of the groups in it."""
    command = ["systemd-analyze", "syscall-filter", group]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[1:]
    names = {line.strip() for line in lines if not line.strip().startswith("#")} - {""}
    return {name for name in names if name[0] != "@"}.union(
        *(calls_of(name) for name in names if name[0] == "@")
    )


@with_systemd
def test_the_unit_lets_the_audit_read_clock_and_kernel_log_and_change_neither():
    """A line of the filter that begins with ~ takes calls away again that an earlier one allowed."""
    allowed: set[str] = set()
    for line in (value for name, value in options()[0] if name == "SystemCallFilter"):
        calls = set().union(
            *(calls_of(name) if name[0] == "@" else {name} for name in line.removeprefix("~").split())
        )
        allowed = allowed - calls if line[0] == "~" else allowed | calls
    assert {"adjtimex", "clock_adjtime", "syslog", "setpriority", "chown", "openat"} <= allowed
    assert not {"clock_settime", "settimeofday", "mount", "init_module", "reboot", "setuid"} & allowed


@with_systemd
def test_systemd_accepts_the_unit_and_calls_it_safe(tmp_path):
    unit = tmp_path / "fabrictime.service"
    text = (tree.SOURCES / "fabrictime.service").read_text()
    unit.write_text(text.replace("/opt/fabrictime/bin/python", "/bin/true"))
    verify = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert [line for line in verify.stderr.splitlines() if line.startswith("fabrictime")] == []
    command = ["systemd-analyze", "security", "--offline=yes", str(unit)]
    security = subprocess.run(command, capture_output=True, text=True, check=False)
    exposure = re.search(r"Overall exposure level[^:]*: ([\d.]+)", security.stdout)
    assert exposure, security.stderr
    assert float(exposure[1]) <= 4.0
