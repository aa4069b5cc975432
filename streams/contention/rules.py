"""Holds the thresholds and constants that decide on contention, each with unit and reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streams.runtime.units import NS_PER_MS, NS_PER_S

# --------------------------------------------------------------------------------------------- times

STEP_NS: Final = 5 * NS_PER_MS
"""Time over which shorter slots are averaged, so that a passing queue does not count as a standing one."""
UPDATE_NS: Final = 250 * NS_PER_MS
"""Minimum time between two records of a window; its close is published at once."""
REFRESH_NS: Final = 1_000 * NS_PER_MS
"""Maximum time between two records of a window."""
MEMORY_NS: Final = 2_000 * NS_PER_MS
"""Time constant with which earlier evidence for a kind fades."""
GAP_NS: Final = 2_000 * NS_PER_MS
"""Time without data after which open windows are closed: nothing shows that their queues persist."""
SUMMARY_NS: Final = 500 * NS_PER_MS
"""Length of slots from which on a record is a summary of others with shorter slots."""
LOOKBACK_NS: Final = 2_000 * NS_PER_MS
"""Longest time before its start that a new owner reads to restore the state."""
AVERAGE_NS: Final = 200 * NS_PER_MS
"""Time constant of the averages of sent data and of the share of time with a queue."""
FRESH_NS: Final = 100 * NS_PER_MS
"""Window age up to which flow reports still describe earlier time: each covers 100 ms, arrives as late."""
SETTLED_NS: Final = 250 * NS_PER_MS
"""Age of a window from which on flow reports describe the window itself."""
MAX_CLOCK_DIFFERENCE_NS: Final = 3_600 * NS_PER_S
"""Difference between fabric time and the log's clock that never occurs."""
MAX_WINDOW_NS: Final = 60 * NS_PER_S
"""Longest time that one record of queues may cover."""
FULL_WAIT_NS: Final = 500_000.0
"""Wait in a queue up to which a link may send all it can: buffers and rate control keep queues below it."""
PAUSED_WAIT_NS: Final = 2_000_000.0
"""Wait in a queue from which on a port cannot be sending all the time: few buffers hold so much."""
BUFFERS_BPS: Final = 10**10
"""Slower ports have buffers as large as ports of this rate, and therefore longer waits."""
LINKS_MEMORY_NS: Final = 60 * NS_PER_S
"""Interval at which the known links are forgotten and counted anew."""
MARKS_MEMORY_NS: Final = 60 * NS_PER_S
"""Time after which the depth at which a class marks is no longer taken as known."""

# --------------------------------------------------------------------------------------------- shares

ASSUMED_BPS: Final = 10**9
"""Rate assumed for a link of unknown rate: its depths are given in ns at this rate."""
LIKELY_FULL: Final = 0.7
"""Fullness assumed for a link with a queue before flow reports cover its window: most such links are full."""
LIMITED_SHARE: Final = 0.45
"""A link with a queue whose flows send a smaller share of its rate than this is held back downstream."""
FULL_SHARE: Final = 0.75
"""A link whose flows send a larger share of its rate than this is full."""
HALF_FULL: Final = 0.5
"""Fullness below which a link counts as held back."""
NIC_HEADROOM: Final = 0.5
"""Share of its rate below which a NIC's own link does not limit its flows."""
OVER_FALL: Final = 0.5
"""Speed at which time with a queue is undone by time without one. Queues under rate control come and go: one
that is present for more than a third of the time persists."""
QUIET_FALL: Final = 0.5
"""Speed at which time above the threshold undoes quiet: a queue present below two thirds ends."""
PLAUSIBLE_SHARE: Final = 0.4
"""Share of a link's rate that its flows must send for a queue there to be likely at once."""
DOUBTED_WEIGHT: Final = 0.5
"""Weight of time towards opening a window if the link's flows send less than `PLAUSIBLE_SHARE`.

Inference briefly smears deep queues over other links. The weight also applies if all traffic of a link comes
from one sender whose own link carries no more. A rerouted flow meets packets from its old path at its last
link, and a queue at a last link is briefly attributed to a link before it.
"""
UNCLAIMED_WEIGHT: Final = 0.25
"""Weight of time towards opening a window if all hosts report their flows and none crosses the link.

A switch or host that paused delays probes as a queue does. New flows are reported before this opens.
"""
NOTABLE_SHARE: Final = 0.05
"""Share of a link's traffic from which on a sender counts."""
LISTED_SHARE: Final = 0.01
"""Share of a link's traffic from which on a flow is listed."""
UNREPORTED_TRUST: Final = 0.6
"""Highest score, and so highest confidence, of a kind if flows are not reported."""
UNMARKED_SHARE: Final = 0.01
"""Share of marked probes below which a queue counts as unmarked."""
UNMARKED_DEPTHS: Final = 2.0
"""Ratio of depths. An unmarked queue this many times as deep as the marked ones of its class holds fewer
bytes than its wait suggests: its port is paused."""
UNMARKED_TRUST: Final = 0.8
"""Confidence that such an unmarked queue is at a paused port."""
CHANCE_LINKS: Final = 0.5
"""Share of a switch's incoming links up to which queues on them may be there by chance."""
SWITCH_LINKS: Final = 0.9
"""Share of a switch's incoming links with queues from which on the switch is held back as a whole."""
MIN_SCORE: Final = 0.2
"""Score that a kind needs to be named."""
MAX_FLOWS: Final = 64
"""Largest number of flows listed in a record."""


@dataclass(frozen=True, slots=True)
class ContentionRules:
    """Thresholds of a standing queue: a share of marked probes, or a depth of `delay_us` at the link's rate,
    between `min_kb` and `max_kb`.
    """

    delay_us: float = 50.0
    min_kb: float = 15.0
    max_kb: float = 50.0
    open_ms: float = 15.0
    close_ms: float = 250.0
    ce_percent: float = 10.0

    @classmethod
    def of(cls, thresholds: Mapping[str, float]) -> ContentionRules:
        """Build the rules from the live thresholds, given by name."""
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
        """Share of marked probes, 0 to 1, from which a queue counts as standing."""
        return self.ce_percent / 100

    def open_bytes(self, rate_bps: int) -> float:
        """Return the depth, bytes, above which a queue on a link of `rate_bps` bit/s counts as standing."""
        delay_bytes = self.delay_us * 1e-6 * (rate_bps or ASSUMED_BPS) / 8
        return min(max(delay_bytes, 1e3 * self.min_kb), 1e3 * max(self.max_kb, self.min_kb))
