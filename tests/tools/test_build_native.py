"""The developer's build: a failed step ends with its output, and the command means this checkout."""

import os
import subprocess
import sys
import sysconfig

import pytest

from tools import build_native


def test_a_failed_step_ends_the_build_with_its_output():
    command = [sys.executable, "-c", "print('no compiler'); raise SystemExit(3)"]
    with pytest.raises(SystemExit) as ended:
        build_native._run(command, dict(os.environ))
    assert "no compiler" in str(ended.value)
    assert str(ended.value).endswith("ended with 3")


def test_the_command_and_the_path_are_written_once(tmp_path, monkeypatch):
    packages = tmp_path / "lib"
    packages.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(packages))
    build_native._link(tmp_path)
    script, path = tmp_path / "fabrictime", packages / "fabrictime-checkout.pth"
    assert path.read_text().splitlines()[0] == str(build_native.ROOT)
    assert os.access(script, os.X_OK)
    written_ns = script.stat().st_mtime_ns, path.stat().st_mtime_ns
    build_native._link(tmp_path)
    assert (script.stat().st_mtime_ns, path.stat().st_mtime_ns) == written_ns
    done = subprocess.run(
        [sys.executable, "-c", "import ast, sys; ast.parse(sys.stdin.read())"],
        input=script.read_text(),
        text=True,
        check=False,
    )
    assert done.returncode == 0


def test_an_mpi_that_was_installed_later_has_its_profiler_built(tmp_path, monkeypatch):
    monkeypatch.setattr(build_native, "ROOT", tmp_path)
    assert not build_native._has_new_mpi(str(tmp_path))
    (tmp_path / "mpicc").write_text("#!/bin/sh\n")
    (tmp_path / "mpicc").chmod(0o755)
    assert build_native._has_new_mpi(str(tmp_path))
    profiler = tmp_path / "native/mpi/libfabrictime-mpi.so"
    profiler.parent.mkdir(parents=True)
    profiler.touch()
    assert not build_native._has_new_mpi(str(tmp_path))
