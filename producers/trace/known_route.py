"""Keeps the accepted route of one path over several traces.

One trace may be wrong while switches converge, so a change needs two traces that agree. This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from producers.trace.tracer import Trace, TracedFlow

Hops = tuple[str | None, ...]

SILENT_TRACES: Final = 16
"""A hop of a working path becomes unknown after this many consecutive traces without its answer.

Switches limit the rate of their answers, so a missing answer is little evidence of another path. If a switch
answers half of the traces, a series of 16 traces without an answer has a probability of only 1 in 65,536."""


class Change(Enum):
    """Effect of a new trace on the known route of a path."""

    NONE = auto()
    NEW = auto()
    UNCONFIRMED = auto()
    REFINED = auto()
    MOVED = auto()


@dataclass(slots=True)
class KnownRoute:
    """The accepted route of one path. A change is accepted once two consecutive traces agree."""

    hops: Hops
    reached: bool
    since_ns: int
    changes: int = 0
    unconfirmed: tuple[Hops, bool] | None = None
    silent_traces: int = 0

    def update(self, trace: Trace, now_ns: int, expected: bool = False) -> bool:
        """Compare a new trace with the known route; return whether another trace at once should confirm it.

        `expected` means that other paths indicate a move of this path; then one complete trace is enough.
        """
        if self._agrees(trace):
            self.unconfirmed = None
            self._refine(trace)
            return False
        observed_route = (trace.hops, trace.reached)
        confirmed = self.unconfirmed is not None and _is_same(self.unconfirmed, observed_route)
        if not confirmed and not (expected and trace.is_complete):
            self.unconfirmed = observed_route
            return True
        self.unconfirmed = None
        self.changes += 1
        self.hops, self.reached, self.since_ns, self.silent_traces = trace.hops, trace.reached, now_ns, 0
        return False

    def differs_from(self, hops: Hops) -> bool:
        """Return whether any of `hops` contradicts the known hop at the same position."""
        return any(a != b for a, b in zip(self.hops, hops, strict=False) if a is not None and b is not None)

    def _agrees(self, trace: Trace) -> bool:
        """Return whether the trace does not contradict the known route.

        A trace that ends early may be a part of the known route. The known route is then kept, so that the
        dead link can be localised on it.
        """
        if self.differs_from(trace.hops):
            return False
        if trace.reached:
            return not self.reached or len(trace.hops) == len(self.hops)
        return not self.reached or len(trace.hops) <= len(self.hops)

    def _refine(self, trace: Trace) -> None:
        """Fill in those hops of the known route that did not answer before but answer in this trace.

        A hop of a working path that stays silent for several traces becomes unknown: it may have changed.
        """
        if not trace.reached:
            if not self.reached and len(trace.hops) > len(self.hops):
                self.hops += trace.hops[len(self.hops) :]
            return
        if not self.reached:
            self.hops, self.reached = trace.hops, True
            return
        merged = tuple(a if a is not None else b for a, b in zip(self.hops, trace.hops, strict=True))
        any_silent = any(a is not None and b is None for a, b in zip(self.hops, trace.hops, strict=True))
        self.silent_traces = self.silent_traces + 1 if any_silent else 0
        if self.silent_traces >= SILENT_TRACES:
            merged, self.silent_traces = trace.hops, 0
        self.hops = merged


def _is_same(a: tuple[Hops, bool], b: tuple[Hops, bool]) -> bool:
    """Return whether two traces have equal length and agree at each hop that answered in both."""
    return (
        a[1] == b[1]
        and len(a[0]) == len(b[0])
        and all(x is None or y is None or x == y for x, y in zip(a[0], b[0], strict=True))
    )


@dataclass(slots=True, kw_only=True)
class TracedRoute:
    """A repeatedly traced path: its trace packets, its known route and the time of the next trace."""

    flow: TracedFlow | None = None
    """The packets of its traces; None while the path is not traced."""
    known: KnownRoute | None = None
    due_s: float = float("inf")
    traced_s: float = float("-inf")
    incomplete_traces: int = 0
    """Number of consecutive incomplete traces."""

    def accept(self, trace: Trace, now_ns: int, expected: bool = False) -> Change:
        """Update the known route with a trace; return the effect. `expected`: as in `KnownRoute.update`."""
        known_route = self.known
        if known_route is None:
            self.known = KnownRoute(trace.hops, trace.reached, now_ns)
            return Change.NEW
        before = (known_route.hops, known_route.reached, known_route.changes)
        if known_route.update(trace, now_ns, expected):
            return Change.UNCONFIRMED
        if (known_route.hops, known_route.reached, known_route.changes) == before:
            return Change.NONE
        return Change.REFINED if known_route.changes == before[2] else Change.MOVED
