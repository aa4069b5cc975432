"""The agent's Debian package: its control file, and its life on a clean host."""

import os
import subprocess
from pathlib import Path

import pytest

from fabrictime.bench.operate import install
from tools.release import deb, tree


def test_the_control_file_declares_the_python_of_the_wheel():
    fields = dict(line.split(": ", 1) for line in deb.control("aarch64", 7).splitlines() if ": " in line)
    assert fields["Architecture"] == "arm64"
    assert f"python3 (>= {tree.PYTHON})" in fields["Depends"]
    assert fields["Installed-Size"] == "7"


@pytest.mark.parametrize("script", deb.SCRIPTS)
def test_each_script_is_shell_that_stops_at_an_error(script):
    path = tree.SOURCES / script
    assert path.read_text().startswith("#!/bin/sh\n")
    assert "\nset -e\n" in path.read_text()
    subprocess.run(["sh", "-n", str(path)], check=True)


@pytest.fixture
def package():
    packages = sorted(install.PACKAGES.glob("fabrictime_*_amd64.deb"))
    reason = install._reason(packages)
    if reason is not None:
        pytest.skip(reason)
    return packages[-1]


@pytest.mark.slow("makes a root file system of Debian")
@pytest.mark.timeout(1800)
def test_a_removal_keeps_settings_and_data_and_a_purge_deletes_them(package, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    install._unpack_root(root, tmp_path, _archive())
    (root / "fabrictime.deb").write_bytes(package.read_bytes())
    inside = ["chroot", str(root), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]

    def run(*command):
        done = subprocess.run([*inside, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "fabrictime init --log HOST:PORT --write" in run("dpkg", "--install", "/fabrictime.deb")
    assert run("fabrictime", "--version").strip() == deb.version()
    assert run("dpkg", "--verify", "fabrictime") == ""
    (root / "etc/fabrictime/probe.key").write_text("ab" * 32)
    (root / "var/lib/fabrictime/data").write_text("kept")
    run("dpkg", "--install", "/fabrictime.deb")  # an upgrade
    run("dpkg", "--remove", "fabrictime")
    assert not (root / "opt/fabrictime/bin").exists()
    assert (root / "etc/fabrictime/probe.key").exists()
    assert (root / "var/lib/fabrictime/data").read_text() == "kept"
    run("dpkg", "--purge", "fabrictime")
    assert not (root / "etc/fabrictime").exists()
    assert not (root / "var/lib/fabrictime").exists()
    assert "fabrictime" not in (root / "etc/passwd").read_text()


def _archive():
    """Return a root file system that an earlier run has made, if the environment names one."""
    path = os.environ.get("FABRICTIME_TEST_ROOT")
    return Path(path) if path else None
