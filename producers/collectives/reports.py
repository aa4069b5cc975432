"""Collects the dumps of PyTorch's Flight Recorder in a separate thread, and makes a record of each dump."""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from producers.collectives.flight_recorder import MAX_BYTES, parse_dump, rank_of_name
from producers.collectives.process import TracedProcess
from producers.collectives.settings import CollectiveSettings
from producers.collectives.timeline import ClockReading
from schemas.records import CollectiveBatch, CollectiveSource

_log = logging.getLogger(__name__)

_SCAN_S: Final = 5.0
_MAX_FILES: Final = 4096
"""Maximum number of dumps in the folder; it bounds the time of a scan."""
_SETTLED_S: Final = 1.0
"""A dump counts as complete if it has not changed for this long."""
_PAST_S: Final = 3600.0
"""A dump is ignored if it was this old when the service started."""
_MAX_WARNINGS: Final = 20


class Recorded(NamedTuple):
    """A dump that was read: its file, modification time, rank and content."""

    path: Path
    changed_ns: int
    rank: int
    data: bytes


class RecorderDumps:
    """Collects the dumps of one host. `reads` is False if another host on this machine reads the folder."""

    def __init__(self, settings: CollectiveSettings, host: str, *, reads: bool) -> None:
        self._host = host
        self._folder = settings.flight_recorder_directory if reads else None
        self._scan_at_s = 0.0
        self._begin_s = time.time()
        self._is_over_limit = False
        self._known: set[tuple[str, int]] = set()
        """Name and time of change of each dump in the folder that was read."""
        self._found: queue.SimpleQueue[list[Recorded]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.failed = 0
        """Dumps that could not be read."""

    def poll(self, now_s: float) -> list[Recorded]:
        """Start a scan of the folder if one is due; return new dumps that were read since the last call."""
        is_running = self._thread is not None and self._thread.is_alive()
        if self._folder is not None and not is_running and now_s >= self._scan_at_s:
            self._scan_at_s = now_s + _SCAN_S
            self._run(self._folder)
        dumps: list[Recorded] = []
        while not self._found.empty():
            dumps += self._found.get()
        return dumps

    def _run(self, folder: Path) -> None:
        def guarded() -> None:
            try:
                self._found.put(self._scan(folder))
            except (OSError, ValueError) as error:
                self._warn(error)

        self._thread = threading.Thread(target=guarded, name="recorder dumps", daemon=True)
        self._thread.start()

    def _warn(self, error: Exception) -> None:
        self.failed += 1
        if self.failed <= _MAX_WARNINGS:
            _log.warning("%s: %s", self._host, error)

    def _scan(self, folder: Path) -> list[Recorded]:
        """Read the new dumps in a folder and return them.

        The folder may be /tmp: only file names with a rank count against the limit, names with `rank` first.
        """
        now_s = time.time()
        with os.scandir(folder) as entries:
            candidates = [
                (entry, rank) for entry in entries if (rank := rank_of_name(entry.name)) is not None
            ]
        candidates.sort(key=lambda candidate: "rank" not in candidate[0].name)
        is_over_limit = len(candidates) > _MAX_FILES
        if is_over_limit and not self._is_over_limit:
            _log.warning(
                "%s: %d names with a rank, expected at most %d: the others are not read",
                folder,
                len(candidates),
                _MAX_FILES,
            )
        self._is_over_limit = is_over_limit
        before, self._known = self._known, set()  # what is gone is forgotten
        dumps = (self._new_dump(entry, rank, now_s, before) for entry, rank in candidates[:_MAX_FILES])
        return [dump for dump in dumps if dump is not None]

    def _new_dump(
        self, entry: os.DirEntry[str], rank: int, now_s: float, before: Container[tuple[str, int]]
    ) -> Recorded | None:
        """Return a dump that is complete and was not read `before`; None otherwise."""
        try:
            status = entry.stat(follow_symlinks=False)
            key = entry.name, status.st_mtime_ns
            is_past = status.st_mtime < self._begin_s - _PAST_S
            is_settled = now_s - status.st_mtime >= _SETTLED_S
            if is_past or not is_settled or not stat.S_ISREG(status.st_mode):
                return None
            self._known.add(key)
            if key in before:
                return None
            return Recorded(Path(entry.path), status.st_mtime_ns, rank, _content(entry.path))
        except FileNotFoundError:  # deleted since the folder was listed
            return None
        except (OSError, ValueError) as error:  # the other dumps are read
            self._warn(error)
            return None

    def record(
        self, dump: Recorded, boot: str, shard: str, clock: ClockReading, processes: Sequence[TracedProcess]
    ) -> CollectiveBatch | None:
        """Convert a dump to a record; return None if the dump cannot be parsed."""
        system_to_fabric_ns = clock.fabric_ns + time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        system_to_fabric_ns -= clock.raw_ns + time.time_ns()
        try:
            content = parse_dump(dump.data, dump.rank, self._host, system_to_fabric_ns)
        except ValueError as error:
            self._warn(ValueError(f"{dump.path.name}: {error}"))
            return None
        times = [operation["begin_ns"] for operation in content.operations]
        return {
            "job": _job_of(dump.rank, processes),
            "tenant": None,
            "host": self._host,
            "boot": boot,
            "process": f"recorder-{dump.rank}-{dump.changed_ns}",
            "batch": 0,
            "shard": shard,
            "source": CollectiveSource.NCCL,
            "version": content.version,
            "begin_ns": min(times, default=clock.fabric_ns),
            "end_ns": max(
                [*times, *(operation["end_ns"] or 0 for operation in content.operations)],
                default=clock.fabric_ns,
            ),
            "clock": clock.state,
            "bound_ns": clock.bound_ns,
            "ended": True,
            "events_dropped": 0,
            "events_invalid": 0,
            "calls_ignored": 0,
            "communicators": content.communicators,
            "operations": content.operations,
            "transfers": [],
            "summaries": [],
            "queue_pairs": [],
            "counters": [],
            "ranks": content.ranks,
            "reports": [],
            "activity": None,
        }


def _content(path: str) -> bytes:
    """Read a dump file without following links or blocking on pipes. Raises ValueError above `MAX_BYTES`."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{Path(path).name}: more than {MAX_BYTES} bytes")
    return data


def _job_of(rank: int, processes: Sequence[TracedProcess]) -> str:
    """Return the job of a process with this rank, the host's only job, or else a name for all dumps."""
    jobs = {
        process.job for process in processes if process.job is not None and rank in process.ranks.values()
    }
    jobs = jobs or {process.job for process in processes if process.job is not None}
    return jobs.pop() if len(jobs) == 1 else "flight-recorder"
