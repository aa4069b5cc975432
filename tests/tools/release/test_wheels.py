"""Wheels of a release."""

import os
import subprocess
import sys
import zipfile

import pytest

from tools.release import wheels


def test_the_platform_tag_names_glibc_and_processor():
    assert wheels.platform_tag("aarch64") == "manylinux_2_28_aarch64"


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
