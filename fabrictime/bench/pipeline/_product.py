"""Starts `fabrictime up` as users do and observes its processes from outside: processor time by service.

All processor times are those of /proc/PID/stat, in seconds; their resolution is 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from fabrictime.bench import Progress
from fabrictime.bench._fabric import up_in_folder, with_any_ports
from fabrictime.runtime import status
from fabrictime.testbed.control import ControlClient, socket_path
from producers.sim import control as sim_control

SETTINGS: Final = with_any_ports("")
"""The default settings, but with any free ports, so that several products can run on one machine."""
LIMIT: Final = "30m"
"""Time after which `up` ends by itself, even if the bench was killed."""
_TICKS_HZ: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cores:
    """The processor seconds per second that a service uses."""

    service: str
    """Name of the service as in `fabrictime status`, such as `prober h1/eth0`, or `up` for the starter."""
    cores: float

    @property
    def kind(self) -> str:
        """The service without its number or NIC, such as `worker` or `prober`."""
        return self.service.split()[0].rstrip("0123456789").rstrip("-").replace("-", "_")


class Product:
    """A running `fabrictime up`, with its log, its services and their processor time."""

    def __init__(self, bootstrap: str, data: Path) -> None:
        self.bootstrap, self.data = bootstrap, data
        state = status.read(data)
        self.up_pid: int = state["pid"]
        self.fleet: str = state["fleet"]

    def services(self) -> dict[int, str]:
        """Return the service of each process by process id; the starting process is named `up`."""
        rows = status.read(self.data)["children"]
        return {self.up_pid: "up"} | {row["pid"]: row["name"] for row in rows if row["pid"] is not None}

    def workers(self) -> list[int]:
        """Return the process ids of the stream workers."""
        return [pid for pid, name in self.services().items() if name.startswith("worker")]

    def cpu_times(self) -> CpuTimes:
        """Return the processor time that each service has used so far."""
        return CpuTimes(time.monotonic(), self._cpu_s())

    def links(self) -> int:
        """Return the number of directed links of the fleet."""
        if self.fleet == "sim":
            return int(self._ask_sim()["links"])
        return len(ControlClient(socket_path(self.data)).ask("show")["links"])

    def sim_now_s(self) -> float | None:
        """Return the simulated fleet's own time, s, or None if the fleet is not simulated."""
        if self.fleet != "sim":
            return None
        return float(self._ask_sim()["now_ns"]) / 1e9

    def _ask_sim(self) -> dict[str, Any]:
        reply: dict[str, Any] = sim_control.ask(sim_control.socket_path(self.data), "status")
        return reply

    def _cpu_s(self) -> dict[tuple[str, int], float]:
        """Return processor seconds by service and process; each process counts for its nearest service.

        The nearest service is the process itself or its closest ancestor that is one.
        """
        services = self.services()
        times: dict[tuple[str, int], float] = {}
        up = psutil.Process(self.up_pid)
        for process in [up, *up.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                used = process.cpu_times()
                times[_service_of(process, services), process.pid] = float(used.user + used.system)
        return times


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The processor time that all processes have used at one moment."""

    at_s: float
    by_process: Mapping[tuple[str, int], float]

    def cores_since(self, before: CpuTimes) -> list[Cores]:
        """Return the cores that each service used since `before`, largest first."""
        used_s: dict[str, float] = {}
        for (service, pid), seconds in self.by_process.items():
            spent_s = max(0.0, seconds - before.by_process.get((service, pid), 0.0))
            used_s[service] = used_s.get(service, 0.0) + spent_s
        span_s = self.at_s - before.at_s
        return sorted(
            (Cores(service, spent_s / span_s) for service, spent_s in used_s.items()),
            key=lambda row: -row.cores,
        )


def threads_cpu_s(pid: int) -> dict[int, float]:
    """Return the processor seconds of each thread of a process, by thread id."""
    times: dict[int, float] = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            times[int(path.name)] = (int(fields[11]) + int(fields[12])) / _TICKS_HZ
    return times


@contextlib.contextmanager
def running_product(progress: Progress, fleet: str | None, settings: str = "") -> Iterator[Product]:
    """Run `up` on a fleet, or the default one if None, with extra `settings`; yield the running product.

    Raises CannotRun.
    """
    progress("up: starting")
    options = ["--for", LIMIT, *([] if fleet is None else ["--fleet", fleet])]
    with up_in_folder(SETTINGS + settings, *options) as (bootstrap, data):
        yield Product(bootstrap, data)


def _service_of(process: psutil.Process, services: Mapping[int, str]) -> str:
    """Return the service of a process; for a helper process, that of the process that started it."""
    for ancestor in (process, *process.parents()):
        if ancestor.pid in services:
            return services[ancestor.pid]
    return "up"
