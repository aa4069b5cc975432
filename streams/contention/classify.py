"""Classifies contention: finds the kind that explains a standing queue best.

A link with a queue is either full, or slowed down by a later link. Its position (first link, last link,
inside) and its flows decide the kind. `RULES` has one scoring rule per position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.ids import end_parts
from schemas.records import ContentionKind
from streams.contention.rules import (
    AVERAGE_NS,
    FRESH_NS,
    FULL_SHARE,
    HALF_FULL,
    LIKELY_FULL,
    LIMITED_SHARE,
    MEMORY_NS,
    MIN_SCORE,
    NOTABLE_SHARE,
    SETTLED_NS,
)
from streams.contention.unreported import FabricMemory, UnreportedCase, score_unreported
from streams.contention.window import KINDS, LinkWindow, ramp, sent_bps, weighty_flows
from streams.runtime.flow_table import FlowOnLink

Scores = dict[ContentionKind, float]


@dataclass(frozen=True, slots=True)
class LinkView:
    """The queue and the traffic of one link at one moment."""

    link: LinkWindow
    flows: list[FlowOnLink]
    fullness: float | None
    """Use of the link: 0 if a later link holds it back, 1 if it sends all it can; None without a flow."""

    @property
    def is_limited(self) -> bool:
        """Whether a later link on the flows' routes is known to slow this link down."""
        return self.fullness is not None and self.fullness < HALF_FULL

    @property
    def certain_ids(self) -> set[str]:
        """Ids of the flows that certainly cross the link."""
        return {link_flow.flow.flow_id for link_flow in self.flows if link_flow.certain}


Views = Mapping[str, LinkView]


def view_of(link: LinkWindow, flows: list[FlowOnLink], length_ns: int, end_ns: int) -> LinkView:
    """Return the view of a link; update the moving averages of its traffic with its window's time.

    A port that has packets and may send does send: its flows carry its rate at least as long as a queue is
    present. If they carry clearly less, a link after it holds it back.
    """
    window = link.window or link.rising
    if not flows or not link.rate_bps or window is None:
        return LinkView(link, flows, None)
    decay = math.exp(-length_ns / AVERAGE_NS)
    window.sent = decay * window.sent + (1 - decay) * sent_bps(flows) / link.rate_bps
    window.queued = decay * window.queued + (1 - decay) * link.queued
    window.averaged = decay * window.averaged + 1 - decay
    ratio = window.sent / max(window.queued, 0.1 * window.averaged, 1e-9)
    fullness = ramp(ratio, LIMITED_SHARE, FULL_SHARE)
    fullness = max(fullness, LIKELY_FULL * (1 - _settled(link, end_ns)))
    return LinkView(link, flows, fullness)


def _settled(link: LinkWindow, end_ns: int) -> float:
    """Return how far flow reports describe the window itself, 1, and not the time before it, 0."""
    if link.window is None:
        return 0.0
    age_ns = end_ns - link.window.opened_ns
    return ramp(age_ns, FRESH_NS, SETTLED_NS)


def add_scores(
    view: LinkView, views: Views, length_ns: int, end_ns: int, coverage: float, memory: FabricMemory
) -> None:
    """Score each kind of contention for a link in this window, and add the scores to its earlier scores.

    `coverage`: share of the hosts that report flows. Flows of the other hosts may explain traffic that
    reported flows do not explain: to that extent the link's position and its neighbours decide.
    """
    window = view.link.window
    if window is None:
        return
    decay = math.exp(-length_ns / MEMORY_NS)
    trust_ns = length_ns * (0.1 + 0.9 * _settled(view.link, end_ns))
    scores = _scores(view, views, coverage)
    doubt = min(1.0, 2 * (1 - coverage)) * (1 - (view.fullness or 0.0))
    if doubt > 0:
        links = tuple(other.link for other in views.values())
        unreported = score_unreported(UnreportedCase(view.link, links, memory, end_ns))
        scores = {kind: scores.get(kind, 0.0) + doubt * unreported.get(kind, 0.0) for kind in KINDS}
        trust_ns = trust_ns if view.flows else length_ns
    for kind in KINDS:
        window.scores[kind] = decay * window.scores[kind] + trust_ns * scores.get(kind, 0.0)
    window.score_ns = decay * window.score_ns + trust_ns
    window.kind = best_kind(window.scores, window.score_ns)[0]


def best_kind(scores: Mapping[ContentionKind, float], weight: float) -> tuple[ContentionKind, float]:
    """Return the kind that explains the queue best, and its lead over the second-best kind, 0 to 1."""
    if weight <= 0:
        return ContentionKind.UNKNOWN, 0.0
    (kind, best), (_, second), *_ = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    if best < MIN_SCORE * weight:
        return ContentionKind.UNKNOWN, 0.0
    return kind, min(1.0, (best - second) / weight)


# ------------------------------------------------------------------------------------------- scores


@dataclass(frozen=True, slots=True)
class _Case:
    """Input of a scoring rule: the link, all links, and the share of hosts that report flows."""

    view: LinkView
    views: Views
    coverage: float

    @property
    def headroom(self) -> float | None:
        """Unused share of the link's rate, 0 to 1; lower if hosts report no flows, None without flows."""
        fullness = self.view.fullness
        return None if fullness is None else (1 - fullness) * self.coverage


def _scores(view: LinkView, views: Views, coverage: float) -> Scores:
    """Return how well each kind of contention explains a link's present queue and traffic, 0 to 1.

    A full link has more traffic than it can carry. If a link has a queue but its flows send less than its
    rate, a later link causes the queue.
    """
    place = view.link.place
    position = "last" if place.receiver is not None else "first" if place.sender is not None else "inside"
    return RULES[position](_Case(view, views, coverage))


def _score_last(case: _Case) -> Scores:
    """Return the scores, 0 to 1, of INCAST, SLOW_RECEIVER and PAUSE_STORM on a link to a receiver's NIC."""
    view, fullness, headroom = case.view, case.view.fullness, case.headroom
    receiver = view.link.place.receiver
    limited = any(
        link_flow.certain and link_flow.flow.receiver_limited and link_flow.flow.peer == receiver
        for link_flow in view.flows
    )
    if headroom is None or fullness is None:
        return {ContentionKind.SLOW_RECEIVER: 1.0} if limited else {}
    senders = len({flow.nic for flow in weighty_flows(view.flows, NOTABLE_SHARE)})
    behind = links_behind(view, case.views)
    return {
        ContentionKind.INCAST: fullness * (1.0 if senders > 1 else 0.35),
        ContentionKind.SLOW_RECEIVER: max(
            headroom * (0.4 if behind else 1.0), 1 - fullness if limited else 0.0
        ),
        ContentionKind.PAUSE_STORM: headroom if behind else 0.0,
    }


def _score_first(case: _Case) -> Scores:
    """Return scores, 0 to 1, of the kinds of contention on a link from a sender's NIC."""
    view = case.view
    certain = [link_flow.flow for link_flow in view.flows if link_flow.certain]
    if any(flow.sender_limited and flow.nic == view.link.place.sender for flow in certain):
        return {ContentionKind.SLOW_SENDER: 1.0}
    caused = _score_by_root(case.headroom, root_of(view, case.views))
    return caused | {ContentionKind.SLOW_SENDER: max(0.0, 0.8 - max(caused.values(), default=0.0))}


def _score_inside(case: _Case) -> Scores:
    """Return scores, 0 to 1, of the kinds of contention on a link between switches."""
    view, fullness, headroom = case.view, case.view.fullness, case.headroom
    root = root_of(view, case.views)
    if headroom is None or fullness is None:
        # No flow is reported. Without a queue after it, too much traffic is the only explanation left.
        return {ContentionKind.COLLISION: 0.5} if root is None and case.coverage >= 1 else {}
    several = 1.0 if len(weighty_flows(view.flows, NOTABLE_SHARE)) > 1 else 0.6
    # Without a queue after it, nothing holds it back: its own traffic was too much for a while.
    collision = several * (fullness if root is not None else max(fullness, 0.5))
    return _score_by_root(headroom, root) | {ContentionKind.COLLISION: collision}


RULES: Final[Mapping[str, Callable[[_Case], Scores]]] = {
    "first": _score_first,
    "inside": _score_inside,
    "last": _score_last,
}
"""Maps position of a link to its scoring rule."""


def _score_by_root(headroom: float | None, root: LinkView | None) -> Scores:
    """Return the scores, 0 to 1, of the kinds on a link whose queue `root`, a link to a NIC, causes.

    The score of PAUSE_STORM grows with the evidence that the receiver stops `root`, that of INCAST with the
    fullness of `root`.
    """
    if headroom is None or root is None:
        return {}
    root_fullness = 0.0 if root.fullness is None else root.fullness
    return {
        ContentionKind.PAUSE_STORM: headroom * (1 - root_fullness),
        ContentionKind.INCAST: 0.8 * headroom * root_fullness,
    }


# ------------------------------------------------------------------------------------------- related links


def links_behind(view: LinkView, views: Views) -> list[str]:
    """Return the links with a queue and spare rate that wait for `view`, a link to a receiver's NIC.

    Such links share flows with `view`, or end at its switch. A pause stops all traffic of a port.
    """
    flow_ids = view.certain_ids
    links = []
    for name, other in views.items():
        has_headroom = other.fullness is None or other.is_limited
        if other.link.place.receiver is not None or not has_headroom:
            continue
        shares_flows = any(
            link_flow.certain and link_flow.flow.flow_id in flow_ids for link_flow in other.flows
        )
        if _leads_to(name, view.link.name) or shares_flows:
            links.append(name)
    return sorted(links)


def root_of(view: LinkView, views: Views) -> LinkView | None:
    """Return the link to a receiver's NIC that has a queue and to which most flows of this link go.

    If there is none and a later link slows this link down, return a slowed link from the next switch to a
    receiver's NIC.
    """
    counts: dict[str, int] = {}
    limited: list[str] = []
    flow_ids = view.certain_ids
    for name, other in views.items():
        if other.link.place.receiver is None or name == view.link.name:
            continue
        shared = sum(link_flow.certain and link_flow.flow.flow_id in flow_ids for link_flow in other.flows)
        if shared:
            counts[name] = shared
        if other.is_limited and _leads_to(view.link.name, name):
            limited.append(name)
    if not counts:
        return views[min(limited)] if limited and view.is_limited else None
    return views[min(counts, key=lambda name: (-counts[name], name))]


def _leads_to(link: str, last: str) -> bool:
    """Return whether `link` ends at the node where `last` begins."""
    return end_parts(link.partition(">")[2]).node == end_parts(last.partition(">")[0]).node
