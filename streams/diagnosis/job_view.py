"""The recent records of one job, and its good time.

A view takes the job's `CollectiveBatch` records in any order and any number of times. It keeps them for a
bounded time and in bounded memory. Its content depends on the records only, never on their order: a replay
evaluates alike. One view belongs to one job, so two jobs with one communicator hash never meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from schemas.records import (
    ClockSync,
    CollectiveBatch,
    CollectiveSource,
    NicCounter,
    RankState,
    Verdict,
)
from streams.diagnosis.baseline import Baselines
from streams.diagnosis.columns import (
    Op,
    Pair,
    Rows,
    Sum,
    Transfer,
    hash_of,
    operation_rows,
    queue_pair_rows,
    summary_rows,
    transfer_rows,
)
from streams.diagnosis.rules import KEEP_NS, MAX_OPERATIONS, MAX_RECORDS, MAX_SUMMARIES, NEVER_NS

__all__ = ["Batch", "Columns", "Interval", "JobView", "LastVerdict", "Member", "Process"]


MAX_MEMBERS: Final = 4_096
"""Communicators of one process that are remembered."""


class Member(NamedTuple):
    """A rank of a communicator."""

    communicator: str
    rank: int
    ranks: int
    nics: tuple[str, ...]
    gpu: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """One record, decoded into columns."""

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
    operations: Rows
    has_running: bool
    transfers: Rows
    summaries: Rows
    queue_pairs: Rows
    nics: tuple[str, ...]
    """NICs of its queue pairs."""
    counters: tuple[NicCounter, ...]
    ranks: tuple[RankState, ...]

    @property
    def running(self) -> Rows:
        """Operations that had not ended."""
        rows = self.operations
        return rows[rows[:, Op.END] == NEVER_NS] if self.has_running else rows[:0]

    @property
    def size(self) -> int:
        """Rows of all kinds."""
        return (
            len(self.operations)
            + len(self.transfers)
            + len(self.summaries)
            + len(self.queue_pairs)
            + len(self.ranks)
        )


@dataclass(slots=True)
class Process:
    """A process of the job. `key`: host, boot and process id."""

    key: tuple[str, str, str]
    source: CollectiveSource
    version: str
    batches: dict[int, Batch] = field(default_factory=dict)
    """Number to record, within the time that the view keeps."""
    joined: dict[str, Member] = field(default_factory=dict)
    joined_at: dict[str, int] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """Its host."""
        return self.key[0]

    @property
    def newest(self) -> Batch:
        """Its newest record."""
        return self.batches[max(self.batches)]

    @property
    def members(self) -> Iterable[Member]:
        """Its memberships, by communicator."""
        return (self.joined[name] for name in sorted(self.joined))

    def join(self, number: int, member: Member) -> None:
        """Note a membership that the record of a number contains; the newest one counts."""
        known_at, known = self.joined_at.get(member.communicator, -1), self.joined.get(member.communicator)
        if number < known_at:
            if known is not None and not known.nics:
                self.joined[member.communicator] = known._replace(nics=member.nics)
            return
        nics = member.nics or (known.nics if known is not None else ())
        self.joined[member.communicator] = member._replace(nics=nics)
        self.joined_at[member.communicator] = number
        while len(self.joined) > MAX_MEMBERS:
            oldest = min(self.joined_at, key=lambda name: (self.joined_at[name], name))
            del self.joined[oldest], self.joined_at[oldest]


class Columns(NamedTuple):
    """The rows of an interval."""

    operations: Rows
    transfers: Rows
    summaries: Rows
    queue_pairs: Rows
    counters: list[NicCounter]
    states: list[tuple[int, RankState]]
    """Time and content of NCCL's own reports about ranks."""


class Interval(NamedTuple):
    """An evaluated interval: the job's times in it. None: unknown."""

    begin_ns: int
    end_ns: int
    ratio: float | None
    """Length of its iterations over that of the good time."""
    network_excess: float | None
    """Share of the time that moving data took longer than in the good time."""


@dataclass(slots=True)
class LastVerdict:
    """The verdict that holds now."""

    verdict: Verdict
    subject: str
    since_ns: int


INTERVALS_KEPT: Final = 512
"""Evaluated intervals that are remembered: whether the job was fast while a fault lasted."""


class JobView:
    """Records of one job; `take` each, `forget` regularly."""

    def __init__(self, job: str, keep_ns: int = KEEP_NS) -> None:
        self.job = job
        self.keep_ns = keep_ns
        self.tenant: str | None = None
        self.number = 0
        """Number of the job's next Diagnosis."""
        self.last: LastVerdict | None = None
        self.baselines = Baselines()
        self.history: deque[Interval] = deque(maxlen=INTERVALS_KEPT)
        self.processes: dict[int, Process] = {}
        self.forgotten = 0
        """Rows dropped because the view was full, since it began."""
        self._order: deque[tuple[int, int, int]] = deque()
        """(append time, process, number) of each record, in the order of arrival."""
        self._size = 0
        self._shards: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of records that are kept."""
        return len(self._order)

    @property
    def shard(self) -> str:
        """The shard of the job's first process by name, which evaluates the job."""
        return min(self._shards, default="")

    @property
    def nics(self) -> set[str]:
        """NICs that carry the job's traffic, as far as its ranks know them."""
        named = {nic for each in self.processes.values() for m in each.members for nic in m.nics}
        pairs = {nic for batch in self.batches() for nic in batch.nics}
        return named | pairs

    @property
    def newest_ns(self) -> int | None:
        """The end of the newest record's interval, the median over processes; None: nothing is known."""
        ends = sorted(each.newest.end_ns for each in self.processes.values())
        return ends[len(ends) // 2] if ends else None

    @property
    def has_ended(self) -> bool:
        """Whether every process that is known has ended."""
        return bool(self.processes) and all(each.newest.ended for each in self.processes.values())

    def take(self, record: CollectiveBatch, append_ns: int) -> None:
        """Take a record of the job. A record that was taken before changes nothing.

        Raises ValueError for a record of another job.
        """
        if record["job"] != self.job:
            raise ValueError(f"record of job {record['job']!r}, expected {self.job!r}")
        key = (record["host"], record["boot"], record["process"])
        name = hash_of("/".join(key))
        process = self.processes.get(name)
        if process is None:
            process = self.processes[name] = Process(key, record["source"], record["version"])
        if record["batch"] in process.batches:
            return
        batch = _batch(record, name, append_ns)
        process.batches[batch.number] = batch
        for each in record["communicators"]:
            process.join(
                batch.number,
                Member(each["id"], each["rank"], each["ranks"], tuple(each["nics"]), each["gpu"]),
            )
        self._order.append((append_ns, name, batch.number))
        self._size += batch.size
        self._shards[record["shard"]] = append_ns
        self.tenant = record["tenant"] if self.tenant is None else self.tenant
        while self._size > MAX_OPERATIONS + MAX_SUMMARIES or len(self._order) > MAX_RECORDS:
            self.forgotten += self._drop_oldest()

    def forget(self, now_ns: int) -> None:
        """Drop the records appended before the time that the view keeps."""
        while self._order and self._order[0][0] < now_ns - self.keep_ns:
            self._drop_oldest()

    def _drop_oldest(self) -> int:
        """Drop the record that arrived first, and its process if it was the last one of it."""
        _, name, number = self._order.popleft()
        process = self.processes[name]
        batch = process.batches.pop(number)
        self._size -= batch.size
        if not process.batches:
            del self.processes[name]
        return batch.size

    def batches(self) -> Iterable[Batch]:
        """Yield the kept records, by process and number: in the same order however they arrived."""
        for name in sorted(self.processes):
            numbers = self.processes[name].batches
            for number in sorted(numbers):
                yield numbers[number]

    def columns(self, begin_ns: int, end_ns: int) -> Columns:
        """Return the operations that may touch an interval, and other rows of the records that overlap it.

        An operation of the interval may be in a later record, or in an earlier one as running.
        """
        every = list(self.batches())
        found = [b for b in every if b.end_ns > begin_ns and b.begin_ns < end_ns]
        return Columns(
            _stack([b.operations if b.end_ns > begin_ns else b.running for b in every], len(Op)),
            _stack([b.transfers for b in found], len(Transfer)),
            _stack([b.summaries for b in found], len(Sum)),
            _stack([b.queue_pairs for b in found], len(Pair)),
            [counter for b in found for counter in b.counters],
            [(b.end_ns, state) for b in found for state in b.ranks],
        )


def _stack(parts: list[Rows], width: int) -> Rows:
    parts = [part for part in parts if len(part)]
    return np.concatenate(parts) if parts else np.empty((0, width), np.int64)


def _batch(record: CollectiveBatch, process: int, append_ns: int) -> Batch:
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
        operations=operations,
        has_running=bool((operations[:, Op.END] == NEVER_NS).any()),
        transfers=transfer_rows(record, process),
        summaries=summary_rows(record, process),
        queue_pairs=queue_pair_rows(record, process),
        nics=tuple(sorted({each["nic"] for each in record["queue_pairs"]})),
        counters=tuple(record["counters"]),
        ranks=tuple(record["ranks"]),
    )
