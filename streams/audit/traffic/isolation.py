"""Finds slow hosts from measurements of pairs in two or more passes with different partners. Pure.

A slow host makes all of its pairs slow, so a pair that is not slow clears both of its hosts. A host is slow
if all of its pairs are slow and at least one of its partners is cleared. A slow pair of two cleared hosts
indicates slow links between them. All other hosts of slow pairs are suspects; another pass with cleared
partners decides about them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from streams.audit.robust import SIGMAS_OF_MAD, Spread

Z_LIMIT: Final = 3.5
"""Modified z-score of a slow pair (Iglewicz and Hoaglin). Two slow pairs are needed to call a host slow,
which squares the probability of an error."""
MIN_PAIRS: Final = 3
"""Number of measurements below which there is no majority."""


class Measured(NamedTuple):
    """Measurement of a pair of hosts: one value, a rate or a time, for one direction or for both."""

    a: str
    b: str
    value: float


@dataclass(frozen=True, slots=True)
class Isolated:
    """Outcome for each host of a slow pair, and the indices of slow pairs between cleared hosts."""

    median: float
    limit: float
    """Value from which on a measurement is slow."""
    slow: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    pairs: tuple[int, ...] = ()
    outliers: tuple[int, ...] = ()
    """Indices of all slow measurements."""


def isolate(
    measured: Sequence[Measured], tolerance: float, *, high_is_slow: bool = False, limit: float | None = None
) -> Isolated | None:
    """Return the slow hosts and pairs; None with fewer than `MIN_PAIRS` measurements.

    `tolerance`: deviation, as a share of the median, that is never slow; `high_is_slow`: the values are
    times; `limit`: value at which a measurement becomes slow, instead of a limit from median and MAD.
    """
    if len(measured) < MIN_PAIRS:
        return None
    values = np.array([pair.value for pair in measured])
    spread = Spread.of(values)
    sign = 1.0 if high_is_slow else -1.0
    if limit is None:
        allowed = max(Z_LIMIT * spread.mad / SIGMAS_OF_MAD, tolerance * abs(spread.median))
        limit = spread.median + sign * allowed
    outliers = np.flatnonzero(sign * (values - limit) > 0).tolist()
    return _outcome(measured, outliers, spread.median, limit)


def _outcome(measured: Sequence[Measured], outliers: Sequence[int], median: float, limit: float) -> Isolated:
    slow_at = set(outliers)
    cleared = {host for at, pair in enumerate(measured) if at not in slow_at for host in (pair.a, pair.b)}
    partners: defaultdict[str, set[str]] = defaultdict(set)
    for at in outliers:
        a, b, _ = measured[at]
        partners[a].add(b)
        partners[b].add(a)
    accused = partners.keys() - cleared
    slow = {host for host in accused if len(partners[host]) > 1 and partners[host] & cleared}
    pairs = [at for at in outliers if {measured[at].a, measured[at].b} <= cleared]
    return Isolated(
        median, limit, tuple(sorted(slow)), tuple(sorted(accused - slow)), tuple(pairs), tuple(outliers)
    )


def confirming(isolated: Isolated, hosts: Collection[str]) -> list[tuple[str, str]]:
    """Return pairs, to be measured, of each slow host and suspect with another host; may be empty."""
    accused = [*isolated.slow, *isolated.suspects]
    return list(zip(accused, (host for host in hosts if host not in accused), strict=False))
