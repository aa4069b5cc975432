"""Keeps the state of contention windows: when a queue on a link opens a window, and when the window closes.

The functions here add the slots of a `LinkQueues` record to each link's state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from schemas.ids import end_parts
from schemas.records import (
    ContentionEvidence,
    ContentionKind,
    ContentionState,
    ContentionWindow,
    LinkQueue,
)
from streams.contention.rules import (
    DOUBTED_WEIGHT,
    LISTED_SHARE,
    MEMORY_NS,
    NOTABLE_SHARE,
    OVER_FALL,
    PLAUSIBLE_SHARE,
    QUIET_FALL,
    STEP_NS,
    UNCLAIMED_WEIGHT,
    ContentionRules,
)
from streams.runtime.flow_table import FlowOnLink, LiveFlow
from streams.runtime.units import NS_PER_MS

KINDS: Final = tuple(kind for kind in ContentionKind if kind != ContentionKind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Place:
    """The NICs at the ends of a directed link; `sender` or `receiver` is None if that end is a switch."""

    sender: str | None
    receiver: str | None

    def is_like(self, other: Place) -> bool:
        """Return whether both links have NICs at the same ends: sender, receiver, both or neither."""
        own_ends, its = (
            (self.sender is None, self.receiver is None),
            (other.sender is None, other.receiver is None),
        )
        return own_ends == its


def place_of(link: str, is_nic: Callable[[str], bool]) -> Place:
    """Return the NICs at a link's ends. An end `node:port` is a NIC if the inventory has `node/port`."""
    ends = []
    for end in link.split(">"):
        node, port = end_parts(end)
        nic = f"{node}/{port}"
        ends.append(nic if is_nic(nic) else None)
    return Place(ends[0], ends[-1])


def ramp(value: float, low: float, high: float) -> float:
    """Return 0 for values up to `low`, 1 from `high` on, and a linear interpolation between both limits."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(slots=True)
class Level:
    """A timer of how long, ns, a condition has mostly held. It falls `fall` times as fast as it rises."""

    fall: float = 1.0

    ns: int = 0
    since_ns: int = 0
    """Time at which the level last rose from 0."""

    def step(self, holds: bool, at_ns: int, length_ns: int, weight: float = 1.0) -> None:
        """Raise the timer by `weight` times `length_ns` if the condition `holds`; else lower it."""
        if holds:
            if not self.ns:
                self.since_ns = at_ns
            self.ns += round(weight * length_ns)
        else:
            self.ns = max(0, self.ns - round(self.fall * length_ns))

    def clear(self) -> None:
        """Set the timer to 0: the condition has not held."""
        self.ns = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The evidence for a queue on a link in one step, which is a group of successive slots."""

    depth_bytes: float
    ce_share: float
    by_delay: bool
    by_ce: bool
    limited: bool
    above: bool
    """Whether any measure is above half of its threshold."""

    @property
    def over(self) -> bool:
        """Whether the delay, the marks or a limited flow show a standing queue."""
        return self.by_delay or self.by_ce or self.limited


@dataclass(slots=True)
class Window:
    """A contention window of one link: open, or a candidate that may still open."""

    opened_ns: int
    update: int = -1
    kind: ContentionKind = ContentionKind.UNKNOWN
    published_ns: int = 0
    published: tuple[Any, ...] = ()
    """Kind and flows of the last published record."""
    peak_bytes: float = 0.0
    over_ns: int = 0
    over_byte_s: float = 0.0
    depth_bytes_ns: float = 0.0
    utilisation: float | None = None
    since_published_ns: int = 0
    ce_share_ns: float = 0.0
    """Integral of the share of marked probes over the time since the last record, ns."""
    by_delay: bool = False
    by_ce: bool = False
    """Whether probes that waited (`by_delay`) or were marked (`by_ce`) have shown the queue."""
    sent: float = 0.0
    """Moving average of the share of the link's rate that was sent; divide by `averaged`."""
    queued: float = 0.0
    """Moving average of the share of time with a queue; divide by `averaged`."""
    averaged: float = 0.0
    """Moving average of 1, which corrects the other two: they also begin at 0."""
    scores: dict[ContentionKind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    score_ns: float = 0.0
    last: ContentionWindow | None = None
    """The last record with flows: when the window closes, the flows are gone."""

    @property
    def detected_by(self) -> ContentionEvidence:
        """The kind of evidence that has shown the queue since the window opened."""
        if self.by_delay and self.by_ce:
            return ContentionEvidence.BOTH
        if self.by_ce:
            return ContentionEvidence.CE
        return ContentionEvidence.DELAY if self.by_delay else ContentionEvidence.FLOWS

    def add(self, step: Step, high: float, length_ns: int) -> None:
        """Add one step to the sums. `high`: depth, bytes, from which a queue counts as standing."""
        depth, over, above_bytes = step.depth_bytes, step.over, max(0.0, step.depth_bytes - high)
        self.by_delay |= step.by_delay
        self.by_ce |= step.by_ce
        self.ce_share_ns += step.ce_share * length_ns
        self.depth_bytes_ns += depth * length_ns
        self.since_published_ns += length_ns
        self.peak_bytes = max(self.peak_bytes, depth)
        if over:
            self.over_ns += length_ns
            self.over_byte_s += above_bytes * length_ns * 1e-9


def restored_window(record: ContentionWindow) -> Window:
    """Return an open window in the state that its last published record describes."""
    window = Window(record["opened_ns"], record["update"], record["kind"], record["updated_ns"])
    window.utilisation = record["utilisation"]
    window.peak_bytes = record["depth_peak_bytes"]
    window.over_ns, window.over_byte_s = record["over_ns"], record["over_byte_s"]
    if record["kind"] in window.scores:
        window.scores[record["kind"]] = record["confidence"] * MEMORY_NS
        window.score_ns = MEMORY_NS
    window.by_delay = record["detected_by"] in (ContentionEvidence.DELAY, ContentionEvidence.BOTH)
    window.by_ce = record["detected_by"] in (ContentionEvidence.CE, ContentionEvidence.BOTH)
    window.last = record
    return window


@dataclass(slots=True)
class LinkWindow:
    """The present evidence for a queue on one link, and the link's contention window if there is one."""

    name: str
    place: Place
    rate_bps: int = 0
    done_ns: int = 0
    """End of the time that the sums of the window include."""
    over: Level = field(default_factory=lambda: Level(OVER_FALL))
    quiet: Level = field(default_factory=lambda: Level(QUIET_FALL))
    window: Window | None = None
    rising: Window | None = None
    """A candidate that becomes the window if the queue persists."""
    candidates: tuple[str, ...] = ()
    same_position: bool = True
    """Whether all candidate links have the position of this link."""
    dscp: int = 0
    """Traffic class of the queue."""
    depth_bytes: float = 0.0
    """Mean depth in the last record, bytes."""
    ce_share: float = 0.0
    """Mean share of marked probes of the last record."""
    queued_until_ns: int = 0
    """End of the last step in which the queue was above the lower threshold."""
    queued: float = 0.0
    """Share of the last record's time in which the queue was above the lower threshold."""

    @property
    def idle(self) -> bool:
        """Whether the link needs no memory: it has neither an open window nor a queue that may open one."""
        return self.window is None and not self.over.ns


@dataclass(slots=True)
class LinkReport:
    """The slots of one link in one record, or of several links that probes cannot distinguish."""

    link: str
    rate_bps: int
    bound_bytes: float
    deepest_bytes: float
    utilisation: float | None
    candidates: tuple[str, ...]
    slot: list[int]
    depth_bytes: list[float]
    dscp: int
    ce_slot: list[int]
    ce: list[float]


class IsKnown(Protocol):
    """A function that returns whether the link with a given name already has state."""

    def __contains__(self, link: object, /) -> bool: ...


def merge_aliased(
    links: Iterable[LinkQueue], links_with_state: IsKnown, limited: set[str], rules: ContentionRules
) -> Iterable[LinkReport]:
    """Yield reports of the links of a record part that have a queue, a limited flow, or state.

    Aliased links, which probes cannot distinguish, share one report. It has the name of the link with state,
    else of the link with the deepest queue.
    """
    groups: dict[int, list[LinkQueue]] = {}
    for link in links:
        if link["group"]:
            groups.setdefault(link["group"], []).append(link)
            continue
        has_queue = _has_queue(link, rules)
        if has_queue or link["link"] in links_with_state or link["link"] in limited:
            yield _report(link, [link], ())
    for aliased in groups.values():
        yield from _merge_group(aliased, links_with_state, rules)


def _has_queue(link: LinkQueue, rules: ContentionRules) -> bool:
    """Return whether a link's depth or share of marks reaches its threshold in any slot."""
    is_deep = link["depth_max_bytes"] > rules.open_bytes(link["rate_bps"])
    return is_deep or max(link["ce"], default=0.0) >= rules.ce_share


def _merge_group(
    aliased: list[LinkQueue], links_with_state: IsKnown, rules: ContentionRules
) -> Iterable[LinkReport]:
    """Yield one report for a group of aliased links if any of them has a queue or state; else nothing."""
    aliased.sort(key=lambda link: (-link["depth_mean_bytes"], link["link"]))
    with_state = [link for link in aliased if link["link"] in links_with_state]
    deepest = sum(link["depth_max_bytes"] for link in aliased)
    is_marked = any(_has_queue(link, rules) for link in aliased)
    if not with_state and not is_marked and deepest <= rules.open_bytes(aliased[0]["rate_bps"]):
        return
    one = min(with_state, key=lambda link: link["link"]) if with_state else aliased[0]
    candidates = tuple(sorted(link["link"] for link in aliased if link is not one))
    yield _report(one, aliased, candidates)


def _report(one: LinkQueue, links: list[LinkQueue], candidates: tuple[str, ...]) -> LinkReport:
    """Return one report, under the name of link `one`, with the depths of a group of aliased links."""
    slot, depth = one["slot"], one["depth_bytes"]
    deepest = one["depth_max_bytes"]
    if len(links) > 1:
        slot = [number for link in links for number in link["slot"]]
        depth = [value for link in links for value in link["depth_bytes"]]
        deepest = max(link["depth_max_bytes"] for link in links)
    bound = max(link["bound_bytes"] for link in links)
    utilisation = None if candidates else one["utilisation"]
    marked = max(links, key=lambda link: link["ce_share"])
    return LinkReport(
        one["link"],
        one["rate_bps"],
        bound,
        deepest,
        utilisation,
        candidates,
        slot,
        depth,
        one["dscp"],
        marked["ce_slot"],
        marked["ce"],
    )


def integrate_slots(
    link: LinkWindow,
    report: LinkReport | None,
    start_ns: int,
    slot_ns: int,
    slots: int,
    rules: ContentionRules,
    *,
    limited: bool,
    weight: float,
) -> list[ContentionState]:
    """Add the slots of one record to a link's state; return OPENED and CLOSED in order of occurrence.

    `limited`: whether a flow's host limits the flow on this link. `weight`: factor on the time that counts
    towards opening a window.
    """
    slots_per_step = max(1, math.ceil(STEP_NS / slot_ns))
    bound = 0.0 if report is None else report.bound_bytes / math.sqrt(slots_per_step)  # of a step's mean
    high = rules.open_bytes(link.rate_bps)
    changes: list[ContentionState] = []
    at_ns, queued_ns = start_ns, 0
    depths, marks = _steps_of(report, slots, slots_per_step)
    for number, (depth, ce_share) in enumerate(zip(depths, marks, strict=True)):
        length_ns = min(slots_per_step, slots - number * slots_per_step) * slot_ns
        is_certain = depth > bound
        step = Step(
            depth,
            ce_share,
            depth > high and is_certain,
            ce_share >= rules.ce_share,
            limited,
            (depth > high / 2 and is_certain) or ce_share >= rules.ce_share / 2 or limited,
        )
        if step.above:
            queued_ns += length_ns
            link.queued_until_ns = at_ns + length_ns
        change = _integrate_step(link, step, at_ns, length_ns, high, weight, rules)
        changes += change
        if ContentionState.CLOSED in change:
            break
        at_ns += length_ns
    end_ns = start_ns + slots * slot_ns
    if link.done_ns < end_ns and report is not None:
        _add_maxima(link, report)
    link.done_ns = max(link.done_ns, end_ns)
    link.queued = queued_ns / (slots * slot_ns)
    link.depth_bytes, link.ce_share = float(np.mean(depths)), float(np.mean(marks))
    return changes


def _add_maxima(link: LinkWindow, report: LinkReport) -> None:
    """Raise an open window's peak depth to that of a report, and set its utilisation."""
    if link.window is not None:
        link.window.peak_bytes = max(link.window.peak_bytes, report.deepest_bytes)
        if report.utilisation is not None:
            link.window.utilisation = report.utilisation


def _integrate_step(
    link: LinkWindow,
    step: Step,
    at_ns: int,
    length_ns: int,
    high: float,
    weight: float,
    rules: ContentionRules,
) -> list[ContentionState]:
    """Add one step to a link's state; return OPENED or CLOSED if its window opens or closes."""
    changes: list[ContentionState] = []
    is_new = at_ns >= link.done_ns
    window = link.window
    if window is None:
        if not link.over.ns:
            link.quiet.clear()
            link.rising = Window(at_ns, published_ns=at_ns)
        # marks come from the link itself: inference smears no queue of another link over it
        link.over.step(step.over and is_new, at_ns, length_ns, 1.0 if step.by_ce else weight)
        window = link.rising if link.over.ns else None
    if window is not None and at_ns >= window.opened_ns:
        link.quiet.step(not step.above, at_ns, length_ns)
        if is_new:
            window.add(step, high, length_ns)
    if link.window is None and link.over.ns >= max(rules.open_ms * NS_PER_MS, 2 * length_ns):
        link.window, link.rising = link.rising, None
        link.over.clear()
        changes.append(ContentionState.OPENED)
    if link.window is not None and is_new and link.quiet.ns >= rules.close_ms * NS_PER_MS:
        changes.append(ContentionState.CLOSED)
    return changes


def _steps_of(report: LinkReport | None, slots: int, slots_per_step: int) -> tuple[list[float], list[float]]:
    """Return mean depth, bytes, and mean share of marked probes of each step of `slots_per_step` slots."""
    if report is None:
        nothing = [0.0] * -(-slots // slots_per_step)
        return nothing, nothing
    return (
        _steps(report.slot, report.depth_bytes, slots, slots_per_step),
        _steps(report.ce_slot, report.ce, slots, slots_per_step),
    )


def _steps(numbers: list[int], values: list[float], slots: int, slots_per_step: int) -> list[float]:
    """Return the mean of `values` (at the slots `numbers`, else 0) in each step of `slots_per_step` slots."""
    count = -(-slots // slots_per_step)
    if not numbers:
        return [0.0] * count
    slot = np.asarray(numbers, np.int64)
    depth = np.asarray(values, np.float64)
    inside = (slot >= 0) & (slot < slots)
    sums = np.bincount(slot[inside] // slots_per_step, depth[inside], count)
    lengths = np.full(count, slots_per_step)
    lengths[-1] = slots - (count - 1) * slots_per_step
    return [float(value) for value in sums / lengths]


# ------------------------------------------------------------------------------------------- flows


def sent_bps(flows: Iterable[FlowOnLink]) -> float:
    """Return the flows' total rate on a link, bit/s, each rate times the probability to take the link."""
    return sum(link_flow.weight * link_flow.flow.rate_bps for link_flow in flows)


def weighty_flows(flows: Iterable[FlowOnLink], min_share: float = LISTED_SHARE) -> list[LiveFlow]:
    """Return the flows that certainly cross a link and send at least `min_share` of its traffic.

    Streams of acknowledgements send less. If no flow sends, all flows are returned.
    """
    certain = [link_flow.flow for link_flow in flows if link_flow.certain]
    total = sum(flow.rate_bps for flow in certain)
    return [flow for flow in certain if flow.rate_bps >= min_share * total]


def time_weight(link: LinkWindow, flows: list[FlowOnLink], *, all_hosts_report: bool) -> float:
    """Return the factor on the time that counts towards opening a window, given the link's reported flows."""
    one_sender = len({flow.nic for flow in weighty_flows(flows, NOTABLE_SHARE)}) == 1
    if not link.rate_bps or not all_hosts_report:  # unreported flows may send as well
        return DOUBTED_WEIGHT if one_sender and link.place.receiver is not None else 1.0
    if not flows:
        return UNCLAIMED_WEIGHT
    is_likely = sent_bps(flows) >= PLAUSIBLE_SHARE * link.rate_bps
    return 1.0 if is_likely and not (one_sender and link.place.sender is None) else DOUBTED_WEIGHT
