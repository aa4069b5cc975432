"""The pairs of one window as columns, and what the solver remembers of each pair from window to window.

In: `ClockFits.pairs` elements. Out: `Pairs`, whose lines can be turned to a drift that is known better than
the window shows it, and `PairMemory`: each pair's least margin (its floor, so that a window's queueing can be
told) and what its offset is lastingly off by (its asymmetry, as far as loops show it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_SLOPE_PPB", "PairMemory", "Pairs", "RotatedPairs"]

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

DRIFT_LIMIT_PPB: Final = 1e6
"""Beyond 1,000 ppm it is no oscillator: the clock stepped within the window."""
NO_SLOPE_PPB: Final = 1e6
VERTEX_SIGMAS: Final = 6.0
MIN_VERTEX_REACH_PPB: Final = 100.0
FREE_VERTEX_REACH_PPB: Final = 100_000.0
"""How far from a line's slope its corners reach (fit.c): by its error, at least, and without a slope."""
MIN_SIGMA_NS: Final = 0.5

_FIGURES: Final = (
    "offset_ns", "drift_ppb", "sigma_ns", "drift_sigma_ppb", "rtt_min_ns", "margin_ns", "noise_ns",
)  # fmt: skip


@dataclass(slots=True)
class Pairs:
    """Usable pairs of one window between different nodes (clocks), one element a directed NIC pair."""

    names: list[tuple[str, str]]
    """(prober, peer), NICs."""
    prober: NDArray[np.int32]
    peer: NDArray[np.int32]
    at_ns: Int64s
    offset_ns: Float64s
    drift_ppb: Float64s
    sigma_ns: Float64s
    drift_sigma_ppb: Float64s
    rtt_min_ns: Float64s
    margin_ns: Float64s
    noise_ns: Float64s
    forward: HullVertices
    reverse: HullVertices

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], node_of: Mapping[str, int]) -> Pairs:
        """Take `ClockFits.pairs` elements; those of unknown or equal nodes, and those that no clock could
        have made, are left out. A fitter of an earlier release tells no margin: its least round trip then."""
        rows = [
            r
            for r in records
            if r["accepted"] > 0
            and r["prober"] in node_of
            and r["peer"] in node_of
            and node_of[r["prober"]] != node_of[r["peer"]]
            and (abs(r["drift_ppb"]) < DRIFT_LIMIT_PPB or r["drift_sigma_ppb"] >= NO_SLOPE_PPB)
        ]
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
            forward=HullVertices.of(rows, "forward"),
            reverse=HullVertices.of(rows, "reverse"),
            **columns,
        )

    def __len__(self) -> int:
        return len(self.names)

    def where(self, keep: Bools) -> Pairs:
        """Return the pairs for which `keep` holds."""
        columns: dict[str, Any] = {
            name: getattr(self, name)[keep] for name in ("prober", "peer", "at_ns", *_FIGURES)
        }
        return Pairs(
            names=[name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept],
            forward=self.forward.where(keep),
            reverse=self.reverse.where(keep),
            **columns,
        )

    def rotated(self, drift_ppb: Float64s, drift_sigma_ppb: Float64s) -> RotatedPairs:
        """Return offsets and margins with each line turned to the drift known, where that is known better.

        `drift_ppb` is each pair's drift as the clocks' own rates have it, with its standard error. The floors
        at a given drift are the lowest of the corners at that drift: exact within the reach of the corners. A
        line without corners (through hills) keeps its offset, which hardly depends on its slope.
        """
        reach = np.maximum(VERTEX_SIGMAS * self.drift_sigma_ppb, MIN_VERTEX_REACH_PPB)
        reach = np.where(self.drift_sigma_ppb >= NO_SLOPE_PPB, FREE_VERTEX_REACH_PPB, reach)
        drift_change_ppb = drift_ppb - self.drift_ppb
        has_hull = (self.forward.counts > 0) & (self.reverse.counts > 0)
        rotating = has_hull & (np.abs(drift_change_ppb) <= reach) & (drift_sigma_ppb < self.drift_sigma_ppb)
        forward, forward_s = self.forward.lowest(-drift_change_ppb)
        reverse, reverse_s = self.reverse.lowest(drift_change_ppb)
        offset = self.offset_ns + np.where(rotating, (forward - reverse) / 2, 0.0)
        margin = np.where(rotating, forward + reverse, self.margin_ns)
        lever_s = np.where(rotating, (forward_s + reverse_s) / 2, 0.0)
        known = drift_sigma_ppb < self.drift_sigma_ppb
        return RotatedPairs(
            offset_ns=offset,
            margin_ns=margin,
            rotated=rotating,
            modal=self.noise_ns > 0,
            kept=~(known & has_hull) & (self.drift_sigma_ppb < NO_SLOPE_PPB),
            drift_ppb=np.where(
                known, drift_ppb, np.where(self.drift_sigma_ppb < NO_SLOPE_PPB, self.drift_ppb, 0)
            ),
            drift_sigma_ppb=np.minimum(drift_sigma_ppb, self.drift_sigma_ppb),
            lever_s=lever_s,
        )


@dataclass(slots=True)
class HullVertices:
    """Corners of one direction's lower hulls, all pairs' after each other: `counts` of each pair."""

    counts: Int64s
    after_s: Float64s
    delay_ns: Float64s

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], direction: str) -> HullVertices:
        after = [r.get(f"{direction}_after_ns", ()) for r in rows]
        delay = [r.get(f"{direction}_delay_ns", ()) for r in rows]
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
        """Return the corners of the pairs for which `keep` holds."""
        inside = np.repeat(keep, self.counts)
        return HullVertices(self.counts[keep], self.after_s[inside], self.delay_ns[inside])

    def lowest(self, slope_change_ppb: Float64s) -> tuple[Float64s, Float64s]:
        """Return each pair's least delay with its line's slope changed by `slope_change_ppb` (0 without
        corners), and where that corner stands (s after the line's instant)."""
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
    """Pairs with their lines turned; an element a pair."""

    offset_ns: Float64s
    margin_ns: Float64s
    rotated: Bools
    modal: Bools
    kept: Bools
    """The line's own slope is the best that is known, or all that the line can tell."""
    drift_ppb: Float64s
    drift_sigma_ppb: Float64s
    lever_s: Float64s
    """What an error of the drift counts for in offset_ns: by so many s."""


class PairMemory:
    """What is known of each pair from the windows before: columns that grow, a row a (prober, peer).

    Floor: the mean of the margins within NEAR standard deviations of it; a lower margin takes its place at
    once, and after PATIENCE windows without any near it the least of those does (the path moved). A margin
    above the floor is a queue that the window never got rid of in one direction or both.

    A pair has two floors. Margins between the middles of hills and margins between lowest readings are not
    compared: these stand lower by the noise's tails. Which of them a window has is chance.
    """

    NEAR: Final = 3.0
    MAX_ABOVE_WINDOWS: Final = 32
    MAX_FAR_ABOVE_WINDOWS: Final = 600
    """Of margins GROSS times above: paths hardly become so much longer, and queues may stand for minutes."""
    SMOOTH: Final = 16
    GROSS: Final = 3.0
    """A margin so many times above a floor, be it the other kind's, is a queue."""
    LASTING: Final = 64
    """Windows over which an asymmetry is averaged."""
    FORGET: Final = 600
    """Windows after which a pair that was not seen is dropped."""

    def __init__(self) -> None:
        self._row: dict[tuple[str, str], int] = {}
        self._table = np.empty((0, self._COLUMNS))
        self._floors = np.empty((0, 2, 4))
        """[row, kind, column]; kind 1: between the middles of hills."""

    _NOISE, _BIAS, _WEIGHT, _SQUARES, _SEEN = range(5)
    _COLUMNS = 5
    _FLOOR, _NEAR, _LOW, _SINCE = range(4)

    def rows(self, names: Sequence[tuple[str, str]], window: int) -> NDArray[np.intp]:
        """Return the rows of pairs, made where they are new."""
        known = self._row
        new = len(known)
        for name in names:
            if name not in known:
                known[name] = new
                new += 1
        if new > len(self._table):
            rows_more = max(new, 2 * len(self._table)) - len(self._table)
            self._table = np.concatenate([self._table, np.zeros((rows_more, self._COLUMNS))])
            more = np.zeros((rows_more, 2, 4))
            more[:, :, [self._FLOOR, self._LOW]] = np.inf
            self._floors = np.concatenate([self._floors, more])
        rows = np.fromiter((known[name] for name in names), np.intp, len(names))
        self._table[rows, self._SEEN] = window
        return rows

    def forget(self, window: int) -> None:
        """Drop pairs that were not seen for long; call seldom."""
        kept = [
            name for name, row in self._row.items() if window - self._table[row, self._SEEN] <= self.FORGET
        ]
        rows = [self._row[name] for name in kept]
        self._table, self._floors = self._table[rows], self._floors[rows]
        self._row = {name: row for row, name in enumerate(kept)}

    def noise(self, rows: NDArray[np.intp], noise_ns: Float64s, otherwise: float) -> Float64s:
        """Take the noise that hills show (0: none), return the noise of each pair's readings."""
        old = self._table[rows, self._NOISE]
        new = np.where(noise_ns > 0, np.where(old > 0, old + (noise_ns - old) / 8, noise_ns), old)
        self._table[rows, self._NOISE] = new
        known = new[new > 0]
        usual = float(np.median(known)) if len(known) else otherwise
        return np.where(new > 0, new, usual)

    def excess(
        self, rows: NDArray[np.intp], margin_ns: Float64s, sigma_ns: Float64s, sure: Bools, middle: Bools
    ) -> Float64s:
        """Return how far each margin stands above its pair's floor, in ns, at least 0; inf where the floor is
        not known yet (it was seen but once) and the margin is none that speaks for itself. Only margins that
        are `sure` move a floor; `sigma_ns` are their standard errors.

        `middle`: the margin lies between the middles of two hills, else between lowest readings.
        """
        kind = middle.astype(np.intp)
        floor, near, low, since = self._floors[rows, kind].T
        other, other_near = self._floors[rows, 1 - kind][:, [self._FLOOR, self._NEAR]].T
        gross = (other_near >= 2) & (margin_ns > (1 + self.GROSS) * other)
        reach = self.NEAR * sigma_ns
        below = sure & ~gross & (margin_ns < floor - reach)
        close = sure & ~gross & ~below & (margin_ns <= floor + reach)
        above = sure & ~below & ~close
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
        self._floors[rows, kind] = np.stack([floor, near, low, since], axis=1)
        self._floors[rows[moved], 1 - kind[moved]] = np.inf, 0.0, np.inf, 0.0
        fresh = rows[lower | moved]
        self._table[fresh, self._WEIGHT] = np.minimum(self._table[fresh, self._WEIGHT], 1.0)
        with np.errstate(invalid="ignore"):
            known = np.where(near >= 2, np.maximum(margin_ns - floor, 0.0), np.inf)
            return np.where(gross & ~moved, margin_ns - other, known)

    def floor(self, rows: NDArray[np.intp], middle: Bools) -> Float64s:
        """Return each pair's floor of the kind that its margin has, in ns; inf where none is known."""
        return np.asarray(self._floors[rows, middle.astype(np.intp), self._FLOOR])

    def learn_residuals(self, rows: NDArray[np.intp], residual_ns: Float64s, good: Bools) -> None:
        """Take what the window's offsets are off by against the solution, of the pairs that are `good`."""
        mine = rows[good]
        weight = np.minimum(self._table[mine, self._WEIGHT] + 1, self.LASTING)
        off = residual_ns[good] - self._table[mine, self._BIAS]
        self._table[mine, self._WEIGHT] = weight
        self._table[mine, self._BIAS] += off / weight
        squares = self._table[mine, self._SQUARES]
        self._table[mine, self._SQUARES] = squares + (off * off * (1 - 1 / weight) - squares) / weight

    def bias(self, rows: NDArray[np.intp]) -> tuple[Float64s, Float64s, Float64s]:
        """Return what each pair is lastingly off by (ns), the standard error of that, and the number of
        windows behind it."""
        weight = self._table[rows, self._WEIGHT]
        spread = np.sqrt(self._table[rows, self._SQUARES] / np.maximum(weight - 1, 1))
        return (
            np.asarray(self._table[rows, self._BIAS]),
            np.where(weight > 1, np.maximum(spread, MIN_SIGMA_NS), np.inf),
            np.asarray(weight),
        )
