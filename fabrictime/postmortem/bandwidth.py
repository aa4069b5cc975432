"""Finds NICs, rails and hosts over which operations are slower than comparable ones. Does no I/O.

Two comparisons are made: the ranks of one operation, of which a minority takes longer than the others; and
groups or pairs of ranks, in operations of the same function, size and number of members. The transfer of an
operation takes as long as its shortest part. The members of a slow group come late to the operations of other
groups, so their lateness there does not count against them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, culprits_of, host_names, names_text, ranks_text, shared_by
from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.timing import Operation, begin_together, by_group
from fabrictime.postmortem.transport import nics_of_ranks

SLOW_RANK: Final = 1.25
"""Duration beside the median of the ranks from which a rank's transfers are slow."""
SLOW_GROUP: Final = 1.15
"""Duration beside that of like groups from which a group is slow."""
MIN_BYTES: Final = 1 << 20
"""Size from which the duration of a group's transfer depends on the bandwidth."""
STEADY: Final = 1.2
"""Ratio of the quartiles of durations from which a group with absent members waits for one: waits vary."""
MAX_SLOW: Final = 5.0
"""Duration beside that of like groups from which a group with absent members rather waits for one: a NIC that
works seldom loses more of its rate.
"""
_MIN_OPERATIONS: Final = 3

_Members = frozenset[int]
_Times = dict[Hashable, dict[_Members, list[Operation]]]
"""Kind of operation to the groups that ran it and their operations."""


class _Comparison(NamedTuple):
    """The slow groups of a kind, the fast groups, the largest ratio, and groups that may wait for a rank that
    recorded nothing.
    """

    slow: set[_Members]
    fast: set[_Members]
    ratio: float
    waiting: set[_Members]


def slow_transfers(every: Sequence[Operation], out: Observations) -> Iterator[Explanation]:
    """Yield an explanation with the ranks, NICs and hosts over which operations take longer than others."""
    for of_group in by_group(every).values():
        ratios = _slow_ranks(of_group) if begin_together(of_group) else {}
        if ratios:
            text = f"transfers of {ranks_text(ratios)} take {max(ratios.values()):.1f} times as long as"
            yield _explanation(set(ratios), f"{text} those of the other ranks", 0.8, out)
            return
    pairs = [_compared(of_kind) for of_kind in _pair_times(every, out).values()]
    groups = [_compared(of_kind) for of_kind in _group_times(every, out).values()]
    slow_pairs, slow_groups = ([kind for kind in kinds if kind.slow] for kinds in (pairs, groups))
    if slow_pairs or slow_groups:
        yield _slow_groups(slow_pairs, slow_groups, out)
    waiting = set().union(*(kind.waiting for kind in groups))
    if waiting:
        members = ranks_text(set().union(*waiting) & out.ranks)
        text = (
            f"{members} wait or transfer slowly in their collectives: a member of their groups left nothing"
        )
        yield Explanation("UNKNOWN", (), 0.5, text, (), ("the records of all members of these groups",))


def _slow_ranks(of_group: Sequence[Operation]) -> dict[int, float]:
    """Return the minority of ranks that take longer in most operations, with the ratio of their times."""
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


def _pair_times(every: Sequence[Operation], out: Observations) -> _Times:
    """Return the messages by size and pair of ranks; in the group of the whole job, positions are ranks."""
    times: _Times = defaultdict(lambda: defaultdict(list))
    for operation in every:
        is_job = operation.group_size >= out.expected and not operation.group.ranks
        ranks = frozenset(operation.pair if is_job else operation.parts)
        if operation.pair and len(ranks) == 2:
            times[operation.source, operation.bytes][ranks].append(operation)
    return times


def _group_times(every: Sequence[Operation], out: Observations) -> _Times:
    times: _Times = defaultdict(lambda: defaultdict(list))
    members: dict[Hashable, set[int]] = defaultdict(set)
    for operation in every:
        members[operation.source, operation.group].update(operation.group.ranks or operation.parts)
    for operation in every:
        ranks = frozenset(members[operation.source, operation.group])
        if operation.pair or 0 < operation.bytes < MIN_BYTES:
            continue
        hosts = len({out.host_of(rank) for rank in ranks})
        kind = (operation.source, operation.group.description, operation.function, operation.bytes)
        times[*kind, operation.group_size or len(ranks), hosts][ranks].append(operation)
    return times


def _compared(of_kind: Mapping[_Members, Sequence[Operation]]) -> _Comparison:
    """Return the slow groups for one kind of operation; none if more than half of the groups seem slow."""
    times = {ranks: of_ranks for ranks, of_ranks in of_kind.items() if len(of_ranks) >= _MIN_OPERATIONS}
    quarters = {
        ranks: quantiles([operation.transfer_ns for operation in of_ranks])
        for ranks, of_ranks in times.items()
    }
    if len(quarters) < 2:
        return _Comparison(set(), set(), 1.0, set())
    typical_ns = sorted(low for low, _, _ in quarters.values())[(len(quarters) - 1) // 4]
    ratios = {ranks: low / typical_ns for ranks, (low, _, _) in quarters.items()}
    above = {ranks for ranks, ratio in ratios.items() if ratio >= SLOW_GROUP}
    waiting = {
        ranks
        for ranks in above
        if not all(operation.is_complete for operation in times[ranks])
        and (ratios[ranks] > MAX_SLOW or quarters[ranks][2] > STEADY * quarters[ranks][0])
    }
    slow = above - waiting
    if 2 * len(slow) > len(quarters) - len(waiting):
        slow = set()
    ratio = max((ratios[ranks] for ranks in slow), default=1.0)
    return _Comparison(slow, quarters.keys() - above, ratio, waiting)


def _slow_groups(
    pairs: Sequence[_Comparison], groups: Sequence[_Comparison], out: Observations
) -> Explanation:
    """Explain slow pairs and slow groups by the ranks that they have in common, else by common hosts."""
    every = [*groups, *pairs]
    suspects = [set(shared_by(kind.slow, kind.fast)) for kind in every]
    common = set.intersection(*suspects) or max(suspects, key=len)
    slow = set().union(*(kind.slow for kind in every))
    members = ranks_text(set().union(*slow))
    place = f"collectives of the groups of {members}" if groups else f"messages of {members}"
    text = f"{place} take {max(kind.ratio for kind in every):.1f} times as long as like ones"
    hosts = _common_hosts(slow, set().union(*(kind.fast for kind in every)), out)
    if hosts and not common:
        return Explanation("SLOW_NIC", host_names(hosts), 0.7, text)
    return _explanation(common or set().union(*slow), text, 0.75, out)


def _common_hosts(slow: Collection[_Members], fast: Collection[_Members], out: Observations) -> list[str]:
    """Return the hosts that are in all slow groups and in no fast group."""
    of_slow = [{out.host_of(rank) for rank in ranks} - {""} for ranks in slow]
    of_fast = {out.host_of(rank) for ranks in fast for rank in ranks}
    return sorted(set.intersection(*of_slow) - of_fast) if of_slow else []


def _explanation(ranks: set[int], text: str, confidence: float, out: Observations) -> Explanation:
    """Return an explanation with the ranks' NICs, if the logs state them, their hosts, then the ranks."""
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
    """Return each NIC that is the only one of a rank in `ranks`, if possible one that no other rank uses."""
    of_others = {name for rank, names in nics.items() if rank not in ranks for name in names}
    own = [nics[rank] - of_others or nics[rank] for rank in sorted(ranks) if nics.get(rank)]
    return sorted({name for names in own if len(names) == 1 for name in names})
