"""Baseline estimators for the same samples: the minimum filter, and Huygens as published.

Both take `WindowInput`s and return `Line`s without bounds. They use one window at a time and combine the
pairs by unweighted least squares over the mesh. They expect all NICs to be present and recognise no steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench.clock.samples import WindowInput
from fabrictime.bench.clock.score import Line
from native.core import ProbeColumns

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

SLOTS: Final = 8
"""Number of stages of NTP's clock filter; also used for past windows and for slots of a window."""


@dataclass(frozen=True, slots=True)
class PairLine:
    """Peer minus prober of a pair is offset_ns + drift_ppb * 1e-9 * (c - at_ns) when the prober reads c."""

    prober: int
    peer: int
    at_ns: int
    offset_ns: float
    drift_ppb: float


@dataclass(slots=True)
class PairSamples:
    """A directed pair's samples in one window: times relative to `at_ns`, clock differences to `base_ns`."""

    peer: int
    at_ns: int
    base_ns: int
    sent_s: Float64s
    back_s: Float64s
    """Stamps t1 and t4. With theta(t) the clock difference, t2 - t1 is the delay plus theta(t1), and t3 - t4
    is theta(t4) minus the delay; the peer's clock measures both delays. So each cloud of points is drawn over
    a stamp of the prober."""
    forward: Float64s
    reverse: Float64s
    coded: NDArray[np.bool_]
    """Whether a sample is half of a coded pair: samples 2k and 2k + 1 are a pair if both are set."""


class MinimumFilter:
    """The clock filter of NTP (RFC 5905, section 10) and of PTP clients: a pair's offset is that of the
    sample with the shortest round trip.

    Unlike such clients it also uses the mesh, and rates from the solved offsets of the last eight windows.
    """

    name = "minimum filter"

    def __init__(self) -> None:
        self._past: list[tuple[list[int], Int64s, Float64s]] = []
        """The last windows: clocks' numbers, their readings at the common instant, and offsets."""

    def window(self, window_input: WindowInput) -> Mapping[str, Line]:
        """Return the line of each clock for this window."""
        rates = self._rates()
        pairs = [
            _min_round_trip(pair, prober, rates)
            for prober, columns in _by_prober(window_input)
            for pair in pairs_of(columns, window_input)
        ]
        clocks, readings, offsets, drifts = mesh_lines(window_input, pairs)
        if self._past and self._past[-1][0] != clocks:
            self._past.clear()
        self._past = [*self._past, (clocks, readings, offsets)][-SLOTS:]
        rates = self._rates()
        if rates is not None:
            drifts = np.array([rates[clock] for clock in clocks])
        return _named(window_input, clocks, readings, offsets, drifts)

    def _rates(self) -> dict[int, float] | None:
        """Return each clock's rate of change, ppb, by a line through past offsets; None below two windows."""
        if len(self._past) < 2:
            return None
        clocks, last, _ = self._past[-1]
        x = np.array([readings - last for _, readings, _ in self._past]) * 1e-9
        y = np.array([offsets for _, _, offsets in self._past])
        y = y - y[-1]
        x = x - x.mean(axis=0)
        return dict(zip(clocks, ((x * y).sum(axis=0) / (x * x).sum(axis=0)).tolist(), strict=True))


class Huygens:
    """Huygens: coded-probe filter, LinearSVC, loop correction. Raises ImportError without scikit-learn.

    Follows Geng et al., "Exploiting a natural network effect for scalable, fine-grained clock
    synchronization" (NSDI 2018). Coded probes whose spacing changed by more than a guard are dropped,
    separately per direction (3.1). A linear support vector machine finds the line between the cloud t2 - t1
    and the cloud t3 - t4 (3.2). A projection removes the surpluses of loops (3.3, `mesh_lines`). With
    `guard_ns` None there is no filter. That is the stronger rival here: under load so few coded pairs keep
    their spacing that the filter drops most of the clean halves too.

    Tuned on `load40_symmetric` by the error of single pairs (loss: squared hinge, hinge; guard: 10 to 500 ns,
    none; C: 1 to 1e6; tol: 1e-4, 1e-8): C = 10 without a filter, C = 50 with one. A guard of 25 ns is 3 sigma
    of the timestamp noise in a difference of spacings; wider guards are better there, none is best.
    """

    def __init__(self, guard_ns: float | None, penalty: float | None = None) -> None:
        from sklearn.svm import LinearSVC

        self.name = "huygens, no filter" if guard_ns is None else "huygens"
        self.guard_ns = guard_ns
        self.penalty = penalty or (10.0 if guard_ns is None else 50.0)
        self._machine: Any = LinearSVC
        self.fit_s = 0.0
        """Seconds spent in the filter and the support vector machine, without preparing the samples."""
        self.fitted = self.samples = self.not_converged = 0

    def window(self, window_input: WindowInput) -> Mapping[str, Line]:
        """Return the line of each clock for this window."""
        pairs = []
        for prober, columns in _by_prober(window_input):
            for pair in pairs_of(columns, window_input):
                begin = time.perf_counter()
                line = self.fit(pair, prober)
                self.fit_s += time.perf_counter() - begin
                self.fitted += 1
                self.samples += len(pair.sent_s)
                if line is not None:
                    pairs.append(line)
        return _named(window_input, *mesh_lines(window_input, pairs))

    def fit(self, pair: PairSamples, prober: int) -> PairLine | None:
        """Return the pair's line, or None if the filter leaves no sample in one direction.

        The machine gets x in units of half the window and y in units of half the gap between the clouds, both
        relative to a rough line. So its margin is nearly along y, and the intercept is almost 0.
        """
        pure_forward, pure_reverse = self._pure(pair, pair.forward), self._pure(pair, pair.reverse)
        if not pure_forward.any() or not pure_reverse.any():
            return None
        rough = _rough_line(pair)
        half = max(1e-3, float(np.abs(pair.sent_s).max()))
        upper = pair.forward[pure_forward] - rough(pair.sent_s[pure_forward])
        lower = -pair.reverse[pure_reverse] - rough(pair.back_s[pure_reverse])
        gap = max(1.0, (float(upper.min()) - float(lower.max())) / 2)
        points = np.empty((len(upper) + len(lower), 2))
        points[: len(upper), 0] = pair.sent_s[pure_forward] / half
        points[len(upper) :, 0] = pair.back_s[pure_reverse] / half
        points[: len(upper), 1] = upper / gap
        points[len(upper) :, 1] = lower / gap
        side = np.repeat([1, -1], [len(upper), len(lower)])
        machine = self._machine(C=self.penalty, dual=False, tol=1e-8, max_iter=1000, random_state=0)
        machine.fit(points, side)
        self.not_converged += machine.n_iter_ >= machine.max_iter
        (along, across), intercept = machine.coef_[0], float(machine.intercept_[0])
        if not across > 0:
            return None
        drift = float(rough.drift - along / across * gap / half)
        return PairLine(
            prober,
            pair.peer,
            pair.at_ns,
            pair.base_ns + float(rough.offset - intercept / across * gap),
            drift,
        )

    def _pure(self, pair: PairSamples, delay: Float64s) -> NDArray[np.bool_]:
        """Return whether each sample belongs to a coded pair that kept its spacing."""
        if self.guard_ns is None:
            return np.ones(len(delay), np.bool_)
        even = len(delay) // 2 * 2
        apart = np.abs(delay[1:even:2] - delay[:even:2]) <= self.guard_ns
        pure = np.zeros(len(delay), np.bool_)
        pure[:even] = np.repeat(apart & pair.coded[:even:2] & pair.coded[1:even:2], 2)
        return pure


def mesh_lines(
    window_input: WindowInput, pairs: list[PairLine]
) -> tuple[list[int], Int64s, Float64s, Float64s]:
    """Return (clocks, readings, offsets, drifts) at one common instant, by unweighted least squares.

    The projection of Huygens (delta - A' inv(A A') A delta, with A the loops) equals a least-squares fit over
    the clocks: both find the nearest differences that sum to 0 around every loop. Offsets are added to a
    clock. A pair's offset holds at a reading of its prober. The readings at the common instant are first
    estimated from the flushes. As better offsets improve them, there are three iterations.
    """
    clocks = sorted({end for pair in pairs for end in (pair.prober, pair.peer)})
    place = {clock: i for i, clock in enumerate(clocks)}
    n = len(clocks)
    prober = np.array([place[pair.prober] for pair in pairs])
    peer = np.array([place[pair.peer] for pair in pairs])
    offset = np.array([pair.offset_ns for pair in pairs])
    drift = np.array([pair.drift_ppb for pair in pairs])
    normal = np.zeros((n, n))
    np.add.at(normal, (prober, prober), 1.0)
    np.add.at(normal, (peer, peer), 1.0)
    np.add.at(normal, (prober, peer), -1.0)
    np.add.at(normal, (peer, prober), -1.0)
    normal += 1.0 / n

    def solved(value: Float64s) -> Float64s:
        """Return the clock offsets theta, with mean 0, that best fit value = theta[prober] - theta[peer]."""
        right = np.bincount(prober, value, n) - np.bincount(peer, value, n)
        return np.asarray(np.linalg.solve(normal, right), np.float64)

    readings = np.zeros(n, np.int64)
    for i, clock in enumerate(clocks):
        flush = window_input.flushes[window_input.truth.names[clock]][-1]
        log_now = window_input.number * window_input.window_ns + window_input.window_ns // 2
        readings[i] = flush.clock_ns + log_now - flush.append_ns
    rates = solved(drift)
    at = np.array([pair.at_ns for pair in pairs], np.int64)
    theta = np.zeros(n)
    for _ in range(3):
        theta = solved(offset + drift * 1e-9 * (readings[prober] - at))
        base = int(readings[0])
        instant = float(np.median((readings - base) + theta))
        readings = base + np.rint(instant - theta).astype(np.int64)
    return clocks, readings, theta, rates


def _named(
    window_input: WindowInput, clocks: list[int], readings: Int64s, offsets: Float64s, drifts: Float64s
) -> dict[str, Line]:
    return {
        window_input.truth.names[clock]: Line(int(readings[i]), float(offsets[i]), float(drifts[i]))
        for i, clock in enumerate(clocks)
    }


def _by_prober(window_input: WindowInput) -> Iterator[tuple[int, ProbeColumns]]:
    for name, columns in window_input.columns.items():
        yield window_input.truth.index[name], columns


def pairs_of(columns: ProbeColumns, window_input: WindowInput) -> Iterator[PairSamples]:
    """Yield the samples of each of a prober's pairs; all paths to a peer are combined."""
    by_peer: dict[str, list[int]] = {}
    for group, peer in enumerate(columns.peers):
        if columns.start[group + 1] > columns.start[group]:
            by_peer.setdefault(peer, []).append(group)
    for peer, groups in by_peer.items():
        rows = np.concatenate([np.arange(columns.start[g], columns.start[g + 1]) for g in groups])
        coded = np.concatenate(
            [np.full(columns.start[g + 1] - columns.start[g], columns.spacing_ns[g] > 0) for g in groups]
        )
        sent, forward, reverse = columns.sent[rows], columns.forward[rows], columns.reverse[rows]
        at = int(sent.min()) + (int(sent.max()) - int(sent.min())) // 2
        base = (int(forward[0]) - int(reverse[0])) // 2
        back = sent + forward + columns.turnaround[rows] + reverse
        yield PairSamples(
            window_input.truth.index[peer],
            at,
            base,
            (sent - at) * 1e-9,
            (back - at) * 1e-9,
            (forward - base).astype(np.float64),
            (reverse + base).astype(np.float64),
            coded,
        )


@dataclass(frozen=True, slots=True)
class _Rough:
    offset: float
    drift: float
    """Drift, ns per second."""

    def __call__(self, x: Float64s) -> Float64s:
        return self.offset + self.drift * x


def _rough_line(pair: PairSamples) -> _Rough:
    """Return a line through the samples with the shortest round trip in each of eight slots of the window."""
    trip = pair.forward + pair.reverse
    slot = np.minimum(
        ((pair.sent_s / max(1e-9, np.abs(pair.sent_s).max()) + 1) * (SLOTS / 2)).astype(int), SLOTS - 1
    )
    members = [np.flatnonzero(slot == number) for number in range(SLOTS)]
    minimum = [int(rows[np.argmin(trip[rows])]) for rows in members if len(rows)]
    x = (pair.sent_s[minimum] + pair.back_s[minimum]) / 2
    y = (pair.forward[minimum] - pair.reverse[minimum]) / 2
    if len(minimum) < 2:
        return _Rough(float(y[0]), 0.0)
    drift, offset = np.polyfit(x, y, 1)
    return _Rough(float(offset), float(drift))


def _min_round_trip(pair: PairSamples, prober: int, rates: dict[int, float] | None) -> PairLine:
    """Return the offset of the sample with the shortest round trip, extrapolated to the middle of the window.

    The extrapolation uses the clocks' rates or, in the first windows, the rate of the rough line.
    """
    best = int(np.argmin(pair.forward + pair.reverse))
    offset = (pair.forward[best] - pair.reverse[best]) / 2
    if rates is not None and prober in rates and pair.peer in rates:
        drift = rates[prober] - rates[pair.peer]
    else:
        drift = _rough_line(pair).drift
    at = pair.at_ns + round(float(pair.sent_s[best] + pair.back_s[best]) / 2 * 1e9)
    return PairLine(prober, pair.peer, at, pair.base_ns + float(offset), float(drift))
