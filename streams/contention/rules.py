"""Rules of contention windows: live thresholds, and constants with unit and reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streams.runtime.units import NS_PER_MS, NS_PER_S

# --------------------------------------------------------------------------------------------- times

STEP_NS: Final = 5 * NS_PER_MS
"""Shorter slots are averaged over this time, so that a passing queue does not count as a standing one."""
UPDATE_NS: Final = 250 * NS_PER_MS
"""Minimum time between two records of a window, apart from its close."""
REFRESH_NS: Final = 1_000 * NS_PER_MS
"""Maximum time between them."""
MEMORY_NS: Final = 2_000 * NS_PER_MS
"""Time constant with which earlier evidence for a kind fades."""
GAP_NS: Final = 2_000 * NS_PER_MS
"""After this long without data, open windows are closed: nothing shows that their queues persist."""
SUMMARY_NS: Final = 500 * NS_PER_MS
"""Records with slots this long summarise others with short slots."""
LOOKBACK_NS: Final = 2_000 * NS_PER_MS
"""A new owner reads at most this far back to restore the state."""
AVERAGE_NS: Final = 200 * NS_PER_MS
"""Time constant of the averages of sent data and of the share of time with a queue."""
FRESH_NS: Final = 100 * NS_PER_MS
"""Window age up to which flow reports describe the time before: each covers 100 ms and arrives as much later.
"""
SETTLED_NS: Final = 250 * NS_PER_MS
"""Window age from which flow reports describe the window itself."""
MAX_CLOCK_DIFFERENCE_NS: Final = 3_600 * NS_PER_S
"""Fabric time and the log's clock never differ by this much."""
MAX_WINDOW_NS: Final = 60 * NS_PER_S
"""Longest time that one record of queues may cover."""
FULL_WAIT_NS: Final = 500_000.0
"""Wait up to which a link may send all it can: buffers and rate control keep queues below it."""
PAUSED_WAIT_NS: Final = 2_000_000.0
"""Wait from which on a port does not send all the time: at its rate, few buffers hold as much."""
BUFFERS_BPS: Final = 10**10
"""Slower ports have buffers as large as ports of this rate, so longer waits."""
LINKS_MEMORY_NS: Final = 60 * NS_PER_S
"""Time after which the known links are counted again."""
MARKS_MEMORY_NS: Final = 60 * NS_PER_S
"""Time after which the depth at which a class marks is no longer known."""

# --------------------------------------------------------------------------------------------- shares

ASSUMED_BPS: Final = 10**9
"""Rate of a link with unknown rate: its depths are ns at this rate."""
LIKELY_FULL: Final = 0.7
"""Assumed fullness of a link with a queue before flow reports cover its window: most such links are full."""
LIMITED_SHARE: Final = 0.45
"""A link whose flows send a smaller share of its rate, while it has a queue, is held back downstream."""
FULL_SHARE: Final = 0.75
"""Above this share it is full."""
HALF_FULL: Final = 0.5
"""Fullness below which a link counts as held back."""
NIC_HEADROOM: Final = 0.5
"""Below this share of its rate, a NIC's own link does not limit its flows."""
OVER_FALL: Final = 0.5
"""Queues under rate control come and go: one present for more than a third of the time persists."""
QUIET_FALL: Final = 0.5
"""A moment above the threshold undoes this much quiet: one present for less than two thirds ends."""
PLAUSIBLE_SHARE: Final = 0.4
"""Share of a link's rate that its flows must send for a queue there to be likely at once."""
DOUBTED_WEIGHT: Final = 0.5
"""Weight of time towards opening a window if the flows send less.

Inference briefly smears deep queues over other links. The same holds if all traffic of a link comes from one
sender whose own link carries no more. A rerouted flow meets packets from its old path at its last link, and a
queue at a last link is briefly attributed to a link before it.
"""
UNCLAIMED_WEIGHT: Final = 0.25
"""Weight of time if all hosts report their flows and none crosses the link.

A switch or host that paused delays probes as a queue does. A new flow is reported before a window opens at
this weight.
"""
NOTABLE_SHARE: Final = 0.05
"""Share of a link's traffic from which a sender counts."""
LISTED_SHARE: Final = 0.01
"""Share from which a flow is listed."""
UNREPORTED_TRUST: Final = 0.6
"""Largest score of a kind without reported flows, and so the largest confidence."""
UNMARKED_SHARE: Final = 0.01
"""Share of marked probes below which a queue counts as unmarked."""
UNMARKED_DEPTHS: Final = 2.0
"""An unmarked queue this many times as deep as the marked ones of its class holds fewer bytes than its wait
suggests: its port is paused."""
UNMARKED_TRUST: Final = 0.8
"""How sure that is."""
CHANCE_LINKS: Final = 0.5
"""Share of the links into a switch with queues up to which they may be there by chance."""
SWITCH_LINKS: Final = 0.9
"""Share from which on the switch is held back as a whole."""
MIN_SCORE: Final = 0.2
"""Score that a kind needs to be named."""
MAX_FLOWS: Final = 64
"""Flows listed in a record."""


@dataclass(frozen=True, slots=True)
class ContentionRules:
    """Limits of a standing queue: `delay_us` at the link's rate, from `min_kb` to `max_kb`; or marks."""

    delay_us: float = 50.0
    min_kb: float = 15.0
    max_kb: float = 50.0
    open_ms: float = 15.0
    close_ms: float = 250.0
    ce_percent: float = 10.0

    @classmethod
    def of(cls, thresholds: Mapping[str, float]) -> ContentionRules:
        """Return the rules from the live thresholds."""
        return cls(
            delay_us=thresholds["contention_delay_us"],
            min_kb=thresholds["contention_min_kb"],
            max_kb=thresholds["contention_max_kb"],
            open_ms=thresholds["contention_open_ms"],
            close_ms=thresholds["contention_close_ms"],
            ce_percent=thresholds["contention_ce_percent"],
        )

    @property
    def ce_share(self) -> float:
        """Share of marked probes from which a queue counts."""
        return self.ce_percent / 100

    def open_bytes(self, rate_bps: int) -> float:
        """Return the depth above which a queue counts as standing."""
        delay_bytes = self.delay_us * 1e-6 * (rate_bps or ASSUMED_BPS) / 8
        return min(max(delay_bytes, 1e3 * self.min_kb), 1e3 * max(self.max_kb, self.min_kb))
