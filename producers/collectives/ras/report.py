"""Holds RAS reports as typed values, and converts them to records. Pure.

A service states for each communicator which ranks answer, and how many operations of each function each
rank has launched. A rank that launched fewer than others has not entered the operation in which the others
wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.records import CollectiveFunction, CommunicatorReport, RankCondition, RankState

MAX_STATES: Final = 256
"""Maximum number of rank states that are published per report."""
MAX_COMMUNICATORS: Final = 1024
"""Maximum number of communicators that are published per report; the largest ones come first."""
COUNT_MAX: Final = 2**61
RANK_MAX: Final = 16_777_215
TEXT_MAX: Final = 200
_F = CollectiveFunction
FUNCTIONS: Final = {
    "allreduce": _F.ALL_REDUCE,
    "allgather": _F.ALL_GATHER,
    "reducescatter": _F.REDUCE_SCATTER,
    "broadcast": _F.BROADCAST,
    "reduce": _F.REDUCE,
    "alltoall": _F.ALL_TO_ALL,
    "gather": _F.GATHER,
    "scatter": _F.SCATTER,
    "sendrecv": _F.SEND_RECEIVE,
    "send": _F.SEND,
    "recv": _F.RECEIVE,
}
"""Functions by NCCL's names in lower case; others, such as the sum of all in NCCL 2.24, are UNKNOWN."""
Counts = Mapping[CollectiveFunction, int]


class RankReport(NamedTuple):
    """A rank of a communicator. `process` is 0 and `host` is empty if unknown."""

    rank: int
    host: str
    process: int
    gpu: str | None
    state: RankCondition
    counts: Counts
    """Operations launched, by function; empty if unknown."""
    reason: str = ""


@dataclass(slots=True)
class Communicator:
    """A communicator with those of its ranks that the report lists."""

    id: str
    size: int = 0
    """Number of its ranks; 0: unknown."""
    missing: int = 0
    """Number of ranks without an answer."""
    leaders: dict[CollectiveFunction, int] = field(default_factory=dict)
    """Operations that some rank has launched, by function."""
    ranks: list[RankReport] = field(default_factory=list)
    groups: dict[tuple[CollectiveFunction, int], int] = field(default_factory=dict)
    """Number of ranks by function and count of operations, where the report does not list them."""

    @property
    def late_ranks(self) -> int:
        """Number of ranks that launched fewer operations of some function than other ranks."""
        listed = len([rank for rank in self.ranks if self.behind(rank)[1]])
        grouped = sum(
            number
            for (function, count), number in self.groups.items()
            if count < self.leaders.get(function, 0)
        )
        return min(max(listed, grouped), RANK_MAX)

    def add(self, rank: RankReport) -> None:
        """Add a rank, and raise each function's largest operation count to that of the rank."""
        self.ranks.append(rank)
        for function, count in rank.counts.items():
            self.lead(function, count)

    def lead(self, function: CollectiveFunction, count: int) -> None:
        """Raise the largest operation count of a function to `count`, which some rank has launched."""
        self.leaders[function] = max(count, self.leaders.get(function, 0))

    def behind(self, rank: RankReport) -> tuple[CollectiveFunction, int]:
        """Return a function of which `rank` launched fewer operations than others, and the difference."""
        gaps = {
            function: self.leaders.get(function, 0) - count
            for function, count in rank.counts.items()
            if self.leaders.get(function, 0) > count
        }
        return max(gaps.items(), key=lambda gap: (gap[1], str(gap[0])), default=(_F.UNKNOWN, 0))


@dataclass(slots=True)
class RasReport:
    """A RAS report. If unknown, the library's `version` is empty and `collection_s` is 0."""

    communicators: list[Communicator] = field(default_factory=list)
    version: str = ""
    collection_s: float = 0.0

    @property
    def largest(self) -> Communicator | None:
        """The communicator with most ranks, and of several the one with the smallest id; None without any."""
        return min(self.communicators, key=lambda one: (-one.size, one.id), default=None)

    @property
    def processes(self) -> set[int]:
        """Process ids of all processes that the report names, on any host."""
        return {rank.process for one in self.communicators for rank in one.ranks if rank.process}

    @property
    def first_rank(self) -> RankReport | None:
        """The lowest running rank of the largest communicator; None if the report lists none."""
        ranks = self.largest.ranks if self.largest is not None else ()
        running = [rank for rank in ranks if rank.state is RankCondition.RUNNING]
        return min(running, key=lambda rank: rank.rank, default=None)


def communicator_reports(report: RasReport) -> list[CommunicatorReport]:
    """Return a record per communicator: communicators with problems first, then the largest ones."""
    rows = [_communicator_report(one) for one in report.communicators]
    rows.sort(key=lambda row: (not row["behind"], row["reported"] == row["ranks"], -row["ranks"]))
    return rows[:MAX_COMMUNICATORS]


def _communicator_report(communicator: Communicator) -> CommunicatorReport:
    launched = sum(communicator.leaders.values()) if communicator.leaders else -1
    return {
        "communicator": communicator.id,
        "ranks": communicator.size,
        "reported": max(0, communicator.size - communicator.missing),
        "launched": min(launched, COUNT_MAX),
        "behind": communicator.late_ranks,
    }


def rank_states(report: RasReport) -> list[RankState]:
    """Return the states of ranks that do not run or are behind, and where their processes wait meanwhile.

    A process that is behind in one communicator may wait in another, in which a further rank is behind. All
    ranks of that process are listed if their communicator has a rank that is behind.
    """
    late = {_place(rank) for one in report.communicators for rank in one.ranks if one.behind(rank)[1]}
    rows = [row for one in report.communicators for row in _rank_states(one, late)]
    rows.sort(key=lambda state: (state["state"] is RankCondition.RUNNING, not state["behind"]))
    return rows[:MAX_STATES]


def _place(rank: RankReport) -> tuple[str, int, str | None]:
    return rank.host, rank.process, rank.gpu


def _rank_states(communicator: Communicator, late: set[tuple[str, int, str | None]]) -> Iterator[RankState]:
    """Yield the states to publish of a communicator's ranks. `late`: identities of ranks that are behind."""
    gaps = [communicator.behind(rank) for rank in communicator.ranks]
    has_late = any(gap for _, gap in gaps)
    for rank, (function, gap) in zip(communicator.ranks, gaps, strict=True):
        waits = has_late and _place(rank) in late
        if gap or waits or rank.state is not RankCondition.RUNNING:
            yield _rank_state(communicator, rank, function, gap)


def _rank_state(
    communicator: Communicator, rank: RankReport, function: CollectiveFunction, gap: int
) -> RankState:
    reasons = [rank.reason] if rank.reason else []
    if gap:
        count, leader = rank.counts[function], communicator.leaders[function]
        name = "operations" if function is _F.UNKNOWN else function
        reasons.append(f"launched {count} {name}, others {leader}")
    if rank.process:
        reasons.append(f"process {rank.process}")
    return {
        "communicator": communicator.id,
        "rank": rank.rank,
        "host": rank.host,
        "state": rank.state,
        "operations": min(sum(rank.counts.values()), COUNT_MAX) if rank.counts else -1,
        "text": ", ".join(reasons)[:TEXT_MAX],
        "process": rank.process,
        "gpu": rank.gpu,
        "function": function,
        "behind": gap,
    }


def hash_text(digits: str) -> str:
    """Convert a communicator's hash in a report to the spelling in the profiler's records."""
    return digits.lower().zfill(16)


def printable(value: object, limit: int) -> str:
    """Return at most `limit` characters of a value as text, printable ASCII only."""
    return "".join(char if " " <= char <= "~" else "?" for char in str(value)[:limit])


def function_of(name: str) -> CollectiveFunction:
    """Return the collective function with this NCCL name, such as AllReduce."""
    return FUNCTIONS.get(name.replace("_", "").lower(), _F.UNKNOWN)


def merged_counts(pairs: Iterable[tuple[CollectiveFunction, int]]) -> dict[CollectiveFunction, int]:
    """Return operation counts by function; functions with unknown names share one entry."""
    counts: dict[CollectiveFunction, int] = {}
    for function, count in pairs:
        counts[function] = min(counts.get(function, 0) + count, COUNT_MAX)
    return counts
