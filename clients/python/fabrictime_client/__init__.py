"""Fabric time for any Python program on a host that runs fabrictime's actuator.

    from fabrictime_client import now, convert
    time_ns, bound_ns = now()
    time_ns, bound_ns = convert(stamp_ns, "eth0")

The functions use the page of this host, found as `default_path` says; `Clock(path)` opens another one.
`FlowOwner` says whose this program's flows are, and lets them be moved and paced.
"""

from __future__ import annotations

from fabrictime_client.clock import Clock, Reading, Status, default_path
from fabrictime_client.errors import (
    ClockError,
    PageMissing,
    PageUnusable,
    UnknownClock,
    Unsynced,
    WrongVersion,
)
from fabrictime_client.flows import Flow, FlowOwner, default_sockets, pace_tcp

__version__ = "0.1.0"
__all__ = [
    "Clock",
    "ClockError",
    "Flow",
    "FlowOwner",
    "PageMissing",
    "PageUnusable",
    "Reading",
    "Status",
    "UnknownClock",
    "Unsynced",
    "WrongVersion",
    "convert",
    "default_path",
    "default_sockets",
    "now",
    "pace_tcp",
    "state",
]

_clock: Clock | None = None


def _default() -> Clock:
    """Return the page of this host, opened at the first use."""
    global _clock
    clock = _clock
    if clock is None:
        _clock = clock = Clock()
    return clock


def now() -> Reading:
    """Return fabric time now and its bound, ns. Raises PageMissing, PageUnusable or Unsynced."""
    return (_clock or _default()).now()


def convert(stamp_ns: int, clock: str) -> Reading:
    """Return fabric time at a stamp of a clock or NIC of this host; see `Clock.convert`."""
    return (_clock or _default()).convert(stamp_ns, clock)


def state() -> str:
    """Return SYNCED, HOLDOVER or UNSYNCED; UNSYNCED also where there is no usable page."""
    try:
        return (_clock or _default()).state()
    except ClockError:
        return "UNSYNCED"
