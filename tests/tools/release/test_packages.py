"""The packages of a release: dependencies, units, settings, scripts."""

import re
import shutil
import subprocess
import tomllib

import pytest

from fabrictime.install.host_checks import CAPABILITIES
from fabrictime.runtime import config
from fabrictime.runtime.service import SERVICES as KINDS
from tools.install import names_of
from tools.release.packages import AGENT, PACKAGES, SERVICES

UNITS = [(package, name) for package in PACKAGES for name, _ in package.files if name.endswith(".service")]
each_unit = pytest.mark.parametrize(("package", "unit"), UNITS, ids=[name for _, name in UNITS])
SERVER = {"faust-streaming", "chdb", "nicegui", "clickhouse-connect", "pyarrow"}


def test_the_agent_has_its_own_dependencies_and_none_of_the_servers():
    packages = set(AGENT.requirements())
    assert names_of([""]) <= packages
    assert not packages & SERVER


def test_the_services_add_those_of_the_servers_to_the_agents():
    packages = set(SERVICES.requirements())
    assert packages >= SERVER
    assert not packages & set(AGENT.requirements())


def test_the_shipped_settings_of_the_agent_set_nothing():
    assert tomllib.loads(AGENT.text(AGENT.settings)) == {}


def test_the_shipped_settings_of_the_services_start_them_without_a_nic():
    settings = config.load(SERVICES.sources / SERVICES.settings, {})
    assert settings.up.fleet == "none"
    assert f"StateDirectory={settings.up.data_directory.name}\n" in SERVICES.text(
        "fabrictime-services.service"
    )
    settings.check()


def entries_of(text):
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    return [line.partition("=")[::2] for line in lines]


@each_unit
def test_each_capability_of_a_unit_has_its_reason_and_doctor_knows_it(package, unit):
    text = package.text(unit)
    values = dict(entries_of(text))
    names = values["AmbientCapabilities"].split()
    assert values["CapabilityBoundingSet"].split() == names
    for name in names:
        assert re.search(rf"^# {name}: \w", text, re.MULTILINE), name
    assert set(names) == (set(CAPABILITIES) if package is AGENT else {"CAP_SYS_NICE"})


@each_unit
def test_a_unit_starts_the_installed_command_as_the_user_that_the_package_makes(package, unit):
    values = dict(entries_of(package.text(unit)))
    arguments = values["ExecStart"].split()
    assert arguments[:4] == ["/opt/fabrictime/bin/python", "-I", "-m", "fabrictime"]
    assert arguments[-2:] == ["--config", f"/etc/fabrictime/{package.settings}"]
    assert values["Type"] == "notify"
    assert values["NoNewPrivileges"] == "yes"
    assert values["ProtectSystem"] == "strict"
    assert re.search(rf"useradd .*\n.* {values['User']}$", package.text("postinst"), re.MULTILINE)


@pytest.mark.parametrize("others", [set(), {SERVICES.settings, "signing.key"}], ids=["alone", "others"])
def test_a_purge_of_the_agent_leaves_files_of_others(tmp_path, others):
    folder, commands = tmp_path / "etc", tmp_path / "bin"
    folder.mkdir()
    for name in {"fabrictime.toml", "fleet.toml", "probe.key"} | others:
        (folder / name).touch()
    commands.mkdir()
    for name in ("systemctl", "getent"):
        (commands / name).symlink_to("/bin/false")
    text = AGENT.text("postrm").replace("/etc/fabrictime", str(folder))
    text = text.replace("/var/lib/fabrictime", str(tmp_path / "data"))
    environment = {"PATH": f"{commands}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", text, "postrm", "purge"], env=environment, check=True)
    assert {file.name for file in folder.glob("*")} == others
    assert folder.exists() == bool(others)


def test_an_installation_ends_well_if_a_service_does_not_start_again(tmp_path):
    for name in ("getent", "install"):
        (tmp_path / name).symlink_to("/bin/true")
    systemctl = tmp_path / "systemctl"
    systemctl.write_text('#!/bin/sh\n[ "$1" != try-restart ]\n')
    systemctl.chmod(0o755)
    text = SERVICES.text("postinst").replace("/run/systemd/system", str(tmp_path))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ["sh", "-c", text, "postinst", "configure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "a service did not start again" in done.stdout


def test_services_start_again_after_any_failure_but_not_at_once():
    """`fabrictime up` ends with 2 for full disks and late addresses, too."""
    for name, _ in SERVICES.files:
        values = dict(entries_of(SERVICES.text(name)))
        assert "RestartPreventExitStatus" not in values
        assert (values["Restart"], values["RestartSec"]) == ("on-failure", "30")


def test_the_template_names_services_that_exist():
    description = SERVICES.text("fabrictime-service@.service").partition("[Unit]")[0]
    [name] = re.findall(r"such as fabrictime-service@(\w+)", description)
    assert name in KINDS


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
@each_unit
def test_a_unit_allows_priorities_and_no_change_of_the_machine(package, unit):
    """The agent's audit reads clock and kernel log. A line of the filter that begins with ~ takes calls away
    again that an earlier one allowed."""
    allowed: set[str] = set()
    for line in (value for name, value in entries_of(package.text(unit)) if name == "SystemCallFilter"):
        calls = set().union(
            *(calls_of(name) if name[0] == "@" else {name} for name in line.removeprefix("~").split())
        )
        allowed = allowed - calls if line[0] == "~" else allowed | calls
    of_agent = {"adjtimex", "clock_adjtime", "syslog", "chown"} if package is AGENT else set()
    assert {"setpriority", "openat", *of_agent} <= allowed
    assert not {"clock_settime", "settimeofday", "mount", "init_module", "reboot", "setuid"} & allowed


@with_systemd
@each_unit
def test_systemd_accepts_a_unit_and_calls_it_safe(tmp_path, package, unit):
    file = tmp_path / unit.replace("@", "@worker")
    file.write_text(package.text(unit).replace("/opt/fabrictime/bin/python", "/bin/true"))
    verify = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    assert [line for line in verify.stderr.splitlines() if line.startswith(package.name)] == []
    command = ["systemd-analyze", "security", "--offline=yes", str(file)]
    security = subprocess.run(command, capture_output=True, text=True, check=False)
    exposure = re.search(r"Overall exposure level[^:]*: ([\d.]+)", security.stdout)
    assert exposure, security.stderr
    assert float(exposure[1]) <= (4.0 if package is AGENT else 2.5)
