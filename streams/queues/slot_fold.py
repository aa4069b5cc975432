"""Decides how many slots queue inference combines into one, so that inference keeps up with its probes.

Longer slots cost less: the solver has fewer unknowns, and more time for each block. The number doubles from 1
to 8 as the backlog grows, and halves again when shorter slots seem fast enough. If shorter slots prove too
slow, the next attempt waits twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from streams.runtime.units import NS_PER_MS, NS_PER_S

COARSER_BEHIND_NS: Final = ((280 * NS_PER_MS, 8), (240 * NS_PER_MS, 4), (200 * NS_PER_MS, 2))
"""Pairs: backlog above which a busy worker combines slots, and into how many at least. Much later blocks are
skipped."""
SKIP_LATE_NS: Final = 300 * NS_PER_MS
"""A block that has been complete for longer than this is skipped in favour of newer ones."""
CALM_BEHIND_NS: Final = 120 * NS_PER_MS
"""Backlog below which a block counts as in time: records of a source arrive every 50 ms."""
FINER_BUSY: Final = 0.4
"""If the share of time spent on blocks is below this, slots of half the length are fast enough: they cost
less than twice as much. A backlog then comes from a pause of the worker, and longer slots would not help."""
FIRST_CALM_NS: Final = 5 * NS_PER_S
MAX_CALM_NS: Final = 160 * NS_PER_S
"""Time without delay before an attempt with shorter slots: `FIRST_CALM_NS`, doubled after each failed attempt
up to `MAX_CALM_NS`."""
PROVEN_NS: Final = 20 * NS_PER_S
"""Time after which an attempt with shorter slots counts as successful."""
BUSY_NS: Final = 500 * NS_PER_MS
"""Time constant of the share of time spent on blocks."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The number of slots combined into one, and the state for the next decision. Times are block ends."""

    slots: int = 1
    busy: float = 0.0
    """Share of time spent on blocks."""
    calm_since_ns: int | None = None
    """Time since which blocks have been in time; None if they are not."""
    finer_at_ns: int | None = None
    """Time at which slots last became shorter; None if they have become longer since."""
    calm_ns: int = FIRST_CALM_NS
    """Time without delay before the next attempt with shorter slots."""


def next_fold(fold: Fold, end_ns: int, block_ns: int, backlog_ns: int, spent_ns: int) -> Fold:
    """Return the fold after a block that ended at `end_ns` and took `spent_ns`.

    `backlog_ns`: time between the earliest possible and the actual solution of the next block.
    """
    gain = min(1.0, block_ns / BUSY_NS)
    busy = fold.busy + gain * (spent_ns / block_ns - fold.busy)
    slots = next((slots for behind_ns, slots in COARSER_BEHIND_NS if backlog_ns > behind_ns), 1)
    if slots > fold.slots and busy >= FINER_BUSY:
        return _coarser(fold, slots, end_ns, busy)
    if backlog_ns > CALM_BEHIND_NS:
        return replace(fold, busy=busy, calm_since_ns=None)
    since_ns = end_ns if fold.calm_since_ns is None else min(fold.calm_since_ns, end_ns)
    is_calm = end_ns - since_ns >= fold.calm_ns and busy < FINER_BUSY
    if fold.slots > 1 and is_calm:
        return Fold(fold.slots // 2, 2 * busy, end_ns, end_ns, fold.calm_ns)
    proven = fold.finer_at_ns is not None and end_ns - fold.finer_at_ns > PROVEN_NS
    calm_ns = FIRST_CALM_NS if proven else fold.calm_ns
    return replace(fold, busy=busy, calm_since_ns=since_ns, calm_ns=calm_ns)


def _coarser(fold: Fold, slots: int, end_ns: int, busy: float) -> Fold:
    """Return a fold of more slots; if fewer slots just failed, wait longer before trying fewer again."""
    failed = fold.finer_at_ns is not None and end_ns - fold.finer_at_ns <= PROVEN_NS
    calm_ns = min(2 * fold.calm_ns, MAX_CALM_NS) if failed else fold.calm_ns
    return Fold(slots, busy, None, None, calm_ns)
