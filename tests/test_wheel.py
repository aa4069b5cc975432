"""A wheel built from the checkout carries every room with its extension modules, schemas and dashboards."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grafana.build import DASHBOARDS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow("builds a wheel")
@pytest.mark.timeout(900)
def test_wheel_carries_extensions_and_data(tmp_path):
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "-q",
            "--config-settings",
            f"build-dir={tmp_path / 'build'}",
            "-w",
            str(tmp_path),
            str(ROOT),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("fabrictime-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    sources = {path.stem for path in (ROOT / "native" / "core").glob("*.pyx")}
    modules = [name for name in names if name.startswith("native/core/") and name.endswith(".so")]
    carried = {Path(name).name.split(".")[0] for name in modules}
    assert carried == sources
    schemas = {path.name for path in (ROOT / "schemas").glob("*.avsc")} | {"released.jsonl"}
    assert schemas <= {Path(name).name for name in names if name.startswith("schemas/")}
    for package in ("producers", "streams", "actuators", "grafana", "fabrictime", "fabrictime_client"):
        assert f"{package}/__init__.py" in names
    headers = {name for name in names if name.endswith(".h")}
    folders = ("native/mpi", "native/collectives")
    own = {path.relative_to(ROOT).as_posix() for each in folders for path in (ROOT / each).glob("*.h")}
    programs = {"native/mpi/fabrictime_flow.h", "native/qp/fabrictime_qp.h"}
    assert headers == own | programs, "headers of programs and of the library for MPI"
    sources = {path.relative_to(ROOT).as_posix() for each in folders for path in (ROOT / each).glob("*.c")}
    programs_of_benches = (
        *("workload/mpi_job.c", "foreign/programs.c"),
        *("field/mpi_calls.c", "field/mpi_counter.c", "field/remade_job.c"),
    )
    sources |= {f"fabrictime/bench/{name}" for name in programs_of_benches}
    assert {name for name in names if name.endswith(".c")} == sources
    dashboards = {f"grafana/dashboards/{uid}.json" for uid in DASHBOARDS}
    assert {name for name in names if name.startswith("grafana/dashboards/")} == dashboards
    assert len(names) == len(set(names))
    assert "native/qp/libfabrictime-qp.so" in names
    assert "native/nccl/libnccl-profiler-fabrictime.so" in names
    assert not [name for name in names if name.startswith("native/nccl/nccl-")], "programs of its tests"
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyx")]
