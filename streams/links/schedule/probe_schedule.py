"""Probe schedules of a shard: the slots of all NICs, planned together so that every link is probed evenly.

The plan uses the slots that each prober announces and the known routes. native/core/probe_schedule.c chooses
the paths. The same input gives the same plan.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from native.core import ClockLine
from native.core.probe_schedule import plan_schedule
from schemas.records import ProbeSchedule
from streams.runtime.route_table import REQUEST, RouteTable

PathKey = tuple[str, int]
"""A path of a NIC: the peer and the entropy value."""

SLOTS_PER_PATH: Final = 2
"""Probes in a cycle per path, for the NIC with the most paths. More spreads probes more evenly."""
MAX_SLOTS: Final = 512
"""Slots in a cycle; bounds the size of a record."""
MAX_PROBES_PER_SLOT: Final = 9
"""Probes in one slot that the planner supports."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedule of one NIC. `phase`: offset of its slots from the common start, as a share of a slot."""

    slot_ns: int
    probes_per_slot: int
    phase: float
    paths: tuple[PathKey, ...]
    """Path of each probe of a cycle, slot by slot."""


def plan_shard(probe_slots: Mapping[str, tuple[int, int]], routes: RouteTable) -> dict[str, Plan]:
    """Return the plan of each NIC that has a known path.

    `probe_slots`: for each NIC, ns between slots and probes per slot. NICs with equal values are planned
    together. Their phases are spread evenly, in an order drawn from their names.
    """
    paths = _known_paths(routes, probe_slots)
    groups: dict[tuple[int, int], list[str]] = {}
    for nic in sorted(paths):
        slot_ns, probes = probe_slots[nic]
        groups.setdefault((slot_ns, min(probes, MAX_PROBES_PER_SLOT)), []).append(nic)
    plans: dict[str, Plan] = {}
    for (slot_ns, probes), nics in sorted(groups.items()):
        plans |= _plan_group(slot_ns, probes, nics, paths, routes)
    return plans


def _known_paths(routes: RouteTable, probe_slots: Mapping[str, tuple[int, int]]) -> dict[str, list[PathKey]]:
    paths_by_nic: dict[str, list[PathKey]] = {}
    for nic, peer in routes.pairs():
        if nic in probe_slots:
            values = sorted(path for leg, path in routes.paths(nic, peer) if leg == REQUEST)
            if values:
                paths_by_nic.setdefault(nic, []).extend((peer, path) for path in values)
    return {nic: sorted(paths) for nic, paths in paths_by_nic.items()}


def _plan_group(
    slot_ns: int, probes: int, nics: list[str], paths: Mapping[str, list[PathKey]], routes: RouteTable
) -> dict[str, Plan]:
    """Return the plans of `nics`, which all have the same slot time and probes per slot."""
    numbers: dict[str, int] = {}
    path_link: list[int] = []
    link_start, path_start = [0], [0]
    for nic in nics:
        for peer, path in paths[nic]:
            # The first link of each direction is left out: timestamps are taken behind its queue.
            links = routes.forward(nic, peer, path)[1:] + routes.reverse(nic, peer, path)[1:]
            path_link += [numbers.setdefault(link, len(numbers)) for link in dict.fromkeys(links)]
            link_start.append(len(path_link))
        path_start.append(len(link_start) - 1)
    order = sorted(range(len(nics)), key=lambda at: (zlib.crc32(nics[at].encode()), nics[at]))
    phase = np.zeros(len(nics))
    phase[order] = np.arange(len(nics)) / len(nics)
    max_paths = max(len(paths[nic]) for nic in nics)
    slots = min(MAX_SLOTS, max(1, -(-SLOTS_PER_PATH * max_paths // probes)))
    schedule = plan_schedule(
        path_start,
        link_start,
        path_link,
        len(numbers),
        phase,
        slots=slots,
        probes_per_slot=probes,
        seed=len(nics),
    )
    return {
        nic: Plan(
            slot_ns,
            probes,
            float(phase[at]),
            tuple(paths[nic][number] for number in schedule[at].ravel().tolist()),
        )
        for at, nic in enumerate(nics)
    }


def records_of(
    plans: Mapping[str, Plan], shard: str, models: Mapping[str, ClockLine], now_ns: int
) -> dict[str, ProbeSchedule]:
    """Return the `ProbeSchedule` of each NIC with a known clock. `now_ns`: fabric time.

    Cycles begin at multiples of their length, so that a new plan continues the cycle of the old plan.
    """
    records: dict[str, ProbeSchedule] = {}
    for nic, plan in plans.items():
        model = models.get(nic)
        if model is None:
            continue
        cycle_ns = plan.slot_ns * (len(plan.paths) // plan.probes_per_slot)
        begin_ns = now_ns - now_ns % cycle_ns
        peers = list(dict.fromkeys(peer for peer, _ in plan.paths))
        number = {peer: at for at, peer in enumerate(peers)}
        records[nic] = {
            "nic": nic,
            "shard": shard,
            "planned_ns": now_ns,
            "begin_ns": begin_ns + round(plan.phase * plan.slot_ns),
            "slot_ns": float(plan.slot_ns),
            "probes_per_slot": plan.probes_per_slot,
            "clock_at_ns": model.at_ns,
            "offset_ns": model.offset_ns,
            "drift_ppb": model.drift_ppb,
            "peers": peers,
            "peer": [number[peer] for peer, _ in plan.paths],
            "path": [path for _, path in plan.paths],
        }
    return records
