"""The thresholds and waiting times of policy, except those of pacing and slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streams.runtime.units import NS_PER_MS, NS_PER_S

FULL_SHARE: Final = 1.001
"""Demand over rate above which a link cannot carry the demand."""
SAFE_SHARE: Final = 1.1
"""First target when flows leave a link: demands are estimates. `FULL_SHARE` follows if the queue persists."""
RELIEF_SHARE: Final = 0.8
"""If no path has capacity, a move is allowed to one loaded below this share of the path left.

Relief counts mean rates, then bursts, so a move by one may undo a move by the other. Moves are bounded all
the same: for ten minutes a flow does not return to links that it left, and its pause doubles with each move.
"""
WINDOW_STALE_NS: Final = 5 * NS_PER_S
"""A contention window without an update for this long no longer counts; open ones are updated each second."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Waiting times of policy."""

    expires_ns: int = 1 * NS_PER_S
    """Lifetime of a decision: actuators refuse it afterwards."""
    confirm_ns: int = 500 * NS_PER_MS
    """Time after the expiry within which a report must show the new path."""
    retry_max_ns: int = 60 * NS_PER_S
    """Longest wait before an unconfirmed move is retried; the first is 2 s, each next one twice as long."""
    hold_down_ns: int = 10 * NS_PER_S
    """Time for which a recovered link is dampened; doubles with each outage within the hour."""
    max_hold_down_ns: int = 600 * NS_PER_S
    failback_step_ns: int = 100 * NS_PER_MS
    failback_steps: int = 8
    """Flows return in this many steps."""
    cool_down_ns: int = 5 * NS_PER_S
    """Pause of a flow after a steering move; doubles with each move within ten minutes."""
    max_cool_down_ns: int = 300 * NS_PER_S
    settle_ns: int = 1 * NS_PER_S
    """Time in which all hosts report after a change.

    A window that persists so long after flows left its link counts again. Alternating flows must overlap for
    so long before they are moved."""
    new_flow_ns: int = 300 * NS_PER_MS
    """Age from which a flow is steered, since its first report. Three reports then show its rate, and a
    flow that ends sooner is not worth a move."""
    slow_ns: int = 200_000
    """Round trip above the flow's minimum that counts as delay on an untraced path."""
    slow_for_ns: int = 1 * NS_PER_S
    """Duration of that delay after which the flow tries another path, as in PLB (Qureshi et al., SIGCOMM
    2022)."""
    fallbacks_ns: int = 1 * NS_PER_S
    """Shortest time between two rankings of a host's flows, and between two assignments of uplinks."""
