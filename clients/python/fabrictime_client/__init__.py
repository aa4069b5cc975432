"""Fabric time for Python programs on a host that runs fabrictime's actuator.

    from fabrictime_client import now, convert
    time_ns, bound_ns = now()
    time_ns, bound_ns = convert(stamp_ns, "eth0")

The functions use the page of this host, at `default_path`; `Clock(path)` opens another one. `FlowEndpoint`
registers this program's flows, and lets the actuator move and pace them.
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
from fabrictime_client.flows import Flow, FlowEndpoint, default_sockets, pace_tcp

__version__ = "0.1.0"
__all__ = [
    "Clock",
    "ClockError",
    "Flow",
    "FlowEndpoint",
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
    """Return the clock page of this host, opened at first use."""
    global _clock
    clock = _clock
    if clock is None:
        _clock = clock = Clock()
    return clock


def now() -> Reading:
    """Return present fabric time and its error bound, ns. Raises PageMissing, PageUnusable or Unsynced."""
    return (_clock or _default()).now()


def convert(stamp_ns: int, clock: str) -> Reading:
    """Convert a timestamp of a clock or NIC of this host to fabric time; see `Clock.convert`.

    Raises PageMissing and PageUnusable in addition to the errors of `Clock.convert`.
    """
    return (_clock or _default()).convert(stamp_ns, clock)


def state() -> str:
    """Return SYNCED, HOLDOVER or UNSYNCED; UNSYNCED also if no usable page exists."""
    try:
        return (_clock or _default()).state()
    except ClockError:
        return "UNSYNCED"
