"""Compares the uplinks that routes take with the plan: hashing over too few loses bandwidth. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from schemas.audit_remedy import remedy
from schemas.ids import link_ends, natural
from schemas.records import AuditStatus
from schemas.topology import end_text, nic_end, split_end
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, warning

MAX_CHANCE: Final = 1e-3
"""Accepted expected number of uplinks, over all leaves, that no route takes merely by chance."""
MAX_NAMED: Final = 4


@warning("fabric.uplinks", "Routes use all uplinks of a leaf")
@remedy.monitor("Check that the uplink is up and in the routing protocol's equal-cost group")
def uplinks(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per leaf: FAILED if no route takes some of its uplinks, and hardly by chance.

    The number of a leaf's uplinks comes from the plan; without a plan, it is the number that most leaves use.
    A leaf with too few routes through it is UNKNOWN.
    """
    links_by_leaf, routes = _seen(fabric)
    planned = _planned(fabric)
    if not links_by_leaf and not planned:
        yield Found(FLEET, "", AuditStatus.SKIPPED, "no route passes a leaf's uplinks")
        return
    majority_count = (
        Counter(len(links) for links in links_by_leaf.values()).most_common(1)[0][0] if links_by_leaf else 0
    )
    leaves = sorted(planned.keys() & links_by_leaf.keys() if planned else links_by_leaf, key=natural)
    for leaf in leaves:
        expected = len(planned[leaf]) if planned else majority_count
        used = len(links_by_leaf[leaf] & planned[leaf]) if planned else len(links_by_leaf[leaf])
        count = routes[leaf]
        if used >= expected:
            text = f"{leaf}: {count} routes use all {expected} uplinks"
            yield Found(FLEET, leaf, AuditStatus.PASSED, text)
            continue
        # each route takes one of `expected` uplinks with equal chance: those that no route takes
        chance = expected * (1 - 1 / expected) ** count
        if chance * len(leaves) > MAX_CHANCE:
            text = f"{leaf}: {used} of {expected} uplinks seen, {count} routes are too few to see all"
            yield Found(FLEET, leaf, AuditStatus.UNKNOWN, text)
            continue
        unused = sorted(planned[leaf] - links_by_leaf[leaf], key=natural)[:MAX_NAMED] if planned else []
        named = f", none over {', '.join(unused)}" if unused else ""
        text = f"{leaf}: {count} routes use {used} of {expected} uplinks{named}"
        yield Found(FLEET, leaf, AuditStatus.FAILED, text)


def _seen(fabric: FabricRecords) -> tuple[dict[str, set[str]], Counter[str]]:
    """Return, by leaf, the ports of its uplinks with routes, and the number of different flows through it.

    Only the first switch of a route chooses an uplink for the route.
    """
    ports: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    for traced in fabric.traced:
        if len(traced.links) < 4 or split_end(link_ends(traced.links[0])[0]) != nic_end(traced.nic):
            continue
        port = link_ends(traced.links[1])[0]
        leaf = split_end(port).node
        if not fabric.is_host_end(port):
            ports[leaf].add(port)
            count[leaf] += 1
    return dict(ports), count


def _planned(fabric: FabricRecords) -> dict[str, set[str]]:
    """Return, by leaf, the ports of its uplinks in the plan."""
    topology, links_by_leaf = fabric.topology, defaultdict[str, set[str]](set)
    for link in topology.links():
        near, far = (split_end(end) for end in link_ends(link))
        tiers = topology.tier(near.node), topology.tier(far.node)
        if tiers[0] == 1 and (tiers[1] or 0) > 1:
            links_by_leaf[near.node].add(end_text(near))
    return dict(links_by_leaf)
