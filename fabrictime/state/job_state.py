"""The diagnoses of the past hour, job by job.

A Diagnosis of a thousand ranks has thousands of figures, but few readers need them. The state holds the head
of each job's newest record, a few figures of every interval, and the encoded messages within a limit. A
reader decodes the message of the interval that it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas.records import Verdict

HEAD_END: Final = "bound_ns"
"""Last field of the head of a record. The split of each rank and the flows follow it."""
KEPT_NS: Final = 3_600_000_000_000
MAX_JOBS: Final = 1_000
"""Largest number of jobs in memory. If there are more, the one whose newest record is oldest is dropped."""
MAX_INTERVALS: Final = 2_000
"""Largest number of intervals of one job: for an hour, more than one every two seconds."""
MAX_BYTES: Final = 96 * 1024 * 1024
"""Largest size of the encoded messages of all jobs together. Above it, the oldest of the largest job are
dropped, but their figures stay.
"""
MAX_EARLIER: Final = 16
"""How many intervals back ranks and flows are searched; they appear once a minute, in 12 intervals."""
SILENT_NS: Final = 30_000_000_000
"""Time without a diagnosis after which a job has ended, ns."""


class Interval(NamedTuple):
    """One diagnosis of a job: its interval, its verdict, and the figures for charts."""

    key: str
    begin_ns: int
    end_ns: int
    verdict: str
    blames_network: bool
    subject: str
    iteration_ns: int | None
    expected_iteration_ns: int | None
    bus_bps: float | None
    expected_bus_bps: float | None

    @property
    def order(self) -> tuple[int, int]:
        """Key for sorting: end of the interval, then the record's number."""
        return self.end_ns, int(self.key.rpartition("-")[2])


@dataclass(slots=True)
class Job:
    """A job: the head of its newest diagnosis, its intervals by time, and messages by interval key."""

    head: Mapping[str, Any]
    intervals: list[Interval] = field(default_factory=list)
    messages: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    """Bytes of all messages of the job."""

    @property
    def newest(self) -> Interval:
        """The newest interval of the job."""
        return self.intervals[-1]

    def is_running(self, now_ns: int) -> bool:
        """Return whether the job's newest interval ended within the last `SILENT_NS`."""
        return self.newest.end_ns > now_ns - SILENT_NS

    def drop(self, key: str) -> int:
        """Drop the encoded message of an interval. Return its size in bytes."""
        size = len(self.messages.pop(key, b""))
        self.size -= size
        return size


def interval_of(record: Mapping[str, Any]) -> Interval:
    """Return the interval of a diagnosis or of its head."""
    return Interval(
        f"{record['begin_ns']}-{record['number']}",
        record["begin_ns"],
        record["end_ns"],
        Verdict(record["verdict"]).name,
        record["blames_network"],
        record["subject"],
        record["iteration_ns"],
        record["expected_iteration_ns"],
        record["bus_bps"],
        record["expected_bus_bps"],
    )


class JobState:
    """The jobs with a diagnosis in the past hour, by name. All collections are bounded."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._bytes = 0

    def take(self, head: Mapping[str, Any], value: bytes) -> None:
        """Add one diagnosis: its head, and the whole encoded message."""
        interval, name = interval_of(head), head["job"]
        job = self.jobs.pop(name, None) or Job(head)
        self.jobs[name] = job  # re-inserted, so that the dict is ordered by the last record
        if interval.key in job.messages or interval in job.intervals[-2:]:
            return  # read a second time
        job.intervals.append(interval)
        if len(job.intervals) > 1 and interval.order < job.intervals[-2].order:
            job.intervals.sort(key=lambda interval: interval.order)
        if job.newest is interval:
            job.head = head
        job.messages[interval.key] = value
        job.size += len(value)
        self._bytes += len(value)
        self._drop_old(job)
        while len(self.jobs) > MAX_JOBS:
            self._bytes -= self.jobs.pop(next(iter(self.jobs))).size
        while self._bytes > MAX_BYTES:
            largest = max(self.jobs.values(), key=lambda job: job.size)
            self._bytes -= largest.drop(next(iter(largest.messages)))

    def message(self, name: str, key: str | None = None) -> tuple[str, bytes] | None:
        """Return key and encoded message of an interval (`key` None: the newest); None if it was dropped."""
        job = self.jobs.get(name)
        if job is None:
            return None
        key = job.newest.key if key is None else key
        value = job.messages.get(key)
        return None if value is None else (key, value)

    def earlier(self, name: str, key: str) -> list[bytes]:
        """Return the messages of the intervals before `key`, the newest first.

        If the interval's own message has no ranks and flows, an earlier message has them.
        """
        job = self.jobs.get(name)
        keys = [interval.key for interval in job.intervals] if job is not None else []
        if job is None or key not in keys:
            return []
        before = keys[max(0, keys.index(key) - MAX_EARLIER) : keys.index(key)]
        return [
            job.messages[interval_key] for interval_key in reversed(before) if interval_key in job.messages
        ]

    def _drop_old(self, job: Job) -> None:
        oldest_ns = job.newest.end_ns - KEPT_NS
        recent_intervals = [
            interval for interval in job.intervals[-MAX_INTERVALS:] if interval.end_ns >= oldest_ns
        ]
        for interval in job.intervals[: len(job.intervals) - len(recent_intervals)]:
            self._bytes -= job.drop(interval.key)
        job.intervals = recent_intervals
