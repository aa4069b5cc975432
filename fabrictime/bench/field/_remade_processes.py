"""Reuses process ids: ended services and job processes are replaced by other programs with the same id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.field._mpi_kinds import MPICH, OPEN_MPI
from fabrictime.bench.field._remade import Operations, Remade
from fabrictime.bench.field._small_network import HOST
from fabrictime.testbed.processes.process_ids import start_at

JOB: Final = "remade-job"
REUSED: Final = ("log", "worker-1", f"prober {HOST}/eth1", "collectives", "flows")
"""Services whose process id is given to another process."""
_HERE: Final = Path(__file__).resolve().parent
_GONE_S: Final = 10.0
_JOB_S: Final = 30.0
_SLEEP: Final = ("sleep", "3600")


class Programs:
    """Programs that this bench started; leaving the `with` block ends them."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running:
            end(process)

    def take_id(self, pid: int) -> None:
        """Start a program that gets the process id `pid`, which is free. Raises OSError."""
        self._running.append(start_at(pid, _SLEEP))

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Add a program to end when the `with` block ends."""
        self._running.append(process)

    def are_running(self) -> bool:
        """Return whether all programs of the bench run."""
        return all(process.poll() is None for process in self._running)


def process_ids(remade: Remade, denied: str | None) -> None:
    """Give process ids of services and of a job to other programs; `denied` is a reason to skip this."""
    for service in REUSED:
        with Programs() as programs:
            reuse = partial(_reuse_id, remade, programs, service, denied)
            remade.measure(f"process id of {service}", reuse, also=programs.are_running)
    with (
        tempfile.TemporaryDirectory(prefix="fabrictime-remade-job-") as folder,
        contextlib.closing(Operations(remade)) as operations,
    ):
        _reuse_ids_of_job(remade, operations, Path(folder), denied)


def _reuse_id(remade: Remade, programs: Programs, service: str, denied: str | None) -> None:
    """Kill a service and start another program under its process id."""
    _check(denied)
    (pid,) = remade.pids(service).values()
    os.kill(pid, signal.SIGKILL)
    if wait_for(lambda: not Path(f"/proc/{pid}").exists(), _GONE_S) is None:
        raise RuntimeError(f"process {pid} is still there after {_GONE_S:.0f} s")
    programs.take_id(pid)


def _reuse_ids_of_job(remade: Remade, operations: Operations, folder: Path, denied: str | None) -> None:
    """Kill a job's process, and give its id to another program; repeat this with the job's next process."""
    names: list[str] = []
    """Names of the job's processes in records."""
    programs = Programs()

    def start(pid: int | None) -> subprocess.Popen[bytes]:
        argv, variables = _job(remade, folder)
        job = subprocess.Popen(argv, env=variables) if pid is None else start_at(pid, argv, env=variables)
        names.append(process_name(job.pid))
        return job

    def is_recorded(has_ended: bool, number: int) -> bool:
        return operations.has(
            lambda record: record["process"].startswith(names[number]) and record["ended"] is has_ended
        )

    def reuse_by_other() -> None:
        _check(denied)
        job = start(None)
        recorded_s = wait_for(lambda: is_recorded(has_ended=False, number=0), _JOB_S)
        end(job)
        if recorded_s is None:
            raise RuntimeError(f"process {names[0]} of the job was not recorded within {_JOB_S:.0f} s")
        programs.take_id(job.pid)

    def reuse_by_job() -> None:
        programs.__exit__()
        programs.add(start(int(names[0].partition("-")[0])))

    with programs:
        remade.measure(
            "process id of a job",
            reuse_by_other,
            JOB,
            lambda: programs.are_running() and is_recorded(has_ended=True, number=0),
        )
        if names:
            remade.measure(
                "process id of a job, by its next process",
                reuse_by_job,
                JOB,
                lambda: is_recorded(has_ended=False, number=1),
            )


def _check(denied: str | None) -> None:
    if denied is not None:
        raise CannotRun(denied)


def _job(remade: Remade, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a job of one process. Raises CannotRun without MPI."""
    for kind in (MPICH, OPEN_MPI):
        if kind.is_installed:
            program, profiler = kind.build(folder, _HERE / "remade_job.c"), kind.profiler(folder)
            variables = {
                "LD_PRELOAD": str(profiler),
                "FABRICTIME_COLLECTIVES": str(remade.data / "run" / "collectives.sock"),
                "FABRICTIME_JOB": JOB,
            }
            return [str(program)], os.environ | variables
    raise CannotRun(f"no MPI: install {MPICH.packages}")


def process_name(pid: int) -> str:
    """Return the id and the start time of a process, as its records name it."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return f"{pid}-{stat.rpartition(')')[2].split()[19]}"


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and wait for its end."""
    process.kill()
    process.wait()
