"""Converts the timed operations of all sources to one graph of operations and ranks. Does no I/O.

A rank passes from operation to operation; between them it does work of its own. An operation of a group ends
at all members at about the same time, so the member that arrives last has the shortest duration, whatever its
clock reads: it waits for none, and the other members wait for it. `busy_ns` adds up the durations of a rank's
operations. So the rank's own time between two operations is the time between their ends, less the difference
of `busy_ns`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from fabrictime.postmortem.observations import Call, Group, Message, Observations, Span

MAX_OPERATIONS: Final = 20_000
"""Largest number of operations that are compared for one source and group, the newest ones."""
PAUSES: Final = 0.1
"""Share of the intervals between operations that may hold a pause of the job, such as a checkpoint."""
_MIN_MEMBERS: Final = 2
_CLEAR: Final = 3
"""Ratio of the spreads of begins and ends from which one of them is the common moment."""


class Part(NamedTuple):
    """A rank's part of an operation, ns. Begin and end are 0 if unknown.

    `place` is the operation's index among those of the rank.
    """

    begin_ns: int
    duration_ns: int
    end_ns: int
    busy_ns: int
    place: int


class Operation(NamedTuple):
    """An operation of a group with the parts of its members. `pair` is empty for a collective."""

    source: str
    group: Group
    group_size: int
    function: str
    bytes: int
    pair: tuple[int, ...]
    parts: dict[int, Part]

    @property
    def transfer_ns(self) -> int:
        """The shortest duration of a part, ns, since the last member to arrive waited for none."""
        return min(part.duration_ns for part in self.parts.values())

    @property
    def is_complete(self) -> bool:
        """Whether all members recorded the operation."""
        return len(self.parts) >= (2 if self.pair else self.group_size)


class Wait(NamedTuple):
    """The time that a rank waited for another rank in the operations of a group."""

    rank: int
    for_rank: int
    group: Group
    wait_ns: int


class _Key(NamedTuple):
    source: str
    group: Group
    pair: tuple[int, ...]
    seq: int
    function: str


def operations(out: Observations) -> list[Operation]:
    """Return the timed operations with the parts of the ranks that recorded them."""
    parts: dict[_Key, dict[int, Part]] = defaultdict(dict)
    sizes: dict[_Key, tuple[int, int]] = {}
    for timeline in _timelines(out):
        for span, part in zip(timeline, _parts(timeline), strict=True):
            function = "send_recv" if span.pair else span.function
            key = _Key(span.source, span.group, span.pair, span.seq, function)
            parts[key].setdefault(span.rank, part)
            sizes[key] = (span.bytes, max(span.group_size, len(key.group.ranks)))
    return [
        Operation(key.source, key.group, sizes[key][1], key.function, sizes[key][0], key.pair, by_rank)
        for key, by_rank in parts.items()
        if len(by_rank) >= _MIN_MEMBERS or key.pair
    ]


def _timelines(out: Observations) -> Iterator[list[Span]]:
    """Yield, for each source and rank, the operations in the order in which the rank ran them."""
    timelines: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in out.spans:
        if span.duration_ns > 0:
            timelines[span.source, span.rank].append(span)
    for timeline in timelines.values():
        if all(span.begin_ns for span in timeline):
            timeline.sort(key=lambda span: span.begin_ns)
        yield timeline
    messages: dict[int, list[Call | Message]] = defaultdict(list)
    for message in out.messages:
        messages[message.rank].append(message)
    for rank, calls in out.calls.items():
        yield _of_dump([*calls, *messages[rank]])


def _of_dump(records: list[Call | Message]) -> list[Span]:
    """Return the timed operations of a dump.

    Without durations, an operation lasts from the start that PyTorch saw to its end.
    """
    complete = sorted((record for record in records if record.is_complete), key=lambda record: record.order)
    is_timed = any(record.duration_ns for record in complete)
    spans = [_span(record, is_timed) for record in complete]
    return [span for span in spans if span.duration_ns > 0]


def _span(record: Call | Message, is_timed: bool) -> Span:
    begin_ns = 0 if is_timed else record.started_ns or record.created_ns
    duration_ns = record.duration_ns if is_timed else record.ended_ns - begin_ns
    common = ("dumps", record.rank, record.group, len(record.group.ranks), record.seq)
    times = (begin_ns, duration_ns, record.ended_ns)
    if isinstance(record, Message):
        return Span(*common, "send_recv", 0, *times, (record.source, record.target))
    return Span(*common, record.function, max(0, record.elements), *times)


def _parts(timeline: Iterable[Span]) -> Iterator[Part]:
    """Yield the parts of a rank's operations; overlapping time counts once if begin times are known."""
    busy_ns = last_end_ns = 0
    for place, span in enumerate(timeline):
        end_ns = span.begin_ns + span.duration_ns if span.begin_ns else 0
        overlap_ns = max(0, last_end_ns - span.begin_ns) if end_ns else 0
        busy_ns += max(0, span.duration_ns - overlap_ns)
        last_end_ns = max(last_end_ns, end_ns)
        yield Part(span.begin_ns, span.duration_ns, end_ns or span.stamp_ns, busy_ns, place)


def by_group(every: Iterable[Operation]) -> dict[tuple[str, Group, tuple[int, ...]], list[Operation]]:
    """Return, by (source, group, pair), the newest `MAX_OPERATIONS` operations in order.

    The member with the largest number of operations gives the order; operations without it are left out.
    """
    groups: dict[tuple[str, Group, tuple[int, ...]], list[Operation]] = defaultdict(list)
    for operation in every:
        if len(operation.parts) >= _MIN_MEMBERS:
            groups[operation.source, operation.group, operation.pair].append(operation)
    return {key: _ordered(of_group)[-MAX_OPERATIONS:] for key, of_group in groups.items()}


def _ordered(of_group: Sequence[Operation]) -> list[Operation]:
    clock = _clock(of_group)
    of_clock = [operation for operation in of_group if clock in operation.parts]
    return sorted(of_clock, key=lambda operation: operation.parts[clock].place)


def _clock(of_group: Sequence[Operation]) -> int:
    """Return the member with the largest number of operations."""
    numbers = Counter(rank for operation in of_group for rank in operation.parts)
    return min(numbers, key=lambda rank: (-numbers[rank], rank))


def window_ns(of_group: Sequence[Operation]) -> float:
    """Return the mean time from an operation of a group to the next, ns, without the longest, which are
    pauses of the job. If times are unknown, return the mean time in an operation.
    """
    clock = _clock(of_group)
    parts = [operation.parts[clock] for operation in of_group if clock in operation.parts]
    lengths_ns = sorted(later.end_ns - sooner.end_ns for sooner, later in pairwise(parts))
    lengths_ns = lengths_ns[: len(lengths_ns) - int(PAUSES * len(lengths_ns))]
    busy_ns = (parts[-1].busy_ns - parts[0].busy_ns) / max(1, len(parts) - 1)
    return max(1.0, busy_ns, sum(lengths_ns) / max(1, len(lengths_ns)))


def waits(every: Iterable[Operation]) -> list[Wait]:
    """Return the graph's edges, longest first; in each, a rank waits for the last member to arrive."""
    edges: dict[tuple[int, int, Group], int] = defaultdict(int)
    for operation in every:
        last = min(operation.parts, key=lambda rank: operation.parts[rank].duration_ns)
        for rank, part in operation.parts.items():
            if rank != last:
                edges[rank, last, operation.group] += part.duration_ns - operation.transfer_ns
    ordered = sorted(edges.items(), key=lambda item: -item[1])
    return [Wait(*key, wait_ns) for key, wait_ns in ordered if wait_ns > 0]


def begin_together(of_group: Iterable[Operation]) -> bool:
    """Return whether ranks clearly begin together and end apart, by their own clocks, as transfers of
    different duration do. Ranks that end together have arrived apart.
    """
    usable = [operation.parts.values() for operation in of_group if _has_edges(operation)]
    if not usable:
        return False
    begins_ns = median(_spread([part.begin_ns for part in parts]) for parts in usable)
    ends_ns = median(_spread([part.end_ns for part in parts]) for parts in usable)
    return begins_ns * _CLEAR < ends_ns


def _has_edges(operation: Operation) -> bool:
    return all(part.begin_ns > 0 for part in operation.parts.values())


def _spread(values: Sequence[int]) -> int:
    return max(values) - min(values)
