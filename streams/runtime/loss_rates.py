"""Loss rates of links by likelihood: the fewest links that explain the losses of the paths.

The losses of a path are Poisson-distributed; their rate is the sum of its elements' rates. `find_lossy` adds
links one by one, each time the link that raises the likelihood most, and fits all rates again.

An incomplete route also crosses unknown links, and any of them may lose its packets. So its losses count
against a known link only so far as the complete routes over that link agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float64s: TypeAlias = NDArray[np.float64]
Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Bools: TypeAlias = NDArray[np.bool_]

NOTHING: Final = 0
"""The element that fills unused columns. It never loses a packet, so it explains nothing."""
BACKGROUND_LOSS: Final = 1e-4
"""Share of packets that any path may lose without a faulty element."""
MIN_GAIN: Final = 12.0
"""Log-likelihood that a lossy link must gain; by chance, one of a million links reaches it."""
CONTRADICTION: Final = 1.0
"""Log-likelihood by which complete paths over an element must speak against the losses of incomplete ones:
one loss was expected on them, and none occurred."""
MAX_LOSSY: Final = 32
"""Largest number of lossy elements that are searched for."""
FIT_ITERATIONS: Final = 20
"""Expectation-maximisation steps; the rates converge well within them."""
Z_95: Final = 1.959964
"""Normal quantile of a two-sided 95% interval."""


class ClassRate(NamedTuple):
    """Loss rate of one traffic class. `is_lossy`: this class loses packets while another class does not."""

    dscp: int
    rate: float
    low: float
    high: float
    is_lossy: bool = False


@dataclass(frozen=True, slots=True)
class Lossy:
    """One lossy element. `aliased`: elements with the same paths. `paths`: number of paths with losses.

    `classes`: rates by traffic class, if several are probed. If only some classes are lossy, the fields from
    `rate` to `requests` hold the values of the class that loses most.
    """

    element: int
    aliased: tuple[int, ...]
    rate: float
    low: float
    high: float
    lost: float
    requests: float
    paths: int
    classes: tuple[ClassRate, ...] = ()

    @property
    def lossy_dscps(self) -> frozenset[int]:
        """DSCPs of the classes that lose packets while other classes do not."""
        return frozenset(traffic_class.dscp for traffic_class in self.classes if traffic_class.is_lossy)


def wilson(lost: float, requests: float) -> tuple[float, float]:
    """Return the lower and upper bound of the 95% interval of the share lost / requests (Wilson 1927).

    The interval has the shares s for which lost / requests is within z standard errors
    sqrt(s (1 - s) / requests) of s.
    """
    if requests <= 0:
        return 0.0, 1.0
    share, z2 = min(lost / requests, 1.0), Z_95 * Z_95 / requests
    middle = (share + z2 / 2) / (1 + z2)
    half = Z_95 / (1 + z2) * sqrt(share * (1 - share) / requests + z2 / (4 * requests))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def find_lossy(
    rows: Int32s,
    lost: Int64s | Float64s,
    requests: Float64s,
    links_first: Bools,
    incomplete: Bools | None = None,
) -> list[Lossy]:
    """Return the lossy elements, first the element that explains most losses.

    `rows`: [P, width] elements of each path, filled up with NOTHING; `lost`, `requests`: [P]; `links_first`:
    [E], elements preferred among those that explain the same losses; `incomplete`: [P], paths that also cross
    unknown elements (None: no path does).
    """
    used = requests > 0
    rows, losses, n = rows[used], lost[used].astype(float), requests[used]
    complete = np.ones(len(n), np.bool_) if incomplete is None else ~incomplete[used]
    elements: list[int] = []
    aliased: list[tuple[int, ...]] = []
    rates: Float64s = np.zeros(0)
    expected = n * BACKGROUND_LOSS
    while len(elements) < MAX_LOSSY:
        element, same = _next(rows, losses, n, expected, elements, links_first, complete)
        if element == NOTHING:
            break
        elements.append(element)
        aliased.append(same)
        rates, expected = _fit(rows, losses, n, elements)
    lossy = []
    for element, same, rate in zip(elements, aliased, rates, strict=True):
        on_element = (rows == element).any(axis=1)
        requests_here, share = float(n[on_element].sum()), float(rate)
        low, high = wilson(share * requests_here, requests_here)
        with_loss = int(((losses > 0) & on_element).sum())
        lossy.append(Lossy(element, same, share, low, high, share * requests_here, requests_here, with_loss))
    return lossy


def _next(
    rows: Int32s,
    losses: Float64s,
    n: Float64s,
    expected: Float64s,
    elements: list[int],
    links_first: Bools,
    complete: Bools,
) -> tuple[int, tuple[int, ...]]:
    """Return the element whose own rate raises the likelihood most, and the elements that raise it equally.

    Let e be the expected losses of a path, l its losses, n its requests, and w = max(l - e, 0) the surplus
    that is attributed to the element. Its best rate is r = sum(w) / sum(n). To first order, the gain over
    rate 0 is sum(l log(1 + n r / e)) - r sum(n). An element that lowers the likelihood of its complete paths
    is left out.
    """
    width = rows.shape[1]
    flat = rows.reshape(-1)
    size = int(flat.max(initial=0)) + 1
    surplus = np.maximum(losses - expected, 0.0)
    hit = np.bincount(flat, np.repeat(surplus, width), size)
    total = np.bincount(flat, np.repeat(n, width), size)
    hit[NOTHING] = 0
    hit[elements] = 0
    rate = np.divide(hit, total, out=np.zeros(size), where=total > 0)
    lossy = losses > 0
    at = rows[lossy]
    log_gains = losses[lossy][:, None] * np.log1p(n[lossy][:, None] * rate[at] / expected[lossy][:, None])
    gain = np.bincount(at.reshape(-1), log_gains.reshape(-1), size) - rate * total
    if not complete.all():
        is_complete = complete[lossy]
        explained = np.bincount(at[is_complete].reshape(-1), log_gains[is_complete].reshape(-1), size)
        clean = rate * np.bincount(rows[complete].reshape(-1), np.repeat(n[complete], width), size)
        gain[explained - clean < -CONTRADICTION] = 0
    gain[NOTHING] = 0
    gain[elements] = 0
    best = float(gain.max())
    if best < MIN_GAIN:
        return NOTHING, ()
    equal = np.flatnonzero((gain >= best - max(0.5, 0.02 * best)) & (gain > 0))
    first = max((int(e) for e in equal), key=lambda e: (bool(links_first[e]), float(gain[e]), -e))
    return first, tuple(int(e) for e in equal if e != first)


def _fit(rows: Int32s, losses: Float64s, n: Float64s, elements: list[int]) -> tuple[Float64s, Float64s]:
    """Fit the chosen elements' rates by expectation-maximisation; return rates and [P] expected losses."""
    crosses = np.stack([(rows == element).any(axis=1) for element in elements], axis=1).astype(float)
    weight = crosses * n[:, None]
    total = weight.sum(axis=0)
    rates: Float64s = np.full(len(elements), 0.01)
    base = n * BACKGROUND_LOSS
    for _ in range(FIT_ITERATIONS):
        expected = base + weight @ rates
        rates = np.minimum(rates * (weight.T @ (losses / expected)) / total, 1.0)
    final: Float64s = base + weight @ rates
    return rates, final
