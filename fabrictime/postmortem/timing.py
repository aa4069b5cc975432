"""Brings the timed operations of all sources into one form, with arrivals that no clock offset distorts.
Pure.

An operation of a group ends at all members at about the same time. So the member that arrives last has the
shortest duration, whatever its clock reads: arrival = -duration. Where a source has no durations, the
offset of a rank's clock is the median over all operations of the difference of its ends from the group's
median end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final, NamedTuple

from fabrictime.postmortem.observations import Group, Observations

MAX_OPERATIONS: Final = 20_000
"""Largest number of operations that are compared for one source and group, the newest ones."""
_MIN_MEMBERS: Final = 2
_CLEAR: Final = 3
"""Ratio of the spreads of begins and ends from which one of them is the common moment."""


class Part(NamedTuple):
    """A rank's part of an operation, ns."""

    begin_ns: int
    duration_ns: int
    end_ns: int


class Operation(NamedTuple):
    """An operation of a group with the parts of its members."""

    source: str
    group: Group
    group_size: int
    function: str
    bytes: int
    parts: dict[int, Part]


class _Key(NamedTuple):
    source: str
    group: Group
    seq: int
    function: str


def operations(out: Observations) -> list[Operation]:
    """Return the operations that at least two ranks recorded, oldest first."""
    parts: dict[_Key, dict[int, Part]] = defaultdict(dict)
    sizes: dict[_Key, tuple[int, int]] = {}
    for key, rank, part, size, members in _parts(out):
        parts[key].setdefault(rank, part)
        sizes[key] = (size, max(members, len(key.group.ranks)))
    return [
        Operation(key.source, key.group, sizes[key][1], key.function, sizes[key][0], by_rank)
        for key, by_rank in sorted(parts.items(), key=lambda item: (item[0].source, item[0].seq))
        if len(by_rank) >= _MIN_MEMBERS
    ]


def _parts(out: Observations) -> Iterator[tuple[_Key, int, Part, int, int]]:
    for span in out.spans:
        key = _Key(span.source, span.group, span.seq, span.function)
        part = Part(span.begin_ns, span.duration_ns, span.begin_ns + span.duration_ns)
        yield key, span.rank, part, span.bytes, span.group_size
    for rank, calls in out.calls.items():
        for call in calls:
            if call.is_complete and call.created_ns:
                begin_ns = call.started_ns or call.created_ns
                key = _Key("dumps", call.group, call.seq, call.function)
                yield key, rank, Part(begin_ns, call.duration_ns, call.ended_ns), max(0, call.elements), 0


def arrivals(of_group: list[Operation]) -> list[dict[int, float]]:
    """Return for each operation of one group rank to arrival, ns, from its duration. Only differences within
    an operation have a meaning. Empty if durations are missing.
    """
    complete = [all(part.duration_ns > 0 for part in operation.parts.values()) for operation in of_group]
    if sum(complete) < 0.8 * len(of_group):
        return []
    return [
        {rank: float(-part.duration_ns) for rank, part in operation.parts.items()}
        for operation, is_complete in zip(of_group, complete, strict=True)
        if is_complete
    ]


def begins(of_group: list[Operation]) -> list[dict[int, float]]:
    """Return for each operation of one group rank to begin, ns, on a common clock: the ranks' ends agree."""
    usable = [operation for operation in of_group if _has_edges(operation)]
    offsets = clock_offsets(usable)
    return [
        {rank: part.begin_ns - offsets[rank] for rank, part in operation.parts.items()}
        for operation in usable
    ]


def _has_edges(operation: Operation) -> bool:
    return all(part.begin_ns > 0 and part.end_ns > 0 for part in operation.parts.values())


def begin_together(of_group: list[Operation]) -> bool | None:
    """Return whether the ranks begin together rather than end together by their own clocks; None if
    neither is clear. Ranks that begin together and end apart transfer slowly; those that end together
    arrived apart.
    """
    usable = [operation for operation in of_group if _has_edges(operation)]
    if not usable:
        return None
    apart = [
        median(_spread([getattr(part, edge) for part in operation.parts.values()]) for operation in usable)
        for edge in ("begin_ns", "end_ns")
    ]
    if min(apart) > max(apart) / _CLEAR:
        return None
    return apart[0] < apart[1]


def _spread(values: list[int]) -> int:
    return max(values) - min(values)


def clock_offsets(of_group: list[Operation]) -> Mapping[int, float]:
    """Return rank to the median difference of its ends from the group's median end, ns."""
    differences: dict[int, list[float]] = defaultdict(list)
    for operation in of_group:
        middle = median(part.end_ns for part in operation.parts.values())
        for rank, part in operation.parts.items():
            differences[rank].append(part.end_ns - middle)
    return {rank: median(values) for rank, values in differences.items()}


def by_group(every: list[Operation]) -> dict[tuple[str, Group], list[Operation]]:
    """Return source and group to their operations, the newest `MAX_OPERATIONS` of them."""
    groups: dict[tuple[str, Group], list[Operation]] = defaultdict(list)
    for operation in every:
        groups[operation.source, operation.group].append(operation)
    return {key: of_group[-MAX_OPERATIONS:] for key, of_group in groups.items()}
