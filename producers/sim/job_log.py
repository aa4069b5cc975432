"""Keeps the operations of a simulated job until all its ranks have published them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from native.collectives.fold import mix
from producers.sim.job_times import Arrivals, OperationTimes, arrivals_of, operation_times
from producers.sim.jobs import SimJob
from schemas.records import KeptReason

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation

_TRACED_PER_S: Final = 8
"""Maximum single operations that a rank publishes per second, apart from slow ones."""
_SLOW_TIMES: Final = 1.5
"""An operation is slow if it takes longer than the median duration by this factor."""
_SLOW_PER_S: Final = 4
_RECENT: Final = 64
"""Number of recent operations whose median duration counts as usual."""
_RUNNING_NS: Final = 1_000_000_000
"""An operation that has run for this long is published before it ends."""
_SECOND_NS: Final = 1e9
_HASH_BITS: Final = 64

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """The times and transfers of one operation at all ranks."""

    seq: int
    times: OperationTimes
    moved: Float64s | None
    """[2, entries] begin and end of each transfer, if they are published; None if not."""
    reason: KeptReason | None
    """Why it is published singly; None if it is only part of summaries."""
    present: NDArray[np.bool_] | None = None
    """[ranks] True for ranks that have called an operation that still runs; None for one that has ended."""


class JobLog:
    """The operations of one job. All ranks publish the same selection of single operations."""

    def __init__(self, sim: Simulation, job: SimJob, index: int) -> None:
        self._sim, self.job, self._index = sim, job, index
        self.ranks = len(job.home)
        self._line_bps = float(sim.fleet.rate_bps[0])
        self._operations: deque[LoggedOperation] = deque()
        self._first = 0
        self._next = [0] * self.ranks
        self._last_end = np.zeros(self.ranks)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._ends: deque[float] = deque()
        self._shift = 0
        self._slow_at: deque[float] = deque()
        self._moved_ns = -_SECOND_NS

    def note_ended(self) -> None:
        """Log the operations that ended in the last tick."""
        job = self.job
        for operation in job.ended:
            if operation.times is None:
                continue
            times = operation_times(
                self._arrivals(operation.number),
                job.entries,
                operation.times,
                operation.begin_ns,
                operation.end_ns,
                self._last_end,
                job.conditions,
                self._line_bps,
            )
            self._last_end = times.end
            reason = self._kept(operation.number, float((times.end - times.arrival).max()), operation.end_ns)
            moved = None
            if reason is not None and (
                reason == KeptReason.SLOW or operation.end_ns - self._moved_ns >= 0.9 * _SECOND_NS
            ):
                moved, self._moved_ns = operation.times, operation.end_ns
            self._operations.append(LoggedOperation(operation.number, times, moved, reason))

    def take(self, rank: int) -> list[LoggedOperation]:
        """Return the operations that a rank has not published yet, oldest first; count them as published."""
        begin = self._next[rank] - self._first
        self._next[rank] = self._first + len(self._operations)
        operations = [self._operations[at] for at in range(begin, len(self._operations))]
        done = min(self._next) - self._first
        for _ in range(done):
            self._operations.popleft()
        self._first += done
        return operations

    def running(self) -> LoggedOperation | None:
        """Return the operation that has run, or made ranks wait, for a second or more; None if none has."""
        job, now_ns = self.job, self._sim.kernel.now_ns
        number, begin_ns, times = self._sim.kernel.job_times(job.number)
        arrivals = self._arrivals(job.earlier + number)
        conditions = job.conditions
        absent = conditions.hung | conditions.killed if begin_ns < 0 else frozenset()
        if begin_ns >= 0:
            since_ns = begin_ns
            present_times = operation_times(
                arrivals, job.entries, times, begin_ns, now_ns, self._last_end, conditions, self._line_bps
            )
        elif conditions.stops:
            since_ns = job.ended_ns + job.settings.compute_ms * 1e6
            present_times = self._waiting(arrivals, since_ns, now_ns)
        else:
            return None
        if now_ns - since_ns < _RUNNING_NS:
            return None
        present = np.ones(self.ranks, np.bool_)
        present[sorted(absent)] = False
        return LoggedOperation(
            job.earlier + number, present_times, times if begin_ns >= 0 else None, KeptReason.RUNNING, present
        )

    def _waiting(self, arrivals: Arrivals, since_ns: float, now_ns: float) -> OperationTimes:
        """Return the times of an operation that some rank never enters."""
        arrival, nothing = since_ns + arrivals.call_ns, np.zeros(self.ranks)
        waited = now_ns - arrival - arrivals.launch_ns
        return OperationTimes(
            arrival, np.full(self.ranks, now_ns), arrivals.launch_ns, nothing, waited, nothing, nothing
        )

    def _arrivals(self, seq: int) -> Arrivals:
        """Draw the arrivals of an operation; the result is always the same for the same operation."""
        chance = np.random.Generator(np.random.SFC64([self._sim.settings.seed, 7, self._index, seq]))
        return arrivals_of(self.job.conditions, self.ranks, chance)

    def _kept(self, seq: int, length_ns: float, end_ns: float) -> KeptReason | None:
        """Return why an operation is published singly: as all are, as a sample, or as slow; else None.

        Operations are sampled by a hash of their number, like in the reporter. If every 16th one was taken,
        an iteration of 16 operations would always be represented by the same one.
        """
        self._ends.append(end_ns)
        while self._ends[0] < end_ns - _SECOND_NS:
            self._ends.popleft()
        while len(self._ends) > _TRACED_PER_S << self._shift:
            self._shift += 1
        if self._shift and len(self._ends) < _TRACED_PER_S << self._shift >> 2:
            self._shift -= 1
        median_ns = float(np.median(self._recent)) if self._recent else length_ns
        self._recent.append(length_ns)
        if not self._shift:
            return KeptReason.ALL
        if not mix(self._index, seq) >> (_HASH_BITS - self._shift):
            return KeptReason.SAMPLED
        while self._slow_at and self._slow_at[0] < end_ns - _SECOND_NS:
            self._slow_at.popleft()
        if length_ns > _SLOW_TIMES * median_ns and len(self._slow_at) < _SLOW_PER_S:
            self._slow_at.append(end_ns)
            return KeptReason.SLOW
        return None
