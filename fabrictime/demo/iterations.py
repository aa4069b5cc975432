"""Compares the durations of a job's iterations before, during and after a fault. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

BASE_S: Final = 4.0
"""Length of the period before a fault, and of that after its healing, in which iterations count."""
SETTLE_S: Final = 1.0
"""Time after the healing that is left out, since TCP still retransmits lost packets."""

STALL_S: Final = 2.0
"""An iteration that lasts longer than this counts as a stall instead of as one about to be reported."""

Iterations = Sequence[tuple[float, float]]
"""Begin and end of each iteration, s."""


@dataclass(frozen=True, slots=True)
class Change:
    """Durations of a job's iterations before, during and after a fault, ms; None if none ended then."""

    before_ms: float | None
    """Median before the fault."""
    during_ms: float | None
    """Median of the iterations that overlap the fault."""
    worst_ms: float | None
    """The longest of the iterations that overlap the fault."""
    after_ms: float | None
    """Median after the healing."""
    unfinished: bool = False
    """Whether the longest iteration has not ended yet, so that `worst_ms` is its age."""

    @property
    def slowdown(self) -> float:
        """The longest iteration during the fault, divided by the median before it; 0 if either is unknown."""
        return self.worst_ms / self.before_ms if self.worst_ms and self.before_ms else 0.0


def change_of(iterations: Iterations, broken_s: float, healed_s: float, now_s: float) -> Change:
    """Return the durations before `broken_s`, from then until `healed_s`, and afterwards until `now_s`."""
    after_s = healed_s + SETTLE_S
    before = [
        iteration
        for iteration in iterations
        if broken_s - BASE_S <= iteration[0] and iteration[1] <= broken_s
    ]
    during = [iteration for iteration in iterations if iteration[1] > broken_s and iteration[0] < healed_s]
    after = [
        iteration for iteration in iterations if after_s <= iteration[0] and iteration[1] <= after_s + BASE_S
    ]
    worst_ms = max(((end - begin) * 1e3 for begin, end in during), default=None)
    open_ms = (now_s - iterations[-1][1]) * 1e3 if iterations else 0.0
    unfinished = open_ms > max(worst_ms or 0.0, STALL_S * 1e3)
    return Change(
        _median_ms(before),
        _median_ms(during),
        open_ms if unfinished else worst_ms,
        _median_ms(after),
        unfinished,
    )


def _median_ms(iterations: Iterations) -> float | None:
    return median((end - begin) * 1e3 for begin, end in iterations) if iterations else None
