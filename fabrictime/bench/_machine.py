"""Describes the machine of a measurement, without names or paths that identify its owner.

Sources are /proc and the versions of installed packages. The result is a JSON-ready dict.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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
