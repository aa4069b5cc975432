"""A release as `make dist` builds it: wheels of both processors, the package on a clean host, no index."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fabrictime.bench.operate import install
from tools.release import deb, offline, wheels


@pytest.mark.slow("compiles native/ for both processors")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", wheels.MACHINES)
def test_a_wheel_holds_libraries_of_its_processor_alone(tmp_path, machine):
    wheel = wheels.build(machine, tmp_path / "dist", tmp_path / "work")
    assert wheel.name.endswith(f"-manylinux_2_28_{machine}.whl")
    elf_machine = {"x86_64": 0x3E, "aarch64": 0xB7}[machine]
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        assert any(name.startswith("native/core/probe.") for name in libraries)
        for name in libraries:
            assert int.from_bytes(archive.read(name)[18:20], "little") == elf_machine, name
            assert name.endswith(f"-{machine}-linux-gnu.so") or "cpython" not in name
    if machine == os.uname().machine:
        target = tmp_path / "installed"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--target",
            str(target),
        ]
        subprocess.run([*pip, str(wheel)], check=True)
        code = "import native.core.probe, fabrictime; print(native.core.probe.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(target)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert str(target) in done.stdout


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


@pytest.mark.slow("fetches the wheels of the agent")
@pytest.mark.timeout(900)
def test_the_agent_installs_without_an_index(tmp_path):
    from tools.release.__main__ import DIST

    wheels = sorted(DIST.glob("fabrictime-*x86_64.whl"))
    if not wheels:
        pytest.skip("no wheel in dist/: make dist ARGS=wheels builds it")
    folder = offline.collect(wheels[-1], "x86_64", tmp_path / "offline")
    for line in (folder / offline.SUMS).read_text().splitlines():
        checksum, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(folder)]
    subprocess.run([*pip, "--target", str(target), "fabrictime"], check=True)
    assert (target / "fabrictime").is_dir()
