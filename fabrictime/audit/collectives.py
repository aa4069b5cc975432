"""Runs collectives over several hosts with nccl-tests or rccl-tests, by mpirun or srun, and finds slow hosts.

One process on each host drives all of its GPUs. Runs follow one another, each with a time limit. First all
hosts together run every combination of settings. If the best bandwidth is low, groups of the hosts run the
best setting, to find the slow hosts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from producers.audit.load.benchmarks import bus_bandwidth
from producers.audit.load.one_host import ALL_REDUCE, QUEUE_PAIRS, SHAPES
from schemas.input_error import InputError
from streams.audit.traffic.bisection import Bisected, bisect
from streams.audit.traffic.collectives import is_low

OPERATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    f"{shape}, {pairs} queue pairs": {"NCCL_ALGO": algorithm, "NCCL_IB_QPS_PER_CONNECTION": str(pairs)}
    for shape, algorithm in SHAPES.items()
    for pairs in QUEUE_PAIRS
}
"""Environment variables of each setting, by its name. RCCL reads NCCL's variables too."""
TERMINATED_S: Final = 5.0
"""Time that a launcher has to end the processes of other hosts."""


class NoFigure(Exception):
    """A run without a valid bandwidth: it failed, took too long, or computed wrong values."""


class Launch(NamedTuple):
    """The launcher, program and limits with which collectives are started."""

    launcher: str
    """Path of mpirun or srun."""
    program: str
    gpus: int
    """Number of GPUs on each host."""
    options: tuple[str, ...] = ()
    """Further arguments of the launcher."""
    limit_s: float = 120.0

    def command(self, hosts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return the command that runs all-reduce on `hosts`."""
        count, names = str(len(hosts)), ",".join(hosts)
        variables = [f"{name}={value}" for name, value in environment.items()]
        if os.path.basename(self.launcher) == "srun":
            placed = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={names}"]
            placed.append(f"--export={','.join(['ALL', *variables])}")
        else:
            placed = ["-np", count, "--host", names, "--map-by", "node"]
            for variable in variables:
                placed += ["-x", variable]
        return [self.launcher, *placed, *self.options, self.program, *ALL_REDUCE, str(self.gpus)]

    def bandwidth(self, hosts: Sequence[str], environment: Mapping[str, str]) -> float:
        """Run all-reduce on `hosts`. Return the bus bandwidth, GB/s. Raises NoFigure."""
        try:
            gb_per_s, wrong = bus_bandwidth(_output(self.command(hosts, environment), self.limit_s))
        except ValueError as error:
            raise NoFigure(str(error)) from None
        if wrong:
            raise NoFigure(f"{wrong:,} wrong values")
        return gb_per_s


def default_launcher() -> str:
    """Return the path of srun in a Slurm allocation, else of mpirun. Raises ValueError without either."""
    names = ("srun", "mpirun") if "SLURM_JOB_ID" in os.environ else ("mpirun",)
    launcher = next((path for name in names if (path := shutil.which(name))), None)
    if launcher is None:
        raise InputError(
            f"{' and '.join(names)}: not installed, expected a launcher; --launcher names another"
        )
    return launcher


def _output(command: Sequence[str], limit_s: float) -> str:
    """Run a command and return its output. Raises NoFigure if it fails or takes longer than `limit_s`."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise NoFigure(f"{command[0]}: {error.strerror}") from None
    try:
        printed, complaint = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise NoFigure(f"no end within {limit_s:g} s") from None
    finally:
        _end(child)
    if child.returncode:
        last = (complaint.strip().splitlines() or ["no message"])[-1]
        raise NoFigure(f"exit code {child.returncode}, {last[:200]}")
    return printed


def _end(child: subprocess.Popen[str]) -> None:
    """End a launcher by SIGTERM, so that it ends its processes on other hosts, and else by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=TERMINATED_S)


class Figures(NamedTuple):
    """Bandwidths of all hosts together by setting, errors of failed settings, and result of the search."""

    by_setting: Mapping[str, float]
    errors: Mapping[str, str]
    search: Bisected | None


def measure_all(
    launch: Launch,
    hosts: Sequence[str],
    minimum: float | None,
    on_run: Callable[[str], None] = lambda text: None,
) -> Figures:
    """Run every setting over all hosts, then search for slow hosts if the best bandwidth is low.

    `minimum` is the lowest good bandwidth of the machine type, GB/s; None if unknown. Raises ValueError for
    fewer than two hosts.
    """
    figures: dict[str, float] = {}
    errors: dict[str, str] = {}
    for setting, environment in SETTINGS.items():
        on_run(f"{len(hosts)} hosts, {setting}")
        try:
            figures[setting] = launch.bandwidth(hosts, environment)
        except NoFigure as error:
            figures[setting], errors[setting] = 0.0, str(error)
    if not is_low(figures, minimum):
        return Figures(figures, errors, None)
    best = max(figures, key=lambda setting: figures[setting])

    def measure(members: tuple[str, ...]) -> float:
        on_run(f"{', '.join(_shortened(members))}, {best}")
        try:
            return launch.bandwidth(members, SETTINGS[best])
        except NoFigure:
            return 0.0

    return Figures(figures, errors, bisect(hosts, measure, minimum))


def _shortened(members: Sequence[str]) -> Iterator[str]:
    yield from members[:3]
    if len(members) > 3:
        yield f"and {len(members) - 3} more"
