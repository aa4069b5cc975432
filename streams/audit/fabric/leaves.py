"""Finds the cables that traces show, and the leaf of each NIC, by routes or by delays alone. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import numpy as np

from schemas.ids import host_of
from schemas.topology import LAYER_2, End, nic_end, split_end
from streams.audit.fabric.records import FabricRecords
from streams.runtime.switch_names import Groups, SwitchNames, leaf_name, names_of

UNNAMED_PORTS: Final = frozenset({"?", "ip"})
"""Ports of ends of which only the address of the switch is known."""
TIER_GAP: Final = 1.3
"""Least ratio of round trips over a spine to those within a leaf."""


def traced_cables(fabric: FabricRecords) -> dict[End, End]:
    """Return, for each end of a traced cable, its far end by the newest trace."""
    newest: dict[str, int] = {}
    for traced in fabric.traced:
        for link in traced.links:
            newest[link] = max(newest.get(link, traced.at_ns), traced.at_ns)
    cables: dict[End, tuple[int, End]] = {}
    for link, at_ns in newest.items():
        a, b = (split_end(end) for end in link.split(">"))
        if a.port in UNNAMED_PORTS or b.port in UNNAMED_PORTS:
            continue
        for near, far in ((a, b), (b, a)):
            if near not in cables or (at_ns, far) > cables[near]:
                cables[near] = at_ns, far
    return {near: far for near, (_, far) in cables.items()}


def leaves_by_route(fabric: FabricRecords) -> dict[str, str]:
    """Return, by NIC, the switch with which its routes begin or end."""
    groups, leaves = Groups(), defaultdict[str, Counter[str]](Counter)
    names = SwitchNames()
    routes = Counter((traced.nic, traced.peer, traced.links) for traced in fabric.traced)
    for (nic, peer, links), count in routes.items():
        names = names.union(names_of(nic, peer, links, True))
        ends = [tuple(split_end(end) for end in link.split(">")) for link in links]
        for near, far, name in ((ends[0][0], ends[0][1], nic), (ends[-1][1], ends[-1][0], peer)):
            if near == nic_end(name) and far.node != LAYER_2:
                leaves[name][leaf_name(far.node, name)] += count
    groups.add(*names)
    return {
        nic: groups.find(min(counts.items(), key=lambda item: (-item[1], item[0]))[0])
        for nic, counts in leaves.items()
        if nic in fabric.nic_of
    }


def leaves_by_delay(fabric: FabricRecords) -> dict[str, str]:
    """Return, by NIC, the group of NICs on its leaf, from round trips alone, which need no clock.

    Requests within a leaf cross two cables, all others four or more. The largest gap between sorted round
    trips separates the two kinds. Without such a gap, nothing is returned.
    """
    rtt_ns: dict[tuple[str, str], float] = {}
    for record in fabric.delays:
        for path in record["paths"]:
            if path["rtt_min_ns"] and host_of(record["nic"]) != host_of(path["peer"]):
                a, b = sorted((record["nic"], path["peer"]))
                rtt_ns[a, b] = min(rtt_ns.get((a, b), path["rtt_min_ns"]), path["rtt_min_ns"])
    if len(rtt_ns) < 2:
        return {}
    values = np.sort(np.array(list(rtt_ns.values())))
    ratios = values[1:] / values[:-1]
    cut = int(np.argmax(ratios))
    if ratios[cut] < TIER_GAP:
        return {}
    groups = Groups()
    for (a, b), value in rtt_ns.items():
        if value <= values[cut]:
            groups.join(a, b)
    named = {nic: groups.find(nic) for pair in rtt_ns for nic in pair if nic in fabric.nic_of}
    sizes = Counter(named.values())
    return {nic: f"the leaf of {root}" for nic, root in named.items() if sizes[root] > 1}
