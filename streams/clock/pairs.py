"""Holds the pairs of one window as columns, and each pair's memory over windows.

`Pairs` can rotate its lines to a drift that is known more accurately than from the window. `PairMemory` keeps
each pair's floor and asymmetry. The floor, a pair's lowest margin without queueing, reveals the queueing in a
window. The asymmetry is the lasting error of the pair's offset, as far as loops show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.records import PairFit

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

DRIFT_LIMIT_PPB: Final = 1e6
"""A drift above 1,000 ppm is no oscillator: the clock stepped within the window."""
NO_SLOPE_PPB: Final = 1e6
VERTEX_SIGMAS: Final = 6.0
MIN_VERTEX_REACH_PPB: Final = 100.0
FREE_VERTEX_REACH_PPB: Final = 100_000.0
"""A hull is exact for slopes up to some distance from its line's (fit.c). The distance is `VERTEX_SIGMAS`
standard errors of the slope, at least `MIN_VERTEX_REACH_PPB`, and `FREE_VERTEX_REACH_PPB` without a slope."""
MIN_SIGMA_NS: Final = 0.5

_FIGURES: Final = (
    "offset_fraction_ns",
    "drift_ppb",
    "sigma_ns",
    "drift_sigma_ppb",
    "rtt_min_ns",
    "margin_ns",
    "noise_ns",
)


@dataclass(slots=True)
class Pairs:
    """Columns of one window's usable pairs, with one element per directed NIC pair between two clocks."""

    names: list[tuple[str, str]]
    """(prober NIC, peer NIC)"""
    prober: NDArray[np.int32]
    peer: NDArray[np.int32]
    at_ns: Int64s
    offset_ns: Int64s
    """Whole ns of the offset; `offset_fraction_ns` has the rest."""
    offset_fraction_ns: Float64s
    drift_ppb: Float64s
    sigma_ns: Float64s
    drift_sigma_ppb: Float64s
    rtt_min_ns: Float64s
    margin_ns: Float64s
    noise_ns: Float64s
    forward: HullVertices
    reverse: HullVertices

    @classmethod
    def of(cls, records: Sequence[PairFit], node_of: Mapping[str, int]) -> Pairs:
        """Build the columns from elements of `ClockFits.pairs`.

        Pairs of unknown or equal nodes are left out, as are fits that no clock can produce. For a fit of an
        earlier release, which has no margin, its lowest round trip is used.
        """
        rows = [r for r in records if _is_usable(r, node_of)]
        figures = np.array([[r.get(name, 0.0) for r in rows] for name in _FIGURES], np.float64)
        figures = figures.reshape(len(_FIGURES), len(rows))
        margin = figures[5]
        figures[5] = np.where(margin > 0, margin, figures[4])
        columns: dict[str, Any] = dict(zip(_FIGURES, figures, strict=True))
        return cls(
            names=[(r["prober"], r["peer"]) for r in rows],
            prober=np.array([node_of[r["prober"]] for r in rows], np.int32),
            peer=np.array([node_of[r["peer"]] for r in rows], np.int32),
            at_ns=np.array([r["at_ns"] for r in rows], np.int64),
            offset_ns=np.array([r["offset_ns"] for r in rows], np.int64),
            forward=HullVertices.of(
                [r["forward_after_ns"] for r in rows], [r["forward_delay_ns"] for r in rows]
            ),
            reverse=HullVertices.of(
                [r["reverse_after_ns"] for r in rows], [r["reverse_delay_ns"] for r in rows]
            ),
            **columns,
        )

    def __len__(self) -> int:
        return len(self.names)

    def where(self, keep: Bools) -> Pairs:
        """Return only the pairs whose element of `keep` is True."""
        columns: dict[str, Any] = {
            name: getattr(self, name)[keep] for name in ("prober", "peer", "at_ns", "offset_ns", *_FIGURES)
        }
        return Pairs(
            names=[name for name, selected in zip(self.names, keep.tolist(), strict=True) if selected],
            forward=self.forward.where(keep),
            reverse=self.reverse.where(keep),
            **columns,
        )

    def rotated(self, drift_ppb: Float64s, drift_sigma_ppb: Float64s) -> RotatedPairs:
        """Return offsets and margins after rotating each line to the known drift, if that is more accurate.

        `drift_ppb`, `drift_sigma_ppb`: each pair's drift from the clocks' own rates, and its standard error.
        The floor of a direction is its lowest hull vertex at that drift, which is exact within the reach of
        the hull. A line through modes has no hull and keeps its offset, which hardly depends on its slope.

        A round trip is never negative. If a rotated margin is negative, the drift is wrong or the clock
        changed within the window. The margin then stays as it is.
        """
        reach = np.maximum(VERTEX_SIGMAS * self.drift_sigma_ppb, MIN_VERTEX_REACH_PPB)
        reach = np.where(self.drift_sigma_ppb >= NO_SLOPE_PPB, FREE_VERTEX_REACH_PPB, reach)
        drift_change_ppb = drift_ppb - self.drift_ppb
        has_hull = (self.forward.counts > 0) & (self.reverse.counts > 0)
        rotating = has_hull & (np.abs(drift_change_ppb) <= reach) & (drift_sigma_ppb < self.drift_sigma_ppb)
        forward, forward_s = self.forward.lowest(-drift_change_ppb)
        reverse, reverse_s = self.reverse.lowest(drift_change_ppb)
        rest = self.offset_fraction_ns + np.where(rotating, (forward - reverse) / 2, 0.0)
        rotated_ns = np.where(rotating, forward + reverse, 0.0)
        margin = np.where(rotating & (rotated_ns >= 0), rotated_ns, self.margin_ns)
        lever_s = np.where(rotating, (forward_s + reverse_s) / 2, 0.0)
        margin_lever_s = np.where(rotating, np.abs(forward_s - reverse_s), 0.0)
        has_better_drift = drift_sigma_ppb < self.drift_sigma_ppb
        return RotatedPairs(
            rest_ns=rest,
            margin_ns=margin,
            rotated=rotating,
            modal=self.noise_ns > 0,
            slope_is_best=~(has_better_drift & has_hull) & (self.drift_sigma_ppb < NO_SLOPE_PPB),
            drift_ppb=np.where(
                has_better_drift, drift_ppb, np.where(self.drift_sigma_ppb < NO_SLOPE_PPB, self.drift_ppb, 0)
            ),
            drift_sigma_ppb=np.minimum(drift_sigma_ppb, self.drift_sigma_ppb),
            lever_s=lever_s,
            margin_lever_s=margin_lever_s,
            crossing_ns=np.maximum(-rotated_ns, 0.0),
        )


@dataclass(slots=True)
class HullVertices:
    """Vertices of the lower hulls in one direction, pair after pair; pair i has `counts[i]` vertices."""

    counts: Int64s
    after_s: Float64s
    delay_ns: Float64s

    @classmethod
    def of(cls, after: list[list[int]], delay: list[list[float]]) -> HullVertices:
        """Build the columns from each pair's vertices: times after its first vertex and delays, both ns."""
        counts = np.array([min(len(a), len(d)) for a, d in zip(after, delay, strict=True)], np.int64)
        if any(len(a) != len(d) for a, d in zip(after, delay, strict=True)):
            after = [a[: len(d)] for a, d in zip(after, delay, strict=True)]
            delay = [d[: len(a)] for a, d in zip(after, delay, strict=True)]
        return cls(
            counts,
            np.fromiter(chain.from_iterable(after), np.float64) * 1e-9,
            np.fromiter(chain.from_iterable(delay), np.float64),
        )

    def where(self, keep: Bools) -> HullVertices:
        """Return the vertices of only those pairs whose element of `keep` is True."""
        inside = np.repeat(keep, self.counts)
        return HullVertices(self.counts[keep], self.after_s[inside], self.delay_ns[inside])

    def lowest(self, slope_change_ppb: Float64s) -> tuple[Float64s, Float64s]:
        """Return each pair's lowest delay, ns, after changing its line's slope, and the time of that delay.

        Times are in s after the line's instant. Both results are 0 for pairs without a hull.
        """
        lowest_ns, when = np.zeros(len(self.counts)), np.zeros(len(self.counts))
        some = np.flatnonzero(self.counts)
        if len(some):
            delay = self.delay_ns + np.repeat(slope_change_ppb, self.counts) * self.after_s
            start = np.concatenate([[0], np.cumsum(self.counts[some])[:-1]])
            lowest_ns[some] = np.minimum.reduceat(delay, start)
            at_lowest_s = np.where(delay <= np.repeat(lowest_ns, self.counts), self.after_s, -np.inf)
            when[some] = np.maximum.reduceat(at_lowest_s, start)
        return lowest_ns, when


@dataclass(slots=True)
class RotatedPairs:
    """Offsets and margins of pairs whose lines were rotated to another drift, one array element per pair."""

    rest_ns: Float64s
    """The offset minus the pair's whole `offset_ns`."""
    margin_ns: Float64s
    rotated: Bools
    modal: Bools
    slope_is_best: Bools
    """True if the line has a slope, and no better one is known or the line has no hull to rotate it."""
    drift_ppb: Float64s
    drift_sigma_ppb: Float64s
    lever_s: Float64s
    """Factor by which an error of the drift enters the offset, s."""
    margin_lever_s: Float64s
    """Factor by which an error of the drift enters the margin, s: time between the two floors."""
    crossing_ns: Float64s
    """Amount by which the margin would be negative at the known drift; 0 if it would not."""


class PairMemory:
    """The memory of each pair: columns that grow, with one row per (prober, peer).

    The floor is the mean of the margins within NEAR standard deviations of it. A lower margin replaces it at
    once. But a margin that is GROSS times lower must be seen twice, because all others would then seem to be
    queues. After MAX_ABOVE_WINDOWS windows without a margin near the floor, the path has changed, and the
    lowest margin of these windows becomes the floor. A margin above the floor shows a queue that persisted
    for the window, in one or both directions.

    A pair has two floors, because margins between modes and margins between lowest readings are not
    comparable: the tails of the noise lower margins between lowest readings. Chance decides which kind of
    margin a window has.
    """

    NEAR: Final = 3.0
    MAX_ABOVE_WINDOWS: Final = 32
    MAX_FAR_ABOVE_WINDOWS: Final = 600
    """The same for margins GROSS times above the floor: paths hardly become that much longer, but queues may
    persist for minutes."""
    SMOOTH: Final = 16
    GROSS: Final = 3.0
    """A margin that exceeds a floor of either kind by this multiple of it is a queue."""
    LASTING: Final = 64
    """Windows over which an asymmetry is averaged."""
    FORGET: Final = 600
    """A pair is dropped after this many windows without it."""
    MIN_KNOWN: Final = 2
    KNOWN_SHARE: Final = 0.1
    """If this share of all pairs, at least `MIN_KNOWN`, have a measured noise, the others get its median."""

    def __init__(self) -> None:
        self._row: dict[tuple[str, str], int] = {}
        self._table = np.empty((0, self._COLUMNS))
        self._floors = np.empty((0, 2, 5))
        """[row, kind, column]; kind 1: between modes."""

    _NOISE, _BIAS, _WEIGHT, _SQUARES, _SEEN = range(5)
    _COLUMNS = 5
    _FLOOR, _NEAR, _LOW, _SINCE, _DEEP = range(5)

    def rows(self, names: Sequence[tuple[str, str]], window: int) -> NDArray[np.intp]:
        """Return the row number of each pair in `names`, seen in `window`; add rows for new pairs."""
        row_by_name = self._row
        new = len(row_by_name)
        for name in names:
            if name not in row_by_name:
                row_by_name[name] = new
                new += 1
        if new > len(self._table):
            rows_more = max(new, 2 * len(self._table)) - len(self._table)
            self._table = np.concatenate([self._table, np.zeros((rows_more, self._COLUMNS))])
            more = np.zeros((rows_more, 2, 5))
            more[:, :, [self._FLOOR, self._LOW]] = np.inf
            more[:, :, self._DEEP] = -np.inf
            self._floors = np.concatenate([self._floors, more])
        rows = np.fromiter((row_by_name[name] for name in names), np.intp, len(names))
        self._table[rows, self._SEEN] = window
        return rows

    def forget(self, window: int) -> None:
        """Drop pairs not seen for `FORGET` windows, which renumbers rows. Call rarely: it is slow."""
        recent_names = [
            name for name, row in self._row.items() if window - self._table[row, self._SEEN] <= self.FORGET
        ]
        rows = [self._row[name] for name in recent_names]
        self._table, self._floors = self._table[rows], self._floors[rows]
        self._row = {name: row for row, name in enumerate(recent_names)}

    def noise(self, rows: NDArray[np.intp], noise_ns: Float64s, otherwise: float) -> Float64s:
        """Learn each pair's timestamp noise from `noise_ns`, 0 if not measured; return the learned noise, ns.

        Pairs without a measured noise get the median of the other pairs if enough pairs are measured, else
        `otherwise`. A first noise far below `otherwise` must be seen twice, or the pair outweighs all others.
        """
        old = self._table[rows, self._NOISE]
        is_doubtful = (old == 0) & (noise_ns < otherwise / (1 + self.GROSS))
        first = np.where(is_doubtful, -noise_ns, noise_ns)
        new = np.where(noise_ns > 0, np.where(old > 0, old + (noise_ns - old) / 8, first), old)
        self._table[rows, self._NOISE] = new
        measured_noise_ns = new[new > 0]
        is_usual = len(measured_noise_ns) >= max(self.MIN_KNOWN, self.KNOWN_SHARE * len(rows))
        typical_noise_ns = float(np.median(measured_noise_ns)) if is_usual else otherwise
        return np.where(new > 0, new, typical_noise_ns)

    def excess(
        self, rows: NDArray[np.intp], margin_ns: Float64s, sigma_ns: Float64s, sure: Bools, middle: Bools
    ) -> Float64s:
        """Return how far each margin is above its pair's floor, in ns, at least 0.

        The result is inf if the floor was seen only once and the margin is not clearly a queue. `sigma_ns`:
        standard errors of the margins. `sure`: whether a margin may change the floor. `middle`: whether a
        margin lies between two modes, not between lowest readings.
        """
        kind = middle.astype(np.intp)
        floor, near, low, since, deep = self._floors[rows, kind].T
        other, other_near = self._floors[rows, 1 - kind][:, [self._FLOOR, self._NEAR]].T
        gross = (other_near >= 2) & (margin_ns > (1 + self.GROSS) * other)
        reach = self.NEAR * sigma_ns
        below = sure & ~gross & (margin_ns < floor - reach)
        doubtful = below & (near >= 2) & ((1 + self.GROSS) * margin_ns < floor) & (margin_ns > deep + reach)
        below &= ~doubtful
        deep = np.where(doubtful, margin_ns, deep)
        close = sure & ~gross & ~below & ~doubtful & (margin_ns <= floor + reach)
        above = sure & ~below & ~close & ~doubtful
        low = np.where(above, np.minimum(low, margin_ns), np.inf)
        since = np.where(above, since + 1, np.where(sure, 0, since))
        far = gross | ((near >= 2) & (margin_ns > (1 + self.GROSS) * floor))
        moved = above & (since >= np.where(far, self.MAX_FAR_ABOVE_WINDOWS, self.MAX_ABOVE_WINDOWS))
        lower = below & np.isfinite(floor)
        near = np.where(below | moved, 1, np.where(close, near + 1, near))
        with np.errstate(invalid="ignore"):
            closer = floor + (margin_ns - floor) / np.minimum(near, self.SMOOTH)
        floor = np.where(below, margin_ns, np.where(close, closer, np.where(moved, low, floor)))
        since = np.where(moved, 0, since)
        self._floors[rows, kind] = np.stack([floor, near, low, since, deep], axis=1)
        self._floors[rows[moved], 1 - kind[moved]] = np.inf, 0.0, np.inf, 0.0, -np.inf
        fresh = rows[lower | moved]
        self._table[fresh, self._WEIGHT] = np.minimum(self._table[fresh, self._WEIGHT], 1.0)
        with np.errstate(invalid="ignore"):
            excess_ns = np.where(near >= 2, np.maximum(margin_ns - floor, 0.0), np.inf)
            return np.where(gross & ~moved, margin_ns - other, excess_ns)

    def floor(self, rows: NDArray[np.intp], middle: Bools) -> Float64s:
        """Return each pair's floor, ns, inf if unknown; `middle`: whether its margin lies between modes."""
        return np.asarray(self._floors[rows, middle.astype(np.intp), self._FLOOR])

    def learn_residuals(self, rows: NDArray[np.intp], residual_ns: Float64s, good: Bools) -> None:
        """Update each `good` pair's lasting offset error from its residual in this window, ns."""
        good_rows = rows[good]
        weight = np.minimum(self._table[good_rows, self._WEIGHT] + 1, self.LASTING)
        off = residual_ns[good] - self._table[good_rows, self._BIAS]
        self._table[good_rows, self._WEIGHT] = weight
        self._table[good_rows, self._BIAS] += off / weight
        squares = self._table[good_rows, self._SQUARES]
        self._table[good_rows, self._SQUARES] = squares + (off * off * (1 - 1 / weight) - squares) / weight

    def bias(self, rows: NDArray[np.intp]) -> tuple[Float64s, Float64s, Float64s]:
        """Return each pair's lasting error, its standard error (both ns), and the number of windows used."""
        weight = self._table[rows, self._WEIGHT]
        spread = np.sqrt(self._table[rows, self._SQUARES] / np.maximum(weight - 1, 1))
        return (
            np.asarray(self._table[rows, self._BIAS]),
            np.where(weight > 1, np.maximum(spread, MIN_SIGMA_NS), np.inf),
            np.asarray(weight),
        )


def _is_usable(fit: PairFit, node_of: Mapping[str, int]) -> bool:
    """Return whether a fit is between two different known nodes and has a drift that is possible."""
    prober, peer = node_of.get(fit["prober"]), node_of.get(fit["peer"])
    if fit["accepted"] <= 0 or prober is None or peer is None or prober == peer:
        return False
    return abs(fit["drift_ppb"]) < DRIFT_LIMIT_PPB or fit["drift_sigma_ppb"] >= NO_SLOPE_PPB
