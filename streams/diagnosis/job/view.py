"""Keeps the recent records of one job, and its baseline.

A view accepts the job's `CollectiveBatch` records in any order and any number of times. It keeps them for a
bounded time and in bounded memory. Its content depends only on the records, never on their order, so a replay
evaluates them alike. One view belongs to one job, so two jobs with equal communicator hashes are never mixed
up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from schemas.records import CollectiveBatch, CollectiveSource, NicCounter, RankState, Verdict
from streams.diagnosis.answers import Answers
from streams.diagnosis.job.baseline import Baselines
from streams.diagnosis.job.columns import Op, Pair, Rows, Sum, Transfer, hash_of
from streams.diagnosis.job.late_ranks import LateRanks
from streams.diagnosis.job.process import Batch, Claims, Communicator, Member, Process, batch_of
from streams.diagnosis.job.ras_history import RasHistory
from streams.diagnosis.network.moved_flows import MovedFlows
from streams.diagnosis.rules import CAUSE_GAP_NS, KEEP_NS, MAX_OPERATIONS, MAX_RECORDS, MAX_SUMMARIES
from streams.runtime.units import NS_PER_S

T = TypeVar("T")


class Columns(NamedTuple):
    """The rows of an interval, one array per kind of row."""

    operations: Rows
    transfers: Rows
    summaries: Rows
    queue_pairs: Rows
    counters: list[NicCounter]
    states: list[tuple[int, RankState]]
    """Time and content of the reports of NCCL itself about ranks."""


class Interval(NamedTuple):
    """The job's times in an evaluated interval; None if unknown."""

    begin_ns: int
    end_ns: int
    ratio: float | None
    """Length of the job's iterations divided by the baseline."""
    network_excess: float | None
    """Share of the time by which moving data took longer than its baseline."""
    pairs: float | None = None
    """Number of pairs on the fullest link between leaf and spines, if nearly all routes are known."""
    loss_share: float = 0.0
    """Share of the job's time that was lost in comparison with its baseline; 0 if unknown."""


@dataclass(slots=True)
class LastVerdict:
    """The verdict that a job has now."""

    verdict: Verdict
    subject: str
    since_ns: int


class Causes:
    """Remembers when the causes of a slow job began.

    Evidence may pause, for example when a queue is empty. A cause keeps its first begin across a pause,
    unless the job was fast during the pause.
    """

    def __init__(self, gap_ns: int = CAUSE_GAP_NS) -> None:
        self._gap_ns = gap_ns
        self._known: dict[tuple[Verdict, str], tuple[int, int]] = {}
        """Maps verdict and subject to the cause's begin and the last time of evidence."""

    def note(self, causes: Iterable[tuple[Verdict, str, int]], at_ns: int) -> None:
        """Note the causes of the interval that ends at `at_ns`: verdict, subject and begin of each."""
        for verdict, subject, since_ns in causes:
            self._known[verdict, subject] = (self.began(verdict, subject, since_ns), at_ns)
        self._known = {key: times for key, times in self._known.items() if times[1] >= at_ns - self._gap_ns}

    def clear(self) -> None:
        """Forget all causes, because the job was fast."""
        self._known.clear()

    def began(self, verdict: Verdict, subject: str, since_ns: int) -> int:
        """Return the time, ns, at which a cause began whose evidence exists since `since_ns`."""
        begin_ns, last_ns = self._known.get((verdict, subject), (since_ns, since_ns))
        return min(begin_ns, since_ns) if since_ns <= last_ns + self._gap_ns else since_ns


REMEMBERED_STALL_NS: Final = 2 * NS_PER_S
"""Length from which on a stall is remembered after its end."""


class Stalls:
    """Remembers for how long operations stalled before they continued, for example during a checkpoint."""

    def __init__(self) -> None:
        self.longest_ns = 0.0
        self.last_ns = 0.0
        """Length of the newest stall, ns; 0 if none was longer than `REMEMBERED_STALL_NS`."""
        self.over_ns: int | None = None
        """Time at which the newest stall was over; None if there was none."""
        self._newest: tuple[int, int, float] = (0, 0, 0.0)
        self._has_cause = False

    def note(
        self, communicator: int, seq: int, age_ns: float, at_ns: int = 0, *, has_cause: bool = False
    ) -> None:
        """Note the longest-running operation at an interval's end and its age, ns; 0: none runs.

        A stall with a cause in the network is no habit of the program.
        """
        if (communicator, seq) != self._newest[:2]:
            if not self._has_cause:
                self.longest_ns = max(self.longest_ns, self._newest[2])
            self._has_cause = False
            if self._newest[2] >= REMEMBERED_STALL_NS:
                self.last_ns, self.over_ns = self._newest[2], at_ns
        self._newest = communicator, seq, age_ns
        self._has_cause = (self._has_cause or has_cause) and age_ns > 0


class Latest(Generic[T]):
    """Caches the last result of a function until its inputs change."""

    def __init__(self) -> None:
        self._last: tuple[Hashable, T] | None = None

    def of(self, inputs: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`, which is called only if `inputs`, its arguments, have changed."""
        if self._last is None or self._last[0] != inputs:
            self._last = inputs, make()
        return self._last[1]


INTERVALS_KEPT: Final = 512
"""Number of evaluated intervals that are kept. They tell whether the job was fast while a fault lasted."""


class JobView:
    """Recent records of one job. Call `take` for each record, and `forget` regularly."""

    def __init__(self, job: str, keep_ns: int = KEEP_NS) -> None:
        self.job = job
        self.keep_ns = keep_ns
        self.tenant: str | None = None
        self.number = 0
        """Number of the job's next Diagnosis."""
        self.last: LastVerdict | None = None
        self.causes = Causes()
        self.moved = MovedFlows()
        self.stalls = Stalls()
        self.late_ranks = LateRanks()
        self.answers = Answers()
        self.baselines = Baselines()
        self.nic_baselines = Baselines()
        """Those of NICs, apart: many NICs must not push out the others."""
        self.history: deque[Interval] = deque(maxlen=INTERVALS_KEPT)
        self.processes: dict[int, Process] = {}
        self.joins = 0
        """Grows when a process is added or removed, and when the memberships of one change."""
        self.claims = Latest[Claims]()
        self.communicators = Latest[dict[int, Communicator]]()
        self.available = Latest[dict[tuple[str, bool], frozenset[str]]]()
        """Links between each leaf and the spines that the known routes between the job's NICs cross."""
        self.ras = RasHistory()
        self.forgotten = 0
        """Number of rows dropped so far because the view was full."""
        self._order: deque[tuple[int, int, int]] = deque()
        """(append time, process, number) of each record, in the order of arrival."""
        self._size = 0
        self._shards: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of records that are kept."""
        return len(self._order)

    @property
    def shard(self) -> str:
        """The first shard, by name, of those that the job's records name; it evaluates the job."""
        return min(self._shards, default="")

    @property
    def nics(self) -> set[str]:
        """NICs that carry the job's traffic, as reported by its ranks."""
        named = {nic for process in self.processes.values() for m in process.members for nic in m.nics}
        pairs = {nic for batch in self.batches() for nic in batch.nics}
        return named | pairs

    @property
    def newest_ns(self) -> int | None:
        """Median end of the processes' newest records, else end of the newest RAS report, ns; else None."""
        ends = sorted(process.newest.end_ns for process in self.processes.values())
        return ends[len(ends) // 2] if ends else self.ras.newest_ns

    @property
    def has_ended(self) -> bool:
        """Whether all known processes have ended."""
        if not self.processes:
            return self.ras.has_ended
        return all(process.newest.ended for process in self.processes.values())

    def take(self, record: CollectiveBatch, append_ns: int) -> None:
        """Add a record of the job; a record that was added before changes nothing.

        Raises ValueError for a record of another job.
        """
        if record["job"] != self.job:
            raise ValueError(f"record of job {record['job']!r}, expected {self.job!r}")
        if record["source"] == CollectiveSource.RAS:
            self.ras.take(record, append_ns)
            self._shards[record["shard"]] = append_ns
            self.tenant = record["tenant"] if self.tenant is None else self.tenant
            return
        key = (record["host"], record["boot"], record["process"])
        name = hash_of("/".join(key))
        process = self.processes.get(name)
        if process is None:
            process = self.processes[name] = Process(key, record["source"], record["version"])
            self.joins += 1
        if record["batch"] in process:
            return
        batch = batch_of(record, name, append_ns)
        process.add(batch)
        for communicator in record["communicators"]:
            self.joins += process.join(
                batch.number,
                Member(
                    communicator["id"],
                    communicator["rank"],
                    communicator["ranks"],
                    tuple(communicator["nics"]),
                    communicator["gpu"],
                ),
            )
        self._order.append((append_ns, name, batch.number))
        self._size += batch.size
        self._shards[record["shard"]] = append_ns
        self.tenant = record["tenant"] if self.tenant is None else self.tenant
        while self._size > MAX_OPERATIONS + MAX_SUMMARIES or len(self._order) > MAX_RECORDS:
            self.forgotten += self._drop_oldest()

    def forget(self, now_ns: int) -> None:
        """Drop the records that were appended more than `keep_ns` before `now_ns`."""
        self.ras.forget(now_ns - self.keep_ns)
        while self._order and self._order[0][0] < now_ns - self.keep_ns:
            self._drop_oldest()

    def _drop_oldest(self) -> int:
        """Drop the record that arrived first, and its process if empty; return the number of dropped rows."""
        _, name, number = self._order.popleft()
        process = self.processes[name]
        batch = process.remove(number)
        self._size -= batch.size
        if not len(process):
            del self.processes[name]
            self.joins += 1
        return batch.size

    def batches(self) -> Iterable[Batch]:
        """Yield the kept records by process and number, so that the order of arrival has no influence."""
        for name in sorted(self.processes):
            yield from self.processes[name]

    def columns(self, begin_ns: int, end_ns: int) -> Columns:
        """Return the operations that may overlap an interval, and the other rows of records that overlap it.

        An operation of the interval may be in a later record, or in an earlier record in which it still ran.
        """
        batches: list[Batch] = []
        operations: list[Rows] = []
        for _, process in sorted(self.processes.items(), key=_name):
            batches += process.overlapping(begin_ns, end_ns)
            operations += process.operations(begin_ns)
        return Columns(
            _stack(operations, len(Op)),
            _stack([b.transfers for b in batches], len(Transfer)),
            _stack([b.summaries for b in batches], len(Sum)),
            _stack([b.queue_pairs for b in batches], len(Pair)),
            list(chain.from_iterable(b.counters for b in batches)),
            [(b.end_ns, state) for b in batches for state in b.ranks],
        )


def _name(entry: tuple[int, Process]) -> int:
    return entry[0]


def _stack(parts: list[Rows], width: int) -> Rows:
    parts = list(filter(len, parts))
    return np.concatenate(parts) if parts else np.empty((0, width), np.int64)
