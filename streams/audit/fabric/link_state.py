"""Checks links: their health and history since the last audit, and their own long queues. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.audit_remedy import remedy
from schemas.ids import far_node, near_node
from schemas.records import AuditStatus, LinkHealth, LinkQueue, LinkState
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, error, warning
from streams.audit.robust import MIN_VALUES, Spread, odd_ones

FAULTY: Final[Mapping[str, str]] = {
    LinkState.DOWN: "is down",
    LinkState.GREY: "loses packets",
    LinkState.FLAPPING: "flaps",
}
SIMILAR_UTILISATION: Final = 0.05
"""Difference of utilisation up to which a less busy link counts as equally busy."""
MIN_QUEUE_NS: Final = 2_000.0
"""Mean queueing delay up to which a queue is never odd, ns: a few packets of a fast link."""
QUEUE_RELATIVE: Final = 3.0
"""Relative deviation of a mean queue from the median that uneven jobs explain: four times the median."""


@error("fabric.links", "No link is dead, grey or flapping", 2, 46)
@remedy.replace("Replace cable or transceiver; `fabrictime links` gives the evidence")
def link_health(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding for each dead, grey or flapping link, NIC and host, or a single finding without any."""
    newest = fabric.newest_health
    faulty = [health for health in newest.values() if health["state"] in FAULTY]
    for health in faulty:
        loss, largest = health["loss_rate"], health["max_packet_bytes"]
        share = f" ({loss:.2%} of them)" if loss is not None else ""
        fault = FAULTY[health["state"]] if largest is None else f"drops packets above {largest:,} bytes"
        text = f"{health['subject']} {fault}{share}: {health['text']}"
        yield fabric.of_subject(health["subject"], AuditStatus.FAILED, text)
    if not faulty:
        yield _no_fault(fabric, newest, "has a fault")


@warning("fabric.link-history", "No link was dead, grey or flapping since the last audit", 5, 6, 16)
@remedy.monitor("Reseat or clean the cable; replace it if the link goes down again")
def link_history(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding for each link that is up now but was not up all the time since the last audit.

    If there is no such link, one finding states so.
    """
    newest = fabric.newest_health
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
        text += f"went down {_times(went_down)}" if went_down else f"was {health['before']}"
        text += f" since the last audit, and was down {_times(health['flaps_total'])} in all"
        yield fabric.of_subject(health["subject"], AuditStatus.FAILED, text)
    if not count:
        yield _no_fault(fabric, newest, "had a fault since the last audit")


def _no_fault(fabric: FabricRecords, newest: Mapping[str, LinkHealth], text: str) -> Found:
    """Return PASSED if links were evaluated, by probes across them or by health records; else UNKNOWN."""
    crossed = {
        link
        for record in fabric.delays
        for path in record["paths"]
        if path["count"]
        for link in fabric.route_of.get((record["nic"], path["peer"], path["path"], False), ())
    }
    if crossed:
        return Found(
            FLEET, "", AuditStatus.PASSED, f"none of the {len(crossed)} links that probes cross {text}"
        )
    if newest:
        text = f"none of {len(newest)} known links, NICs and hosts {text}"
        return Found(FLEET, "", AuditStatus.PASSED, text)
    return Found(FLEET, "", AuditStatus.UNKNOWN, "no link is known: no report and no traced probes")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@dataclass(slots=True)
class _Queue:
    """Means of a link over all windows: queueing delay, and utilisation by flow reports if there are any."""

    queue_ns: float
    utilisation: float | None


@warning("fabric.queues", "Queues are as long as on links that are as busy")
@remedy.monitor("Compare the link's rate and its share of hashed flows with the others")
def link_queues(fabric: FabricRecords) -> Iterator[Found]:
    """Yield the links with far longer queues than comparable links that are at least as busy.

    Such a queue belongs to the link, not to a pair of NICs: the link's rate is lower than stated, or it is
    paused. A busy link may have a long queue, so the utilisation from flow reports is needed. Aliased links,
    of which only the sum of queues is known, are left out.
    """
    queues = _mean_queues(fabric)
    by_kind: dict[str, list[str]] = defaultdict(list)
    for link in sorted(queues):
        if queues[link].utilisation is not None:
            by_kind[_kind(fabric, link)].append(link)
    if not by_kind:
        text = "no queues, or no flow reports for the links' utilisation, in these windows"
        yield Found(FLEET, "", AuditStatus.UNKNOWN, text)
        return
    queue_findings = [
        finding
        for kind, links in sorted(by_kind.items())
        for finding in _long_queues(fabric, kind, links, queues)
    ]
    yield from queue_findings
    if not queue_findings:
        text = f"none of {len(queues)} links has longer queues than others of its kind that are as busy"
        yield Found(FLEET, "", AuditStatus.PASSED, text)


def _long_queues(
    fabric: FabricRecords, kind: str, links: Sequence[str], queues: Mapping[str, _Queue]
) -> Iterator[Found]:
    values = np.array([queues[link].queue_ns for link in links])
    busy = np.array([queues[link].utilisation for link in links], np.float64)
    if len(values) < MIN_VALUES:
        return
    candidates = odd_ones(values, QUEUE_RELATIVE, MIN_QUEUE_NS)[1] & (values > np.median(values))
    for at in np.flatnonzero(candidates).tolist():
        peers = busy >= busy[at] - SIMILAR_UTILISATION
        spread = Spread.of(values[peers])
        if peers.sum() < MIN_VALUES or values[at] <= spread.median + spread.tolerance(
            QUEUE_RELATIVE, MIN_QUEUE_NS
        ):
            continue
        text = (
            f"{links[at]}: mean queue {values[at]:,.0f} ns at {busy[at]:.0%} utilisation, "
            f"{int(peers.sum())} {kind} that are as busy have a median of {spread.median:,.0f} ns"
        )
        yield fabric.of_link(links[at], AuditStatus.FAILED, text)


def _mean_queues(fabric: FabricRecords) -> dict[str, _Queue]:
    """Return, by link, its mean queueing delay and utilisation over all windows."""
    depths: dict[str, list[float]] = defaultdict(list)
    busy: dict[str, list[float]] = defaultdict(list)
    for record in fabric.queues:
        for queue in record["links"]:
            if queue["group"]:
                continue
            depths[queue["link"]].append(_queue_ns(queue))
            if queue["utilisation"] is not None and queue["from_flows"]:
                busy[queue["link"]].append(queue["utilisation"])
    return {
        link: _Queue(float(np.mean(values)), float(np.mean(busy[link])) if link in busy else None)
        for link, values in depths.items()
    }


def _queue_ns(queue: LinkQueue) -> float:
    """Return a queue's mean delay, ns. Without a rate, depths count ns at 1 Gbit/s: 8 ns per byte."""
    rate_bps = queue["rate_bps"] or 1_000_000_000
    return queue["depth_mean_bytes"] * 8e9 / rate_bps


def _kind(fabric: FabricRecords, link: str) -> str:
    """Return the tiers that a link connects, as text."""
    if near_node(link) in fabric.hosts:
        return "links from hosts"
    if far_node(link) in fabric.hosts:
        return "links to hosts"
    tiers = fabric.topology.tier(near_node(link)), fabric.topology.tier(far_node(link))
    if None in tiers:
        return "links between switches"
    return "uplinks" if (tiers[0] or 0) < (tiers[1] or 0) else "downlinks"
