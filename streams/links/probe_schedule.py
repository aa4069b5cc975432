"""Turns for a shard's probers: who looks at which links when, so that each is looked at in even steps.

In: the pace of each prober, the paths that are known, the clocks. Out: `ProbeSchedule` of each NIC. How ways are
chosen stands in native/core/turns.c. Pure; the same input gives the same turns.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from native.core import ClockLine
from native.core.turns import plan_schedule
from streams.runtime.route_table import REQUEST, RouteTable

__all__ = ["Plan", "plan_shard", "records_of"]

Record = dict[str, Any]
FlowRoute = tuple[str, int]
"""Peer, source port."""

ROUNDS: Final = 2
"""Turns of a round for each way of a NIC that has most: more make the choice of ways evener over pairs."""
MOST_TURNS: Final = 512
MOST_SHOTS: Final = 9


@dataclass(frozen=True, slots=True)
class Plan:
    """The turns of one NIC. `phase`: share of a turn by which it begins after the others' common start."""

    turn_ns: int
    shots: int
    phase: float
    ways: tuple[FlowRoute, ...]
    """Of each shot of a round, turn by turn."""


def plan_shard(paces: Mapping[str, tuple[int, int]], paths: RouteTable) -> dict[str, Plan]:
    """Return NIC to its plan, of those with a path that anything is known of.

    `paces`: NIC to (ns from turn to turn, paths in each). NICs of one pace are planned together; the phases
    of their turns are spread evenly, in an order that is drawn from their names.
    """
    ways = _ways(paths, paces)
    groups: dict[tuple[int, int], list[str]] = {}
    for nic in sorted(ways):
        turn_ns, shots = paces[nic]
        groups.setdefault((turn_ns, min(shots, MOST_SHOTS)), []).append(nic)
    plans: dict[str, Plan] = {}
    for (turn_ns, shots), nics in sorted(groups.items()):
        plans |= _planned(turn_ns, shots, nics, ways, paths)
    return plans


def _ways(paths: RouteTable, paces: Mapping[str, tuple[int, int]]) -> dict[str, list[FlowRoute]]:
    found: dict[str, list[FlowRoute]] = {}
    for nic, peer in paths.pairs():
        if nic in paces:
            ports = sorted(port for leg, port in paths.paths(nic, peer) if leg == REQUEST)
            if ports:
                found.setdefault(nic, []).extend((peer, port) for port in ports)
    return {nic: sorted(ways) for nic, ways in found.items()}


def _planned(
    turn_ns: int, shots: int, nics: list[str], ways: Mapping[str, list[FlowRoute]], paths: RouteTable
) -> dict[str, Plan]:
    numbers: dict[str, int] = {}
    hop_link: list[int] = []
    hop_start, way_start = [0], [0]
    for nic in nics:
        for peer, port in ways[nic]:
            # the first link of each direction is not looked at: stamps are taken behind its queue
            links = paths.forward(nic, peer, port)[1:] + paths.reverse(nic, peer, port)[1:]
            hop_link += [numbers.setdefault(link, len(numbers)) for link in dict.fromkeys(links)]
            hop_start.append(len(hop_link))
        way_start.append(len(hop_start) - 1)
    drawn = sorted(range(len(nics)), key=lambda at: (zlib.crc32(nics[at].encode()), nics[at]))
    phase = np.zeros(len(nics))
    phase[drawn] = np.arange(len(nics)) / len(nics)
    most = max(len(ways[nic]) for nic in nics)
    turns = min(MOST_TURNS, max(1, -(-ROUNDS * most // shots)))
    chosen = plan_schedule(
        way_start, hop_start, hop_link, len(numbers), phase, turns=turns, shots=shots, seed=len(nics)
    )
    return {
        nic: Plan(
            turn_ns, shots, float(phase[at]), tuple(ways[nic][way] for way in chosen[at].ravel().tolist())
        )
        for at, nic in enumerate(nics)
    }


def records_of(
    plans: Mapping[str, Plan], shard: str, lines: Mapping[str, ClockLine], now_ns: int
) -> dict[str, Record]:
    """Return NIC to its `ProbeSchedule`, of those whose clock is known. `now_ns`: fabric time.

    Turns begin at round times, so that a plan made anew goes on where the last one was.
    """
    records = {}
    for nic, plan in plans.items():
        line = lines.get(nic)
        if line is None:
            continue
        begin_ns = now_ns - now_ns % (plan.turn_ns * (len(plan.ways) // plan.shots))
        peers = list(dict.fromkeys(peer for peer, _ in plan.ways))
        number = {peer: at for at, peer in enumerate(peers)}
        records[nic] = {
            "nic": nic,
            "shard": shard,
            "planned_ns": now_ns,
            "begin_ns": begin_ns + round(plan.phase * plan.turn_ns),
            "slot_ns": float(plan.turn_ns),
            "probes_per_slot": plan.shots,
            "clock_at_ns": line.at_ns,
            "offset_ns": line.offset_ns,
            "drift_ppb": line.drift_ppb,
            "peers": peers,
            "peer": [number[peer] for peer, _ in plan.ways],
            "path": [port for _, port in plan.ways],
        }
    return records
