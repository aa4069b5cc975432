"""Describes the machine of a measurement, and reads memory of processes, niceness and free ports.

The description comes from /proc and the versions of installed packages. It is a JSON-ready dict without names
or paths that identify the machine's owner.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

SPIN: Final = "import time\nend_s = time.monotonic() + 1800\nwhile time.monotonic() < end_s: pass"
"""A program that keeps a processor busy for at most half an hour, even if the bench was killed."""
_PACKAGES = (
    "fabrictime",
    "aiokafka",
    "chdb",
    "clickhouse-connect",
    "confluent-kafka",
    "fastavro",
    "faust-streaming",
    "numpy",
)


def machine() -> dict[str, Any]:
    """Return CPU model, usable cores, memory in GiB, kernel, Python and the versions of the libraries."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * page_bytes / 2**30, 1),
        "load_1min_at_start": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }


def peak_mb(process: int | None = None) -> float:
    """Return the peak resident memory, in MB, of a process; of this one if `process` is None.

    getrusage is of no use: after exec its ru_maxrss still holds the peak of the parent (exec_mmap in Linux).
    """
    status = Path(f"/proc/{process or 'self'}/status")
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"{status} has no line VmHWM: the process has ended")


@contextmanager
def at_niceness(value: int) -> Iterator[None]:
    """Run the block and its children at a niceness or, without permission, at the present one."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, value)
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes that keep processors busy, until the block ends."""
    with ExitStack() as stack:
        for _ in range(count):
            spinning = subprocess.Popen([sys.executable, "-c", SPIN])
            stack.callback(spinning.wait)
            stack.callback(spinning.kill)
        yield


def free_ports(count: int) -> list[int]:
    """Return `count` TCP ports of loopback on which no socket listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(models, platform.machine())
