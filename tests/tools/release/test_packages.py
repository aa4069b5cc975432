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


@pytest.fixture
def script(tmp_path):
    """Run a script of a package in a folder in place of /etc and /var, with commands that are noted."""
    commands = tmp_path / "bin"
    for folder in (commands, tmp_path / "etc/fabrictime", tmp_path / "run/systemd/system"):
        folder.mkdir(parents=True)

    def run(package, name, *arguments, helpers=True, failing="nothing"):
        noted = tmp_path / "noted"
        noted.unlink(missing_ok=True)
        for command in ("systemctl", "deb-systemd-invoke", "deb-systemd-helper"):
            (commands / command).unlink(missing_ok=True)
            if helpers or command == "systemctl":
                fails = f'case " $* " in *" {failing} "*) exit 1 ;; esac'
                (commands / command).write_text(f'#!/bin/sh\necho "{command} $*" >>{noted}\n{fails}\n')
                (commands / command).chmod(0o755)
        for command in ("getent", "install"):
            (commands / command).unlink(missing_ok=True)
            (commands / command).symlink_to("/bin/true")
        for command in ("userdel", "groupdel"):
            (commands / command).unlink(missing_ok=True)
            (commands / command).symlink_to("/bin/false")
        text = package.text(name)
        for folder in ("/etc/", "/var/lib/", "/run/systemd/"):
            text = text.replace(folder, f"{tmp_path}{folder}")
        # dash and coreutils alone: this machine may have Debian's helpers
        for command in ("rm", "rmdir"):
            if not (commands / command).exists():
                (commands / command).symlink_to(shutil.which(command))
        done = subprocess.run(
            ["/bin/sh", "-c", text, name, *arguments],
            env={"PATH": str(commands)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = noted.read_text().splitlines() if noted.exists() else []
        return lines, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("others", [set(), {SERVICES.settings, "signing.key"}], ids=["alone", "others"])
def test_a_purge_of_the_agent_leaves_files_of_others(tmp_path, script, others):
    folder = tmp_path / "etc/fabrictime"
    for name in {"fabrictime.toml", "fleet.toml", "probe.key"} | others:
        (folder / name).touch()
    script(AGENT, "postrm", "purge")
    assert {file.name for file in folder.glob("*")} == others
    assert folder.exists() == bool(others)


@pytest.mark.parametrize("helpers", [True, False], ids=["Debian", "others"])
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_an_upgrade_ends_well_if_the_daemon_does_not_start_again(tmp_path, script, package, helpers):
    """Debian's policy: a unit that fails must not leave the package half configured."""
    (tmp_path / "etc/fabrictime/fleet.toml").touch()
    restart = "restart" if package is AGENT else "try-restart"
    lines, text = script(package, "postinst", "configure", "0.0.9", helpers=helpers, failing=restart)
    command = "deb-systemd-invoke" if helpers else "systemctl"
    assert [line for line in lines if line.startswith(f"{command} {restart} {package.name}.service")]
    assert f"{restart} failed: {package.name}.service" in text


@pytest.mark.parametrize(("state", "action"), [("nothing", "enable"), ("was-enabled", "update-state")])
def test_an_upgrade_leaves_an_agent_disabled_that_was_disabled(script, state, action):
    lines, _ = script(AGENT, "postinst", "configure", "0.0.9", failing=state)
    assert f"deb-systemd-helper {action} fabrictime.service" in lines


@pytest.mark.parametrize(("versions", "is_first"), [("1", True), ("2", False)])
def test_the_first_installation_of_an_rpm_enables_the_agent(script, versions, is_first):
    lines, _ = script(AGENT, "postinst", versions, helpers=False)
    assert ("systemctl enable --quiet fabrictime.service" in lines) == is_first


def test_the_upgrade_of_an_rpm_starts_no_agent_that_was_stopped(tmp_path, script):
    (tmp_path / "etc/fabrictime/fleet.toml").touch()
    lines, _ = script(AGENT, "postinst", "2", helpers=False)
    assert lines == ["systemctl daemon-reload", "systemctl try-restart fabrictime.service"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_an_upgrade_stops_no_daemon_and_a_removal_does(script, package):
    for argument in ("upgrade", "1", "deconfigure"):
        assert script(package, "prerm", argument)[0] == []
    lines, _ = script(package, "prerm", "remove", failing="stop")
    assert lines[0].startswith(f"deb-systemd-invoke stop {package.name}.service")


@pytest.mark.parametrize(("argument", "is_left"), [("purge", False), ("0", False), ("remove", True)])
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_purge_forgets_that_units_were_enabled(tmp_path, script, package, argument, is_left):
    names = [name.replace("@", "@worker") for name, _ in package.files if name.endswith(".service")]
    folder = tmp_path / "etc/systemd/system/multi-user.target.wants"
    folder.mkdir(parents=True)
    for name in [*names, "other.service"]:
        (folder / name).symlink_to("/nowhere")
    script(package, "postrm", argument)
    assert {path.name for path in folder.glob("*")} == {"other.service", *(names if is_left else ())}


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
