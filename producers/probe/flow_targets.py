"""Which ways a NIC's prober looks at for the sake of live flows, how often, and from which source ports.

In: the ways that its flows take, those that probes from each of its ports take, how often these go out
anyway, the pace that is asked and a cap. Out: turns of single probes that come on top of everything else, and
the ports that are to be added where no port in use goes a flow's way. Pure.

A flow's way is the peer and the directed links to it, in order. Flows on one way share its probes. What
probes cross a way anyway counts towards the pace: where that is enough, nothing is added. Where the cap does
not allow all, ways are lifted to one pace together, the highest that it allows (max-min fair).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["NO_FLOW_TARGETS", "FlowTargets", "PeerRoute", "PathKey", "choose_spare_ports", "max_min_rate_pps", "plan_flow_targets", "schedule_rates_pps"]

Links = tuple[str, ...]
PathKey = tuple[str, int]
"""Peer, source port."""
KnownRoutes = Mapping[PathKey, Links]
"""Of probes from each port to each peer, the links that they take."""

LEAST_SHARE: Final = 0.02
"""Of the pace: a way that lacks less than that has it."""
TOGETHER: Final = 4
"""Ways that share a waking, as far as their paces allow."""
MOST_TOGETHER: Final = 9
ROUND_S: Final = 0.25
"""A round of turns: ways get whole numbers of probes in it, rounded up."""


class PeerRoute(NamedTuple):
    """Where a flow goes: the peer, and the directed links to it in order."""

    peer: str
    links: Links


@dataclass(frozen=True, slots=True)
class FlowTargets:
    """Turns of single probes. `shots`: of each turn of a round, `per_turn` a turn; None: nobody."""

    turn_ns: float
    per_turn: int
    shots: tuple[PathKey | None, ...]
    pace_pps: float
    """That every way reaches that has a port; what was asked, or less under the cap."""

    @property
    def pps(self) -> float:
        """Probes a second, all together."""
        if not self.shots:
            return 0.0
        turns = len(self.shots) // self.per_turn
        return sum(shot is not None for shot in self.shots) / (turns * self.turn_ns * 1e-9)

    def rates_pps(self) -> dict[PathKey, float]:
        """Return (peer, port) to probes a second."""
        turns = len(self.shots) // max(1, self.per_turn)
        counts = Counter(shot for shot in self.shots if shot is not None)
        return {shot: count / (turns * self.turn_ns * 1e-9) for shot, count in counts.items()}


NO_FLOW_TARGETS: Final = FlowTargets(0.0, 1, (), math.inf)


def schedule_rates_pps(shots: Sequence[PathKey], turn_ns: float, per_turn: int) -> dict[PathKey, float]:
    """Return (peer, port) to looks a second of a round of turns of `per_turn` looks each."""
    round_s = len(shots) / per_turn * turn_ns * 1e-9
    return {shot: count / round_s for shot, count in Counter(shots).items()}


def max_min_rate_pps(looked_pps: Sequence[float], pace_pps: float, cap_pps: float) -> float:
    """Return the highest pace, `pace_pps` at most, to which all ways can be lifted by `cap_pps` together.

    `looked_pps`: looks a second that each way has anyway. Water is poured into a vessel whose floor has these
    heights: the level is the answer.
    """
    if sum(max(0.0, pace_pps - has) for has in looked_pps) <= cap_pps:
        return pace_pps
    floor, poured = sorted(looked_pps), 0.0
    for at, has in enumerate(floor):
        above = floor[at + 1] if at + 1 < len(floor) else math.inf
        room = (above - has) * (at + 1)
        if poured + room >= cap_pps:
            return min(pace_pps, has + (cap_pps - poured) / (at + 1))
        poured += room
    return pace_pps


def plan_flow_targets(
    wanted: Iterable[PeerRoute], known: KnownRoutes, rates_pps: Mapping[PathKey, float], pace_pps: float, cap_pps: float
) -> FlowTargets:
    """Return the turns that bring each wanted way to `pace_pps` looks a second, by `cap_pps` probes a second
    more at most; the same input gives the same turns.

    `rates_pps`: how often each (peer, port) goes out anyway. A way that no port goes is left out. Of several
    ports on one way, the one that goes out most often already is taken. Probes of a way are spread evenly
    over a round, and ways over turns so that those with links in common are apart.
    """
    found: dict[PeerRoute, list[PathKey]] = {}
    for way in sorted(set(wanted)):
        shots = sorted(shot for shot, links in known.items() if shot[0] == way.peer and links == way.links)
        if shots and way.links:
            found[way] = shots
    has = {way: sum(rates_pps.get(shot, 0.0) for shot in shots) for way, shots in found.items()}
    pace_pps = max_min_rate_pps(list(has.values()), pace_pps, cap_pps)
    lacks = {
        way: pace_pps - looked for way, looked in has.items() if pace_pps - looked > LEAST_SHARE * pace_pps
    }
    if not lacks:
        return NO_FLOW_TARGETS
    counts = {way: math.ceil(lack * ROUND_S - 1e-9) for way, lack in lacks.items()}
    # rounding up must not break the cap: then the round takes longer
    round_s = max(ROUND_S, sum(counts.values()) / cap_pps)
    shot_of = {way: max(found[way], key=lambda shot: (rates_pps.get(shot, 0.0), -shot[1])) for way in lacks}
    turns = _turns_for(list(counts.values()))
    while (per_turn := max(map(len, plan := _laid(counts, turns)))) > MOST_TOGETHER:
        turns *= 2
    laid: list[PathKey | None] = []
    for ways in plan:
        laid += [shot_of[way] for way in ways] + [None] * (per_turn - len(ways))
    return FlowTargets(round_s * 1e9 / turns, per_turn, tuple(laid), pace_pps)


def _turns_for(counts: Sequence[int]) -> int:
    """Return into how many turns a round falls."""
    return max(max(counts), -(-sum(counts) // TOGETHER))


def _laid(counts: Mapping[PeerRoute, int], turns: int) -> list[list[PeerRoute]]:
    """Return the ways of each turn of a round: each way's in even steps, none twice in a turn.

    The step from one to the next of a way's `n` is turns/n, rounded down or up; where they begin is chosen so
    that turns are equally full, and of equally full ones those whose ways have fewest links in common.
    """
    plan: list[list[PeerRoute]] = [[] for _ in range(turns)]
    crossed: list[Counter[str]] = [Counter() for _ in range(turns)]
    for way in sorted(counts, key=lambda way: (-counts[way], way)):
        count = counts[way]
        inside = way.links[1:-1]

        def places(begin: int, count: int = count) -> list[int]:
            return [(begin + each * turns // count) % turns for each in range(count)]

        def cost(begin: int) -> tuple[int, int, int]:
            at = places(begin)
            shared = sum(crossed[turn][link] for turn in at for link in inside)  # noqa: B023  # used at once
            return max(len(plan[turn]) for turn in at), shared, begin

        best = places(min(range(-(-turns // count)), key=cost))
        for turn in best:
            plan[turn].append(way)
            crossed[turn].update(inside)
    return plan


def choose_spare_ports(
    wanted: Iterable[PeerRoute],
    known: KnownRoutes,
    candidates: Mapping[int, Mapping[str, Links]],
    current: Sequence[int],
    taken: Iterable[int],
) -> list[int]:
    """Return the ports for the spare paths, in the order of `current`; one that serves nobody stays until its
    place is needed.

    `known`: of the ports that are probed from anyway, which are none of the answer, and so serve no way that
    needs another; `candidates`: port to peer to links, of all that were traced; `taken`: ports that are in
    use. Greedy: the port that goes most ways that still lack one, a current one first.
    """
    served = {(peer, links) for (peer, _), links in known.items()}
    lacking = {way for way in wanted if way.links and (way.peer, way.links) not in served}
    out = set(taken)

    def serves(port: int) -> set[PeerRoute]:
        of = candidates.get(port, {})
        return {way for way in lacking if of.get(way.peer) == way.links}

    chosen: list[int] = []
    ports = [port for port in candidates if port not in out]
    while lacking and len(chosen) < len(current):
        free = [port for port in ports if port not in chosen]
        best = max(free, key=lambda port: (len(serves(port)), port in current, -port), default=None)
        if best is None or not (ways := serves(best)):
            break
        chosen.append(best)
        lacking -= ways
    fresh = [port for port in chosen if port not in current]
    result = list(current)
    for at, port in enumerate(current):
        if port not in chosen and fresh:
            result[at] = fresh.pop(0)
    return result
