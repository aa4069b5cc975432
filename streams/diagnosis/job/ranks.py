"""Finds the ranks of a job in an interval: their processes, hosts and NICs, and missing ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, itemgetter
from statistics import fmean
from typing import Final, NamedTuple

from schemas.ids import natural
from streams.diagnosis.job.columns import hash_of
from streams.diagnosis.job.process import Activity, Batch, Claims, Communicator, Process
from streams.diagnosis.job.view import JobView
from streams.diagnosis.rules import LATE_NS

STOPPED_SHARE: Final = 0.5
"""Share of the samples of a process from which on it counts as stopped."""


class Rank(NamedTuple):
    """A process of the job. `number`: the process's rank in the job's largest communicator."""

    number: int
    process: int
    host: str
    nics: tuple[str, ...]
    gpu: str | None
    synced: bool
    bound_ns: float
    reported: bool
    """Whether a record of the process overlaps the interval."""
    seen_ns: int
    """End of the process's newest record before the interval's end."""
    ended: bool
    ended_ns: int | None
    """Time at which the process ended; None if it runs, or if that is not known."""
    late_ns: int
    """Delay of the newest record from its end to its append time, in excess of the job's median, ns."""
    dropped: int
    invalid: int
    ignored: int
    activity: Activity | None = None
    """What the process did before its newest record; None if that is not known."""
    stopped_share: float = 0.0
    """Share of the samples in the interval in which the process was stopped."""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal, a debugger or its cgroup has stopped the process."""
        return self.activity is not None and self.activity.stopped_share >= STOPPED_SHARE

    @property
    def nic(self) -> str:
        """The process's first NIC; empty if unknown."""
        return self.nics[0] if self.nics else ""

    @property
    def name(self) -> str:
        """Text that names the rank and its host."""
        return f"rank {self.number} on {self.host}"


@dataclass(slots=True)
class Ranks:
    """The ranks of a job, by hash of their process."""

    by_process: dict[int, Rank] = field(default_factory=dict)
    """Maps process to rank, in the order of the ranks' numbers."""
    communicators: dict[int, Communicator] = field(default_factory=dict)
    """Maps hash of the communicator's id to communicator."""
    total: int = 0
    conflicts: list[str] = field(default_factory=list)
    """Texts about ranks that two living processes claim."""

    def __iter__(self) -> Iterator[Rank]:
        return iter(self.by_process.values())

    def of(self, communicator: int, rank: int) -> Rank | None:
        """Return the process with a given rank in a communicator; None if unknown."""
        group = self.communicators.get(communicator)
        process = group.processes.get(rank) if group is not None else None
        return None if process is None else self.by_process.get(process)

    def size_of(self, communicator: int) -> int:
        """Return the number of ranks of a communicator; 0 if it is unknown."""
        group = self.communicators.get(communicator)
        return group.size if group is not None else 0

    @property
    def reported(self) -> list[Rank]:
        """Ranks with a record in the interval."""
        return [rank for rank in self if rank.reported]

    @property
    def hosts(self) -> set[str]:
        """Hosts of the ranks."""
        return {rank.host for rank in self.by_process.values()}


def ranks_of(job: JobView, begin_ns: int, end_ns: int) -> Ranks:
    """Return the ranks of a job in an interval. A process that another process has replaced is left out."""
    result = Ranks()
    claims = job.claims.of(job.joins, lambda: Claims.of(job.processes))
    owners, sizes = claims.owners, claims.sizes
    replaced: frozenset[tuple[str, str, str]] = frozenset()
    for contested in claims.contested:
        replaced |= _losers(result, *contested, begin_ns)
    main = min(owners, key=lambda c: (-sizes[c], -len(owners[c]), c), default=None)
    result.total = max(sizes.values(), default=0)
    newest = [process.newest for process in job.processes.values()]
    lag_ns = _median([batch.append_ns - batch.end_ns for batch in newest])
    living = [process for _, process in sorted(job.processes.items()) if process.key not in replaced]
    _number(result, living, main, (begin_ns, end_ns), lag_ns)
    result.communicators = job.communicators.of(
        (job.joins, replaced), lambda: _communicators(claims, replaced)
    )
    return result


def _communicators(claims: Claims, replaced: frozenset[tuple[str, str, str]]) -> dict[int, Communicator]:
    """Return the communicators by hash of their ids, without replaced processes."""
    return {
        hash_of(communicator): Communicator(
            communicator,
            claims.sizes[communicator],
            {
                rank: name
                for rank, processes in ranks.items()
                for name, process in processes
                if process.key not in replaced
            },
        )
        for communicator, ranks in claims.owners.items()
    }


def _losers(
    ranks: Ranks, communicator: str, rank: int, claims: list[Process], begin_ns: int
) -> set[tuple[str, str, str]]:
    """Return processes that newer ones replaced as `rank`; record a conflict if two living ones claim it."""
    ordered = sorted(
        claims, key=lambda process: (not process.newest.ended, process.newest.end_ns, process.key)
    )
    living = [process for process in ordered if not process.newest.ended and process.newest.end_ns > begin_ns]
    if len(living) > 1:
        hosts = " and ".join(sorted({f"{process.host} process {process.key[2]}" for process in living})[:2])
        ranks.conflicts.append(f"rank {rank} of communicator {communicator} is claimed by {hosts}")
    return {process.key for process in ordered[:-1]}


def _number(
    ranks: Ranks, living: list[Process], main: str | None, interval: tuple[int, int], lag_ns: int
) -> None:
    """Add and number the living processes; those outside of the largest communicator get the last numbers."""
    numbered: list[tuple[int, Process]] = []
    others: list[Process] = []
    for process in living:
        member = process.joined.get(main) if main is not None else None
        if member is None:
            others.append(process)
        else:
            numbered.append((member.rank, process))
    first = max([ranks.total, *(rank + 1 for rank, _ in numbered)])
    others.sort(key=lambda one: [natural(part) for part in one.key])
    numbered.sort(key=itemgetter(0))
    for number, process in (*numbered, *enumerate(others, first)):
        rank = _rank(number, process, interval, lag_ns)
        ranks.by_process[rank.process] = rank


def _rank(number: int, process: Process, interval: tuple[int, int], lag_ns: int) -> Rank:
    begin_ns, end_ns = interval
    inside = process.overlapping(begin_ns, end_ns)
    newest = inside[-1] if inside else process.newest
    batch_nics = dict.fromkeys(batch.nics for batch in inside)
    late_ns = newest.append_ns - newest.end_ns - lag_ns
    ended_ns = process.ended_at(end_ns)
    growth = _growth(process, inside)
    return Rank(
        number=number,
        process=newest.process,
        host=process.host,
        nics=tuple(dict.fromkeys(chain(process.nics, *batch_nics))),
        gpu=next((member.gpu for member in process.members if member.gpu is not None), None),
        synced=all(map(attrgetter("synced"), inside or [newest])),
        bound_ns=max(map(attrgetter("bound_ns"), inside or [newest])),
        reported=bool(inside),
        seen_ns=newest.end_ns,
        ended=ended_ns is not None,
        ended_ns=ended_ns,
        late_ns=late_ns if late_ns > LATE_NS else 0,
        dropped=growth[0],
        invalid=growth[1],
        ignored=growth[2],
        activity=newest.activity,
        stopped_share=fmean([one.activity.stopped_share for one in inside if one.activity] or [0.0]),
    )


def _growth(process: Process, inside: list[Batch]) -> tuple[int, int, int]:
    """Return by how much the counts of dropped events, refused events and ignored calls of a process grew."""
    if not inside or not any(counts := _counts(inside[-1])):
        return 0, 0, 0
    first = inside[0]
    base = process.before(first.number) or (first if first.number else None)
    before = _counts(base) if base is not None else (0, 0, 0)
    dropped, invalid, ignored = (max(0, count - former) for count, former in zip(counts, before, strict=True))
    return dropped, invalid, ignored


def _counts(batch: Batch) -> tuple[int, int, int]:
    return batch.dropped, batch.invalid, batch.ignored


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0
