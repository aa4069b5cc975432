"""Runs a small MPI program as a job on a running fabric, for the benches and tests of workload monitoring."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench._waiting import end_child

_END_S: Final = 20.0
_SOURCE: Final = Path(__file__).with_name("mpi_job.c")


def compiled(folder: Path) -> Path:
    """Compile the jobs' program into a folder; return its path. Raises CannotRun without MPI."""
    program = folder / "mpi_job"
    command = ["mpicc", "-O2", "-o", str(program), str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotRun("no mpicc (Debian: apt-get install openmpi-bin libopenmpi-dev)") from None
    if done.returncode:
        raise CannotRun(f"mpicc: {done.stderr.strip()[-200:]}")
    return program


@dataclass(frozen=True, slots=True)
class MpiProgram:
    """The arguments of the program: a collective, its bytes, and the computing before it.

    Rank `slow_rank` computes `slow_ms` longer; a negative number means no rank. The job ends after
    `duration_s`, or, if that is 0, after `iterations`.
    """

    collective: str
    size_bytes: int
    compute_ms: float
    duration_s: float = 0.0
    iterations: int = 0
    slow_rank: int = -1
    slow_ms: float = 0.0

    def arguments(self) -> list[str]:
        """Return the arguments as on the command line."""
        end = f"{self.duration_s:g}s" if self.duration_s else str(self.iterations)
        slow = [str(self.slow_rank), f"{self.slow_ms:g}"] if self.slow_rank >= 0 else []
        return [self.collective, str(self.size_bytes), f"{self.compute_ms:g}", end, *slow]


class MpiJob:
    """A job that runs on hosts of a fabric, one rank each."""

    def __init__(
        self,
        data: Path,
        program: Path,
        hosts: Sequence[str],
        arguments: MpiProgram,
        options: Sequence[str],
    ) -> None:
        """Start the job; `options` are those of `fabrictime fabric mpi`, at least --job NAME."""
        command = [sys.executable, "-m", "fabrictime", "fabric", "mpi", "--dir", str(data)]
        command += ["--hosts", ",".join(hosts), *options, "--", str(program), *arguments.arguments()]
        self.name = options[options.index("--job") + 1]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._iterations_s: list[float] = []
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._read, name=f"job {self.name}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  # given above
        for line in self._process.stdout:
            with self._changed:
                self._iterations_s.append(float(line.split()[1]))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def iterations_s(self) -> list[float]:
        """Return the durations, s, of the iterations that have ended."""
        with self._changed:
            return list(self._iterations_s)

    def wait_iterations(self, count: int, timeout_s: float) -> None:
        """Wait until `count` iterations have ended. Raises CannotRun."""
        self._wait(lambda: len(self._iterations_s) >= count, f"{count} iterations", timeout_s)

    def wait(self, timeout_s: float) -> list[float]:
        """Wait until the job has ended; return the durations of its iterations, s. Raises CannotRun."""
        self._wait(lambda: self._over, "its end", timeout_s)
        return self.iterations_s()

    def _wait(self, condition: Callable[[], bool], name: str, timeout_s: float) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: condition() or self._over, timeout_s)
            if done and condition():
                return
        if not done:
            raise CannotRun(f"job {self.name}: no {name} within {timeout_s:g} s")
        assert self._process.stderr is not None  # noqa: S101  # given above
        raise CannotRun(f"job {self.name}: {self._process.stderr.read().strip()[-300:]}")

    def stop(self) -> None:
        """End the job now."""
        end_child(self._process, signal.SIGTERM, _END_S)
        self._thread.join(_END_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> MpiJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
