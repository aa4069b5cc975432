"""The thresholds and waiting times of policy, except those of pacing and slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streams.runtime.units import NS_PER_MS, NS_PER_S

FULL_SHARE: Final = 1.001
"""A link cannot carry its demand if that exceeds this multiple of the link's rate."""
SAFE_SHARE: Final = 1.1
"""Highest load of a link that needs no relief at first, because demands are estimates. If the queue persists,
`FULL_SHARE` applies."""
RELIEF_SHARE: Final = 0.8
"""If no path has capacity, a flow may move to a path loaded below this share of its current one.

Relief counts mean rates first and then bursts, so a move by one measure may undo a move by the other. The
number of moves is still bounded. For ten minutes a flow does not return to links that it left, and its
cooldown doubles with each move.
"""
WINDOW_STALE_NS: Final = 5 * NS_PER_S
"""A contention window without an update for this long no longer counts; open ones are updated each second."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Waiting times and thresholds of policy, except those of pacing and slices."""

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
    """Number of batches in which flows return to their earlier paths."""
    cool_down_ns: int = 5 * NS_PER_S
    """Cooldown of a flow after a steering move; it doubles with each move within ten minutes."""
    max_cool_down_ns: int = 300 * NS_PER_S
    settle_ns: int = 1 * NS_PER_S
    """Time within which all hosts report after a change.

    A contention window that is still open this long after flows left its link counts as persistent.
    Alternating flows must overlap for this long before they are moved."""
    new_flow_ns: int = 300 * NS_PER_MS
    """Time since its first report after which a flow may be steered. By then three reports show its rate. A
    flow that ends sooner is not worth a move."""
    slow_ns: int = 200_000
    """Excess of the round trip over its minimum that counts as delay on a path of unknown route."""
    slow_for_ns: int = 1 * NS_PER_S
    """Duration of that delay until the flow tries another path, as in PLB (Qureshi et al., SIGCOMM 2022)."""
    fallbacks_ns: int = 1 * NS_PER_S
    """Shortest time between two rankings of a host's flows, and between two assignments of uplinks."""
