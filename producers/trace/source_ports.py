"""Which source ports a NIC probes from: few, and together over every way that its packets can take.

In: for each candidate port and peer the way that its packets go (any hashable value, say the tuple of hops),
the ports in use. Out: the ports to use. Pure.

How many candidates: equal-cost routing hands a port to one of n ways as if by lot. All n are seen with
probability 1 - eps or more after n ln n + n ln(1/eps) ports, for the chance that one certain way is missed by
k ports is (1 - 1/n)^k < exp(-k/n), and there are n ways (coupon collector; Motwani and Raghavan, Randomized
Algorithms, 3.6). 64 candidates see 8 spines with 99.7%, and of those the few are kept that see as many.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

__all__ = ["Coverage", "candidates_for", "choose_ports", "coverage_of"]

Way = TypeVar("Way", bound=Hashable)
Ways = Mapping[int, Mapping[str, Hashable]]
"""Port to peer to the way that this port's packets go to that peer."""


class Coverage(NamedTuple):
    """How good a set of ports is, the more important first; more is better.

    `ways`: different ways over all peers. `distinct`: different ways summed over peers, the most that each
    peer's ways or the number of ports allow being best. `even`: minus the sum of squares of how many (peer,
    port) share a way.
    """

    ways: int
    distinct: int
    even: int


def candidates_for(ways: int, miss: float) -> int:
    """Return how many ports to try so that all of `ways` equally likely ways are seen but with chance
    `miss`."""
    if ways < 2:
        return 1
    return math.ceil(ways * math.log(ways) + ways * math.log(1 / miss))


def coverage_of(ports: Sequence[int], ways: Ways) -> Coverage:
    """Return how well `ports` cover the ways; a port or peer whose way is unknown covers nothing."""
    by_peer: dict[str, set[Hashable]] = {}
    shared: Counter[Hashable] = Counter()
    for port in ports:
        for peer, way in ways.get(port, {}).items():
            by_peer.setdefault(peer, set()).add(way)
            shared[way] += 1
    return Coverage(
        len(shared), sum(len(found) for found in by_peer.values()), -sum(n * n for n in shared.values())
    )


class _Tally:
    """How often each way is taken by the ports chosen so far, over all peers and by each."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._shared: Counter[Hashable] = Counter()
        self._of_peer: Counter[tuple[str, Hashable]] = Counter()

    def add(self, port: int, times: int = 1) -> None:
        """Count a port in, or with `times` -1 out."""
        for peer, way in self._ways[port].items():
            self._shared[way] += times
            self._of_peer[peer, way] += times

    def gain(self, port: int) -> Coverage:
        """Return by how much the coverage would grow with this port."""
        fresh: Counter[Hashable] = Counter(self._ways[port].values())
        return Coverage(
            sum(not self._shared[way] for way in fresh),
            sum(not self._of_peer[pair] for pair in self._ways[port].items()),
            -sum((self._shared[way] + n) ** 2 - self._shared[way] ** 2 for way, n in fresh.items()),
        )


def choose_ports(ways: Ways, count: int, current: Sequence[int] = (), gain: float = 0.2) -> list[int]:
    """Return `count` ports of `ways`, in the order of `current` where they stay.

    Greedy: always the port that covers most of what is not covered yet, then each is tried against every
    other once more. The current ports stay unless others cover a way that they miss, or `gain` times more
    different ways summed over peers: ports that change take their delays' floors with them. Too few
    candidates: what there is.
    """
    known = [port for port in ways if ways[port]]
    if len(known) < count:
        return list(current)
    tally = _Tally(ways)

    def best(others: Sequence[int]) -> int:
        left = [port for port in known if port not in others]
        return max(left, key=lambda port: (tally.gain(port), port in current, -port))

    chosen: list[int] = []
    for _ in range(count):
        chosen.append(best(chosen))
        tally.add(chosen[-1])
    for at in range(count):
        tally.add(chosen[at], -1)
        chosen[at] = best(chosen[:at] + chosen[at + 1 :])
        tally.add(chosen[at])
    if len(current) == count:
        now, then = coverage_of(current, ways), coverage_of(chosen, ways)
        if then.ways <= now.ways and then.distinct < (1 + gain) * now.distinct:
            return list(current)
    stay = [port if port in chosen else None for port in current] if len(current) == count else [None] * count
    fresh = iter(sorted(port for port in chosen if port not in current))
    return [port if port is not None else next(fresh) for port in stay]
