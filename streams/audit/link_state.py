"""Links: their health and history since the last audit, and queues that are tied to a link. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np

from schemas.ids import far_node, near_node
from schemas.records import AuditStatus, LinkHealth, LinkQueue, LinkState
from streams.audit.fabric_records import FabricRecords
from streams.audit.results import FLEET, Found
from streams.audit.robust import MIN_VALUES, odd_ones

__all__ = ["link_health", "link_history", "link_queues"]

FAULTY: Final[Mapping[str, str]] = {
    LinkState.DOWN: "is down",
    LinkState.GREY: "loses packets",
    LinkState.FLAPPING: "flaps",
}
MIN_QUEUE_NS: Final = 2_000.0
"""Mean queueing that is never odd: a few packets of a fast link."""
QUEUE_RELATIVE: Final = 3.0
"""Mean queues up to four times the median come from uneven jobs."""


def link_health(fabric: FabricRecords) -> Iterator[Found]:
    """Yield the links, NICs and hosts that are dead, grey or flapping now."""
    newest = _newest(fabric)
    faulty = [each for each in newest.values() if each["state"] in FAULTY]
    for health in faulty:
        loss = health["loss_rate"]
        share = f" ({loss:.2%} of them)" if loss is not None else ""
        text = f"{health['subject']} {FAULTY[health['state']]}{share}: {health['text']}"
        yield fabric.of_subject(health["subject"], AuditStatus.FAILED, text)
    if not faulty:
        known = _known(fabric, newest)
        text = f"none of {known} known links, NICs and hosts has a fault"
        yield Found(FLEET, "", AuditStatus.PASSED if known else AuditStatus.UNKNOWN, text)


def link_history(fabric: FabricRecords) -> Iterator[Found]:
    """Yield the links that are up, but were not all the time since the last audit."""
    newest = _newest(fabric)
    count = 0
    for health in newest.values():
        if health["state"] in FAULTY:
            continue
        went_down = sum(at_ns >= fabric.since_ns for at_ns in health["flap_ns"])
        recovered = health["since_ns"] >= max(fabric.since_ns, 1) and health["before"] in FAULTY
        if not went_down and not recovered:
            continue
        count += 1
        text = f"{health['subject']} is up, but "
        text += f"went down {went_down} times" if went_down else f"was {health['before']}"
        text += f" since the last audit, {health['flaps_total']} times in all"
        yield fabric.of_subject(health["subject"], AuditStatus.FAILED, text)
    if not count:
        known = _known(fabric, newest)
        text = f"none of {known} known links, NICs and hosts had a fault since the last audit"
        yield Found(FLEET, "", AuditStatus.PASSED if known else AuditStatus.UNKNOWN, text)


def _known(fabric: FabricRecords, newest: Collection[str]) -> int:
    """Return the number of links of traced routes, NICs and hosts. Without a fault, none has a record."""
    return len({link for route in fabric.traced for link in route.links} | set(newest))


def _newest(fabric: FabricRecords) -> dict[str, LinkHealth]:
    found: dict[str, LinkHealth] = {}
    for health in sorted(
        fabric.health, key=lambda each: (each["subject"], each["seq"], each["evaluated_ns"])
    ):
        found[health["subject"]] = health
    return found


def link_queues(fabric: FabricRecords) -> Iterator[Found]:
    """Yield the links with far longer queues than the other links of their kind, over all windows.

    The fault is tied to the link, not to a pair: uplinks share their leaf's traffic evenly, so one with a
    long queue has too low a rate, or hashing is uneven. Aliased links, of which only the sum is known, are
    left out.
    """
    queue_ns = _mean_queues(fabric)
    if not queue_ns:
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no queue was inferred in these windows")
        return
    by_kind: dict[str, list[str]] = defaultdict(list)
    for link in sorted(queue_ns):
        by_kind[_kind(fabric, link)].append(link)
    count = 0
    for kind, links in sorted(by_kind.items()):
        values = np.array([queue_ns[link][0] for link in links])
        if len(values) < MIN_VALUES:
            continue
        spread, odd = odd_ones(values, QUEUE_RELATIVE, MIN_QUEUE_NS)
        for at in np.flatnonzero(odd & (values > spread.median)).tolist():
            count += 1
            busy = queue_ns[links[at]][1]
            usual = f"{len(links)} {kind} have a median of {spread.median:,.0f} ns"
            text = f"{links[at]}: mean queue {values[at]:,.0f} ns, {usual}"
            text += f"; busy {busy:.0%}" if busy is not None else ""
            yield fabric.of_link(links[at], AuditStatus.FAILED, text)
    if not count:
        text = f"none of {len(queue_ns)} links has far longer queues than the others of its kind"
        yield Found(FLEET, "", AuditStatus.PASSED, text)


def _mean_queues(fabric: FabricRecords) -> dict[str, tuple[float, float | None]]:
    """Return link to its mean queueing in ns and its mean utilisation, over all windows."""
    depths: dict[str, list[float]] = defaultdict(list)
    busy: dict[str, list[float]] = defaultdict(list)
    for record in fabric.queues:
        for queue in record["links"]:
            if queue["group"]:
                continue
            depths[queue["link"]].append(_queue_ns(queue))
            if queue["utilisation"] is not None:
                busy[queue["link"]].append(queue["utilisation"])
    return {
        link: (float(np.mean(values)), float(np.mean(busy[link])) if link in busy else None)
        for link, values in depths.items()
    }


def _queue_ns(queue: LinkQueue) -> float:
    """Return the mean queueing in ns; without a rate, depths are in ns at 1 Gbit/s, 8 to the byte."""
    rate_bps = queue["rate_bps"] or 1_000_000_000
    return queue["depth_mean_bytes"] * 8e9 / rate_bps


def _kind(fabric: FabricRecords, link: str) -> str:
    """Return the tiers that a link joins, as people name it."""
    if near_node(link) in fabric.hosts:
        return "links from hosts"
    if far_node(link) in fabric.hosts:
        return "links to hosts"
    tiers = fabric.topology.tier(near_node(link)), fabric.topology.tier(far_node(link))
    if None in tiers:
        return "links between switches"
    return "uplinks" if (tiers[0] or 0) < (tiers[1] or 0) else "downlinks"
