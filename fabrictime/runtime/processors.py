"""Counts the CPUs that this process may use: by its affinity, and by the quota of its cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/proc/self/cgroup")
MOUNT: Final = Path("/sys/fs/cgroup")
V1_CONTROLLERS: Final = ("cpu,cpuacct", "cpu", "cpuacct,cpu")
"""Folders in which cgroup v1 may have its processor controller."""


def usable_processors(cgroup: Path = CGROUP, mount: Path = MOUNT) -> int:
    """Return the number of CPUs that this process may use, rounded up to a whole number."""
    quota = min(_quotas(cgroup, mount), default=float("inf"))
    allowed = len(os.sched_getaffinity(0))
    return allowed if quota >= allowed else max(1, -int(-quota // 1))


def _quotas(cgroup: Path, mount: Path) -> Iterator[float]:
    """Yield the CPU quota, in CPUs, of this process's cgroup and of each parent cgroup that has one."""
    try:
        lines = cgroup.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _with_parents(mount, path):
                yield from _quota_v2(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            for name in V1_CONTROLLERS:
                for folder in _with_parents(mount / name, path):
                    yield from _quota_v1(folder)


def _with_parents(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a cgroup and of its parents; a container sees its own cgroup as the root."""
    folder = mount / path.lstrip("/")
    yield folder
    while folder != mount:
        folder = folder.parent
        yield folder


def _quota_v2(file: Path) -> Iterator[float]:
    try:
        quota, period = file.read_text(encoding="ascii").split()
        if quota != "max":
            yield int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return


def _quota_v1(folder: Path) -> Iterator[float]:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if quota > 0 and period > 0:
        yield quota / period
