"""Finds the iterations of a program in the sequence of its operations.

One iteration is the shortest period after which the kinds of operations repeat. If all operations are of one
kind, iterations exist only where longer pauses separate equal numbers of operations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.diagnosis.rules import GAP_TIMES, MAX_PERIOD, PERIOD_MATCH

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_SEQUENCE = 2_048
"""Number of newest operations that are searched."""
MIN_PAIRS = 3
"""Smallest number of operations with a matching one a period later that proves a period."""
REGULAR = 0.8
"""Share of equal distances between longer pauses that proves a period."""


class Iterations(NamedTuple):
    """Iterations of a rank. `period`: operations per iteration; `length_ns`: mean length of an iteration."""

    period: int
    length_ns: float


def find_iterations(seq: Ints, kind: Ints, begin: Floats, end: Floats) -> Iterations | None:
    """Return the iterations of one rank's operations in one communicator; None if no period is found.

    Operations are sorted by number. `kind`: a number for function and bytes of each operation.
    """
    newest = seq > (seq[-1] if len(seq) else 0) - MAX_SEQUENCE
    seq, kind, begin, end = seq[newest], kind[newest], begin[newest], end[newest]
    if len(seq) <= MIN_PAIRS:
        return None
    at = np.full(int(seq[-1] - seq[0]) + 1, -1, np.int64)
    at[seq - seq[0]] = np.arange(len(seq))
    kinds = np.where(at >= 0, kind[at], -1)
    if (kind == kind[0]).all():
        period = _period_by_pauses(at, begin, end)
        return _iterations(at, begin, period) if period is not None else _single(seq, begin)
    period = _period(kinds)
    if period is None:
        return None
    return _iterations(at, begin, period)


def _iterations(at: Ints, begin: Floats, period: int) -> Iterations | None:
    pairs = (at[:-period] >= 0) & (at[period:] >= 0)
    first = at[:-period][pairs]
    lengths = begin[at[period:][pairs]] - begin[first]
    return Iterations(period, float(lengths.mean())) if len(lengths) else None


def _single(seq: Ints, begin: Floats) -> Iterations:
    """Return iterations of one operation each. The operations may be a sample: `seq` may have gaps."""
    return Iterations(1, float((np.diff(begin) / np.diff(seq)).mean()))


def _period(kinds: Ints) -> int | None:
    """Return the shortest period of the sequence of kinds; None without a period. A kind of -1 is unknown."""
    for period in range(1, min(MAX_PERIOD, len(kinds) - 1) + 1):
        first, second = kinds[:-period], kinds[period:]
        both = (first >= 0) & (second >= 0)
        pairs = int(both.sum())
        if pairs >= max(MIN_PAIRS, period) and (first == second)[both].mean() >= PERIOD_MATCH:
            return period
    return None


def _period_by_pauses(at: Ints, begin: Floats, end: Floats) -> int | None:
    """Return the number of operations between longer pauses; None if the number varies."""
    both = (at[:-1] >= 0) & (at[1:] >= 0)
    pauses = np.where(both, begin[at[1:]] - end[at[:-1]], np.nan)
    valid = pauses[both]
    if len(valid) < MIN_PAIRS:
        return None
    longer = np.flatnonzero(np.nan_to_num(pauses) > max(GAP_TIMES * float(np.median(valid)), 1.0))
    distances = np.diff(longer)
    if len(distances) < 2:
        return None
    typical = int(np.median(distances))
    is_regular = float((distances == typical).mean()) >= REGULAR
    return typical if typical > 1 and is_regular else None
