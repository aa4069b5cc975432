"""Finds NICs, rails and hosts over which operations of a profiler are slower than their like. Pure.

Two comparisons: the ranks of one operation, of which a minority takes longer than the others; and groups or
pairs of ranks, in operations of the same function, size and number of members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, culprits_of, host_names, names_text, ranks_text, shared_by
from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.timing import Operation, begin_together, by_group
from fabrictime.postmortem.transport import nics_of_ranks

SLOW_RANK: Final = 1.25
"""Duration beside the median of the ranks from which a rank's transfers are slow."""
SLOW_GROUP: Final = 1.25
"""Duration beside that of like groups from which a group is slow."""
_MIN_OPERATIONS: Final = 3

_Members = frozenset[int]
_Times = dict[Hashable, dict[_Members, list[int]]]
"""Kind of operation to the groups that ran it and their durations, ns."""


class _Comparison(NamedTuple):
    """The groups that are slower than like ones, the others, and the largest ratio."""

    slow: set[_Members]
    fast: set[_Members]
    ratio: float


def slow_transfers(every: Sequence[Operation], out: Observations) -> Iterator[Explanation]:
    """Yield the ranks, and their NICs and hosts, over which operations take longer; the first that is
    found.
    """
    timed = [operation for operation in every if operation.source != "dumps"]
    for of_group in by_group(timed).values():
        ratios = _slow_ranks(of_group) if begin_together(of_group) else {}
        if ratios:
            text = f"transfers of {ranks_text(ratios)} take {max(ratios.values()):.1f} times as long as"
            yield _explanation(set(ratios), f"{text} those of the other ranks", 0.8, out)
            return
    pairs = _compared(_pair_times(out))
    if pairs is not None:
        ranks = set(shared_by(pairs.slow, pairs.fast))
        text = f"messages of {ranks_text(ranks)} take {pairs.ratio:.1f} times as long as like ones"
        yield _explanation(ranks, text, 0.75, out)
        return
    groups = _compared(_group_times(timed))
    if groups is not None:
        yield from _slow_groups(groups, out)


def _slow_ranks(of_group: Sequence[Operation]) -> dict[int, float]:
    """Return the minority of ranks that take longer in most operations, with their ratios."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for operation in of_group:
        middle = median(part.duration_ns for part in operation.parts.values())
        if len(operation.parts) < 3 or middle <= 0:
            continue
        for rank, part in operation.parts.items():
            ratios[rank].append(part.duration_ns / middle)
    middles = {rank: median(values) for rank, values in ratios.items() if len(values) >= _MIN_OPERATIONS}
    slow = {rank: ratio for rank, ratio in middles.items() if ratio >= SLOW_RANK}
    return slow if 2 * len(slow) <= len(middles) else {}


def _pair_times(out: Observations) -> _Times:
    times: _Times = defaultdict(lambda: defaultdict(list))
    for pair in out.pairs:
        times[pair.bytes][frozenset((pair.rank, pair.peer))].append(pair.duration_ns)
    return times


def _group_times(timed: Sequence[Operation]) -> _Times:
    """Return the times of the fastest member of each operation: it did not wait for the others."""
    times: _Times = defaultdict(lambda: defaultdict(list))
    members: dict[Hashable, set[int]] = defaultdict(set)
    for operation in timed:
        members[operation.source, operation.group].update(operation.group.ranks or operation.parts)
    for operation in timed:
        ranks = frozenset(members[operation.source, operation.group])
        kind = (operation.source, operation.function, operation.bytes, operation.group_size or len(ranks))
        times[kind][ranks].append(min(part.duration_ns for part in operation.parts.values()))
    return times


def _compared(times: _Times) -> _Comparison | None:
    """Return the groups that are slow in a kind of operation; None if there are none or too many."""
    slow: set[_Members] = set()
    compared: set[_Members] = set()
    largest = 0.0
    for of_kind in times.values():
        middles = {
            ranks: median(of_ranks) for ranks, of_ranks in of_kind.items() if len(of_ranks) >= _MIN_OPERATIONS
        }
        if len(middles) < 2:
            continue
        typical = median(middles.values()) if len(middles) > 2 else min(middles.values())
        ratios = {ranks: middle / max(typical, 1) for ranks, middle in middles.items()}
        slow.update(ranks for ranks, ratio in ratios.items() if ratio >= SLOW_GROUP)
        compared.update(middles)
        largest = max(largest, *ratios.values())
    return _Comparison(slow, compared - slow, largest) if 0 < 2 * len(slow) <= len(compared) else None


def _slow_groups(groups: _Comparison, out: Observations) -> Iterator[Explanation]:
    members = frozenset().union(*groups.slow)
    text = f"collectives of the groups of {ranks_text(members)} take {groups.ratio:.1f} times as long"
    text += " as those of like groups"
    ranks = members.difference(*groups.fast)
    hosts = _common_hosts(groups.slow, groups.fast, out)
    if ranks:
        yield _explanation(set(shared_by(groups.slow, groups.fast)) or set(ranks), text, 0.7, out)
    elif hosts:
        yield Explanation("SLOW_NIC", host_names(hosts), 0.7, text)


def _common_hosts(slow: Collection[_Members], fast: Collection[_Members], out: Observations) -> list[str]:
    """Return the hosts that are in all slow groups and in no fast one."""
    of_slow = [{out.host_of(rank) for rank in ranks} - {""} for ranks in slow]
    of_fast = {out.host_of(rank) for ranks in fast for rank in ranks}
    return sorted(set.intersection(*of_slow) - of_fast) if of_slow else []


def _explanation(ranks: set[int], text: str, confidence: float, out: Observations) -> Explanation:
    """Name the NICs of ranks if the logs state them, their hosts, then the ranks."""
    devices = _own_devices(ranks, nics_of_ranks(out))
    place = culprits_of(ranks, out)
    hosts = [name for name in place if name.startswith("host ")]
    culprits = [*(f"nic {device}" for device in devices[:8]), *hosts, *place]
    missing = () if devices else ("logs of NCCL_DEBUG=INFO would say which NIC these ranks used",)
    if devices:
        text += f"; they use {names_text(devices)}"
    elif hosts:
        text += f", on {names_text([host.removeprefix('host ') for host in hosts])}"
    return Explanation("SLOW_NIC", tuple(dict.fromkeys(culprits)), confidence, text, (), missing)


def _own_devices(ranks: set[int], nics: Mapping[int, set[str]]) -> list[str]:
    """Return the NICs of ranks that use one NIC of their own, which no other rank uses."""
    of_others = {name for rank, names in nics.items() if rank not in ranks for name in names}
    own = [nics[rank] - of_others or nics[rank] for rank in sorted(ranks) if nics.get(rank)]
    return sorted({name for names in own if len(names) == 1 for name in names})
