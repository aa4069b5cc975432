"""Keeps the records of one process of a job, decoded once and indexed by number and by end time.

A job of a thousand ranks keeps 60,000 records. An evaluation reads only the records of the last seconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from schemas.records import ClockSync, CollectiveBatch, CollectiveSource, NicCounter, RankState
from streams.diagnosis.job.columns import (
    IS_COLLECTIVE,
    Op,
    Rows,
    Sum,
    operation_rows,
    pair_key,
    queue_pair_rows,
    summary_rows,
    transfer_rows,
)
from streams.diagnosis.rules import NEVER_NS

MAX_MEMBERS: Final = 4_096
"""Largest number of communicators remembered per process."""


class Activity(NamedTuple):
    """Activity of a process between two records, by the kernel's accounting."""

    cpu_share: float
    """Processors that it used."""
    io_bps: float
    """bit/s of files and pipes that it read and wrote."""
    disk_share: float
    """Share of the time in which it waited for a disk or a driver."""
    stopped_share: float
    """Share of the time in which a signal, a debugger or its cgroup stopped it."""


class Member(NamedTuple):
    """A process's membership of a communicator: the communicator, and the process's rank in it."""

    communicator: str
    rank: int
    ranks: int
    nics: tuple[str, ...]
    gpu: str | None

    @property
    def size_first(self) -> tuple[int, str]:
        """Sort key of memberships: the membership of the largest communicator comes first."""
        return -self.ranks, self.communicator


@dataclass(frozen=True, slots=True)
class Batch:
    """One record of a process, decoded into columns."""

    process: int
    number: int
    append_ns: int
    begin_ns: int
    end_ns: int
    synced: bool
    bound_ns: float
    ended: bool
    dropped: int
    invalid: int
    ignored: int
    operations: Rows
    has_running: bool
    transfers: Rows
    summaries: Rows
    queue_pairs: Rows
    nics: tuple[str, ...]
    """NICs of the record's queue pairs."""
    counters: tuple[NicCounter, ...]
    ranks: tuple[RankState, ...]
    activity: Activity | None = None

    @property
    def running(self) -> Rows:
        """Operations that had not ended at the end of the record's interval."""
        rows = self.operations
        return rows[rows[:, Op.END] == NEVER_NS] if self.has_running else rows[:0]

    @property
    def size(self) -> int:
        """Number of rows of all kinds in the record."""
        return (
            len(self.operations)
            + len(self.transfers)
            + len(self.summaries)
            + len(self.queue_pairs)
            + len(self.ranks)
        )


@dataclass(slots=True)
class Process:
    """A process of the job with its records. `key`: host, boot and process id."""

    key: tuple[str, str, str]
    source: CollectiveSource
    version: str
    joined: dict[str, Member] = field(default_factory=dict)
    joined_at: dict[str, int] = field(default_factory=dict)
    _batches: dict[int, Batch] = field(default_factory=dict)
    """Maps number to record, for the time that the view keeps."""
    _numbers: list[int] = field(default_factory=list)
    """Numbers of all records; of those with running operations; of those that report the end of the
    process."""
    _running: list[int] = field(default_factory=list)
    _final: list[int] = field(default_factory=list)
    _by_end: list[tuple[int, int]] = field(default_factory=list)
    """(end, number) of all records, sorted."""
    _since: tuple[int, list[Batch]] | None = None
    """The last result of `since`, because an evaluation needs it several times."""
    _members: tuple[Member, ...] | None = None
    """The last result of `members`, until a membership changes; `_nics`: that of `nics`."""
    _nics: tuple[str, ...] | None = None
    _ended: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)
    """Maps number of a record to what ended in it, for records that were queried."""

    @property
    def host(self) -> str:
        """Host on which the process runs."""
        return self.key[0]

    # ------------------------------------------------------------------------------------------ records

    def __len__(self) -> int:
        """Return the number of records that are kept."""
        return len(self._batches)

    def __contains__(self, number: int) -> bool:
        """Return whether the record with a number is kept."""
        return number in self._batches

    def __iter__(self) -> Iterator[Batch]:
        """Yield the records sorted by number."""
        return (self._batches[number] for number in self._numbers)

    def add(self, batch: Batch) -> None:
        """Add a record whose number is new."""
        self._batches[batch.number] = batch
        self._since = None
        insort(self._numbers, batch.number)
        insort(self._by_end, (batch.end_ns, batch.number))
        if batch.has_running:
            insort(self._running, batch.number)
        if batch.ended:
            insort(self._final, batch.number)

    def remove(self, number: int) -> Batch:
        """Remove and return the record with a number. Raises KeyError for an unknown number."""
        batch = self._batches.pop(number)
        self._ended.pop(number, None)
        self._since = None
        del self._by_end[bisect_left(self._by_end, (batch.end_ns, number))]
        for index in (self._numbers, self._running, self._final):
            at = bisect_left(index, number)
            if at < len(index) and index[at] == number:
                del index[at]
        return batch

    @property
    def newest(self) -> Batch:
        """The record with the greatest number."""
        return self._batches[self._numbers[-1]]

    def before(self, number: int) -> Batch | None:
        """Return the record with the greatest number below `number`; None if there is none."""
        at = bisect_left(self._numbers, number)
        return self._batches[self._numbers[at - 1]] if at else None

    def since(self, begin_ns: int) -> list[Batch]:
        """Return the records that end after a time, sorted by number."""
        if self._since is None or self._since[0] != begin_ns:
            later = self._by_end[bisect_right(self._by_end, begin_ns, key=_end) :]
            batches = [self._batches[number] for number in sorted(number for _, number in later)]
            self._since = (begin_ns, batches)
        return self._since[1]

    def overlapping(self, begin_ns: int, end_ns: int) -> list[Batch]:
        """Return the records that overlap an interval, sorted by number."""
        return [batch for batch in self.since(begin_ns) if batch.begin_ns < end_ns]

    def running_before(self, begin_ns: int) -> list[tuple[int, Rows]]:
        """Return, by record number, the running operations of records that end at or before `begin_ns`.

        Operations are left out if a later record shows that they must have ended.
        """
        numbers = [number for number in self._running if self._batches[number].end_ns <= begin_ns]
        if not numbers:
            return []
        ended: dict[tuple[int, int], int] = {}
        running: list[tuple[int, Rows]] = []
        for number in reversed(self._numbers[bisect_left(self._numbers, numbers[0]) :]):
            batch = self._batches[number]
            if batch.end_ns > begin_ns:
                continue
            if batch.has_running:
                rows = batch.running
                places = zip(rows[:, Op.COMMUNICATOR].tolist(), pair_key(rows).tolist(), strict=True)
                newest = np.array([ended.get(place, -1) for place in places], np.int64)
                running.append((number, rows[rows[:, Op.SEQ] > newest]))
            for place, seq in self._ended_of(batch).items():
                ended[place] = max(ended.get(place, -1), seq)
        return [numbered for numbered in reversed(running) if len(numbered[1])]

    def operations(self, begin_ns: int) -> list[Rows]:
        """Return the operations that may run after `begin_ns`, in the order of their records."""
        parts = [(batch.number, batch.operations) for batch in self.since(begin_ns)]
        earlier = self.running_before(begin_ns)
        return [rows for _, rows in (sorted(earlier + parts, key=_number) if earlier else parts)]

    def _ended_of(self, batch: Batch) -> dict[tuple[int, int], int]:
        """Return the greatest number of an ended operation in a record, by communicator and kind of order."""
        newest = self._ended.get(batch.number)
        if newest is None:
            newest = self._ended[batch.number] = _newest_ended(batch)
        return newest

    def ended_at(self, end_ns: int) -> int | None:
        """Return when the process ended, ns, by a record that begins before `end_ns`; else None."""
        if not self._final:
            return None
        ends = [self._batches[number] for number in self._final]
        return min((batch.end_ns for batch in ends if batch.begin_ns < end_ns), default=None)

    # ------------------------------------------------------------------------------------------ memberships

    @property
    def members(self) -> tuple[Member, ...]:
        """The process's memberships, sorted by communicator."""
        if self._members is None:
            self._members = tuple(self.joined[name] for name in sorted(self.joined))
        return self._members

    @property
    def nics(self) -> tuple[str, ...]:
        """The NICs that the memberships name; NICs of the largest communicator come first."""
        if self._nics is None:
            ordered = sorted(self.members, key=lambda member: member.size_first)
            self._nics = tuple(dict.fromkeys(nic for member in ordered for nic in member.nics))
        return self._nics

    def join(self, number: int, member: Member) -> bool:
        """Add the membership that record `number` contains; the membership of the newest record counts.

        Return whether the memberships change.
        """
        name, previous = member.communicator, self.joined.get(member.communicator)
        if previous is not None and number < self.joined_at[name]:
            joined = previous if previous.nics else previous._replace(nics=member.nics)
        else:
            nics = member.nics or (previous.nics if previous is not None else ())
            joined = member._replace(nics=nics)
            self.joined_at[name] = number
        if joined == previous:
            return False
        self.joined[name], self._members, self._nics = joined, None, None
        while len(self.joined) > MAX_MEMBERS:
            oldest = min(self.joined_at, key=lambda name: (self.joined_at[name], name))
            del self.joined[oldest], self.joined_at[oldest]
        return True


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator of the job: its name, size and processes by rank."""

    id: str
    ranks: int
    processes: dict[int, int]
    """Maps rank to process."""

    @property
    def size(self) -> int:
        """Number of its ranks as reported; if not reported, the number of known processes."""
        return self.ranks or len(self.processes)


class Claims(NamedTuple):
    """The processes that claim each rank of each communicator."""

    owners: dict[str, dict[int, list[tuple[int, Process]]]]
    """Maps communicator and rank to processes, each with its name."""
    sizes: dict[str, int]
    """Number of ranks of each communicator."""
    contested: list[tuple[str, int, list[Process]]]
    """Communicator, rank and processes of each rank that several processes claim."""

    @classmethod
    def of(cls, processes: Mapping[int, Process]) -> Claims:
        """Return the claims of `processes`, a mapping from name to process."""
        owners: dict[str, dict[int, list[tuple[int, Process]]]] = {}
        sizes: dict[str, int] = {}
        for name, process in sorted(processes.items(), key=_name):
            for member in process.members:
                ranks = owners.setdefault(member.communicator, {})
                ranks.setdefault(member.rank, []).append((name, process))
                sizes[member.communicator] = max(sizes.get(member.communicator, 0), member.ranks)
        contested = [
            (communicator, rank, [process for _, process in claims])
            for communicator, ranks in owners.items()
            for rank, claims in ranks.items()
            if len(claims) > 1
        ]
        return cls(owners, sizes, contested)


def _newest_ended(batch: Batch) -> dict[tuple[int, int], int]:
    """Return, by communicator and kind of order, the greatest number of an operation that ended."""
    rows, sums = batch.operations, batch.summaries
    rows = rows[rows[:, Op.END] != NEVER_NS]
    sums = sums[IS_COLLECTIVE[sums[:, Sum.FUNCTION]]]
    newest: dict[tuple[int, int], int] = {}
    columns = (
        (rows[:, Op.COMMUNICATOR], pair_key(rows), rows[:, Op.SEQ]),
        (sums[:, Sum.COMMUNICATOR], np.zeros(len(sums), np.int64), sums[:, Sum.LAST_SEQ]),
    )
    for communicators, keys, seqs in columns:
        places = zip(communicators.tolist(), keys.tolist(), seqs.tolist(), strict=True)
        for communicator, key, seq in places:
            newest[communicator, key] = max(newest.get((communicator, key), -1), seq)
    return newest


def _name(entry: tuple[int, Process]) -> int:
    return entry[0]


def _number(part: tuple[int, Rows]) -> int:
    return part[0]


def _end(entry: tuple[int, int]) -> int:
    return entry[0]


def batch_of(record: CollectiveBatch, process: int, append_ns: int) -> Batch:
    """Return a record decoded into columns. `process`: hash of the process's key."""
    operations = operation_rows(record, process)
    return Batch(
        process=process,
        number=record["batch"],
        append_ns=append_ns,
        begin_ns=record["begin_ns"],
        end_ns=record["end_ns"],
        synced=record["clock"] != ClockSync.UNSYNCED,
        bound_ns=record["bound_ns"],
        ended=record["ended"],
        dropped=record["events_dropped"],
        invalid=record["events_invalid"],
        ignored=record["calls_ignored"],
        operations=operations,
        has_running=bool((operations[:, Op.END] == NEVER_NS).any()),
        transfers=transfer_rows(record, process),
        summaries=summary_rows(record, process),
        queue_pairs=queue_pair_rows(record, process),
        nics=tuple(sorted({queue_pair["nic"] for queue_pair in record["queue_pairs"]})),
        counters=tuple(record["counters"]),
        ranks=tuple(record["ranks"]),
        activity=_activity(record),
    )


def _activity(record: CollectiveBatch) -> Activity | None:
    activity = record["activity"]
    if activity is None:
        return None
    seconds = max(activity["interval_ns"], 1) / 1e9
    return Activity(
        activity["cpu_ns"] / 1e9 / seconds,
        (activity["io_bytes"] or 0) * 8 / seconds,
        activity["disk_share"],
        activity["stopped_share"],
    )
