"""Builds the project's wheels for x86-64 and aarch64, both on this machine.

zig includes the headers and symbols of glibc, so one machine builds for both processors and for an old glibc.
auditwheel checks all symbols. The Python of the build determines the Python of the wheel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
GLIBC: Final = "2.28"
"""The glibc of manylinux_2_28: RHEL 8, Debian 10, Ubuntu 20.04 and later have it."""
MACHINES: Final = ("x86_64", "aarch64")
BUILD: Final = "from scikit_build_core.build import build_wheel; import json, sys; " \
    "print(build_wheel(sys.argv[1], json.loads(sys.argv[2])))"  # fmt: skip


def platform_tag(machine: str) -> str:
    """Return the platform tag of the wheels for a processor."""
    return f"manylinux_{GLIBC.replace('.', '_')}_{machine}"


def build(machine: str, folder: Path, work: Path) -> Path:
    """Build the wheel for a processor into `folder`, and return its path. Raises SystemExit.

    `work` is a folder for the build, whose object files a later build reuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    compiler = _compiler(machine, work)
    options = {"build-dir": str(work / "build"), "cmake.define.CMAKE_C_COMPILER": str(compiler)}
    options["cmake.define.CMAKE_DISABLE_FIND_PACKAGE_MPI"] = "ON"  # a library for one MPI fits no other
    environment = dict(os.environ, CC=str(compiler), _PYTHON_HOST_PLATFORM=f"linux-{machine}")
    if machine != os.uname().machine:
        soabi = f"cpython-{sys.version_info.major}{sys.version_info.minor}-{machine}-linux-gnu"
        options["cmake.define.CMAKE_SYSTEM_NAME"] = "Linux"
        options["cmake.define.CMAKE_SYSTEM_PROCESSOR"] = machine
        environment["SETUPTOOLS_EXT_SUFFIX"] = f".{soabi}.so"
    raw = work / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    _run([sys.executable, "-c", BUILD, str(raw), json.dumps(options)], environment)
    (wheel,) = raw.glob("*.whl")
    repaired = _run(
        [
            sys.executable,
            "-m",
            "wheel",
            "tags",
            "--platform-tag",
            platform_tag(machine),
            "--remove",
            str(wheel),
        ]
    ).strip()
    _check(raw / repaired, machine)
    return Path(shutil.move(raw / repaired, folder / repaired))


def _compiler(machine: str, work: Path) -> Path:
    """Write the compiler script for a processor, which runs zig with its target; return the script's path."""
    program = work / "cc"
    target = f"{machine}-linux-gnu.{GLIBC}"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang cc -target {target} -g0 "$@"\n')
    program.chmod(0o755)
    return program


def _check(wheel: Path, machine: str) -> None:
    """Raise SystemExit if a library of the wheel needs a newer glibc, or a library outside of glibc."""
    shown = " ".join(_run([sys.executable, "-m", "auditwheel", "show", str(wheel)]).split())
    tag = re.search(rf'platform tag: "manylinux_(\d+)_(\d+)_{machine}"', shown)
    if tag is None or (int(tag[1]), int(tag[2])) > tuple(map(int, GLIBC.split("."))):
        raise SystemExit(f"fabrictime: {wheel.name} is no {platform_tag(machine)} wheel: {shown}")


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()[-60:]
        raise SystemExit(
            "\n".join([*lines, f"fabrictime: {' '.join(command[:4])} ended with {done.returncode}"])
        )
    return done.stdout
