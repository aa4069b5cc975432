"""Shell lines that load the profilers into a job, with the paths of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from native import mpi, nccl

SOCKET: Final = "run/collectives.sock"
"""Socket of the service collectives, in the data directory of `up`."""


def export_lines(state_file: Path | None) -> list[str]:
    """Return shell lines for a job on this machine. `state_file` is `run/state.json`, which `up` writes."""
    socket = SOCKET if state_file is None else str((state_file.parent.parent / SOCKET).absolute())
    profilers = ((nccl.library, "export NCCL_PROFILER_PLUGIN={}"), (mpi.library, "export LD_PRELOAD={}"))
    lines = [line.format(path) for library, line in profilers if (path := _path(library)) is not None]
    return [f"export FABRICTIME_JOB=NAME FABRICTIME_COLLECTIVES={socket}", *lines]


def _path(library: Callable[[], Path]) -> Path | None:
    try:
        return library()
    except FileNotFoundError:  # a machine that shows the page and runs no jobs
        return None
