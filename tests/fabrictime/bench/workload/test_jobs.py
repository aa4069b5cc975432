"""The program of the benches' MPI jobs: its arguments, and its run without a fabric."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.workload._jobs import MpiProgram, compiled


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (MpiProgram("allreduce", 4_000, 2.5, iterations=7), ["allreduce", "4000", "2.5", "7"]),
        (
            MpiProgram("alltoall", 9, 0, duration_s=60, slow_rank=2, slow_ms=30),
            ["alltoall", "9", "0", "60s", "2", "30"],
        ),
    ],
)
def test_arguments(program: MpiProgram, arguments: list[str]) -> None:
    assert program.arguments() == arguments


@pytest.mark.parametrize("collective", ["allreduce", "alltoall", "exchange"])
def test_each_iteration_is_printed(tmp_path: Path, collective: str) -> None:
    try:
        program = compiled(tmp_path)
    except CannotRun as reason:
        pytest.skip(str(reason))
    arguments = MpiProgram(collective, 4_000, 1, iterations=5, slow_rank=1, slow_ms=20).arguments()
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    times = [line.split() for line in done.stdout.splitlines()]
    assert [number for number, _ in times] == ["0", "1", "2", "3", "4"]
    if collective != "exchange":
        late = [float(took_s) >= 0.02 for _, took_s in times[1:]]
        assert sum(late) >= 2  # a rank 0 that waits for a processor measures shorter iterations
