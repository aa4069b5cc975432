"""Measures the activity of a process from the kernel's accounting: CPU time, file and disk I/O, and stops.

The states of a process are sampled, because the kernel counts no time for them. A process that a cgroup has
frozen shows the state of a sleeping process, so its cgroup is read while it uses no processor.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from schemas.records import ProcessActivity

SAMPLE_S: Final = 0.5
"""s between two samples of a process."""
FIRST_IDLE_S: Final = 3.0
"""s without an operation after which a record states the activity of the process."""
_NS_PER_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STOPPED: Final = "Tt"
_DISK: Final = "D"
_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")


class Reading(NamedTuple):
    """Accounting of a process at one time: its state, and totals since the process began."""

    state: str
    cpu_ns: int
    io_bytes: int | None


def read_process(pid: int, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Reading | None:
    """Return the accounting of a process; None if it has ended, or is hidden because it is another user's."""
    try:
        stat = (proc / str(pid) / "stat").read_text("utf-8", "replace")
        fields = stat.rpartition(")")[2].split()
        cpu_ns = (int(fields[11]) + int(fields[12])) * _NS_PER_TICK
        state = "T" if _is_frozen(pid, proc, cgroups) else fields[0]
    except (OSError, IndexError, ValueError):
        return None
    return Reading(state, cpu_ns, _io_bytes(pid, proc))


def _io_bytes(pid: int, proc: Path) -> int | None:
    """Return the bytes that a process read plus wrote; None without the right to read the counts."""
    try:
        lines = (proc / str(pid) / "io").read_text("ascii", "replace").splitlines()
        totals = {name: int(number) for name, _, number in (line.partition(":") for line in lines)}
    except (OSError, ValueError):
        return None
    return totals.get("rchar", 0) + totals.get("wchar", 0)


def _is_frozen(pid: int, proc: Path, cgroups: Path) -> bool:
    """Return whether the process's cgroup is frozen, in cgroup v2 or by the freezer of cgroup v1."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(_is_group_frozen(line, cgroups) for line in lines)


def _is_group_frozen(line: str, cgroups: Path) -> bool:
    """Return whether the cgroup in a line such as `0::/job` or `6:freezer:/job` is frozen."""
    _, _, place = line.partition(":")
    controllers, _, path = place.partition(":")
    is_unified = not controllers
    if ".." in path.split("/") or not (is_unified or controllers == "freezer"):
        return False
    folder = path.lstrip("/")
    if not is_unified:
        return _has(cgroups / "freezer" / folder / "freezer.state", "FROZEN")
    roots = (cgroups, cgroups / "unified")
    return any(_has(root / folder / "cgroup.events", "frozen 1") for root in roots)


def _has(file: Path, text: str) -> bool:
    try:
        return text in file.read_text("ascii", "replace")
    except OSError:
        return False


class ActivityMeter:
    """Samples the activity of one process, and sums it up between two records."""

    def __init__(self, pid: int, now_s: float) -> None:
        self._pid = pid
        self._sampled_s = self._begin_s = now_s
        self._first = self._last = read_process(pid) if pid else None
        self._samples = self._disk = self._stopped = 0
        self._had_work = self._was_stopped = False
        """Whether the process had operations at the last record, and whether it was stopped then."""

    def heartbeat_s(self, usual_s: float) -> float:
        """Return the seconds until the next record without operations, `usual_s` or less.

        It is less for the first record after work, or if the process was stopped: other ranks may wait.
        """
        is_news = self._had_work or self.is_stopped != self._was_stopped
        return min(FIRST_IDLE_S, usual_s) if is_news else usual_s

    @property
    def is_stopped(self) -> bool:
        """Whether the newest sample found the process stopped."""
        return self._last is not None and self._last.state in _STOPPED

    def sample(self, now_s: float) -> None:
        """Sample the process's state and accounting if the next sample is due."""
        if not self._pid or now_s < self._sampled_s + SAMPLE_S:
            return
        self._sampled_s = now_s
        reading = read_process(self._pid)
        if reading is None:
            return
        self._last = reading
        self._first = self._first or reading
        self._samples += 1
        self._disk += reading.state == _DISK
        self._stopped += reading.state in _STOPPED

    def take(self, *, has_work: bool = False) -> ProcessActivity | None:
        """Return the activity since the last call; None if there was no sample since then.

        `has_work`: whether the process ended operations since the last call.
        """
        self._had_work, self._was_stopped = has_work, self.is_stopped
        first, last, samples = self._first, self._last, self._samples
        if first is None or last is None or not samples:
            return None
        activity: ProcessActivity = {
            "interval_ns": max(0, int((self._sampled_s - self._begin_s) * 1e9)),
            "cpu_ns": max(0, last.cpu_ns - first.cpu_ns),
            "io_bytes": _grown(first.io_bytes, last.io_bytes),
            "disk_share": self._disk / samples,
            "stopped_share": self._stopped / samples,
        }
        self._first = last
        self._begin_s = self._sampled_s
        self._samples = self._disk = self._stopped = 0
        return activity


def _grown(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else max(0, last - first)
