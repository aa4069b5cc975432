"""Runs estimators over a scenario's windows and scores the errors of their clocks.

An estimator is called with each `WindowInput` and returns a `Line` per clock. `Score` has the errors of all
lines against the truth and the figures from them. `Fabrictime` is ours, by the workers' functions.

Fabric time is a gauge: a common shift of all clocks is no error. So the error between two clocks is the
difference of their corrected readings. The error of one clock is against its domain's own time: the median,
weighted by 1 / bound^2, over the domain's SYNCED clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench.clock.samples import EPOCH_NS, WindowInput, simulate
from fabrictime.bench.clock.scenarios import Scenario
from native.core import NicWindow
from schemas.ids import host_of
from schemas.records import ClockFits, ClockOffsets
from streams.clock.solver import HOLDOVER, SYNCED, UNSYNCED, ShardClocks, SolveParameters
from streams.delays.counters import JumpLimit, NicCounters, NicState
from streams.delays.records import clock_fits, fit_window
from streams.delays.source_partition import ClosedWindow, NicSamples
from streams.delays.windows import Cut
from streams.runtime.tables import Member

Float64s = NDArray[np.float64]

AT: Final = (0.0, 0.5, 1.0)
"""Positions in a window where lines are compared with the truth: start, middle, end."""
MIDDLE: Final = 1
WARM_UP: Final = 3
"""Number of first windows that the accuracy figures leave out."""
SHARD: Final = "bench"
STATES: Final[dict[str, int]] = {UNSYNCED: 0, HOLDOVER: 1, SYNCED: 2}
ABSENT: Final = -1


@dataclass(frozen=True, slots=True)
class Line:
    """An estimate of a clock: its reading c corresponds to the common time c + offset_ns + offset_fraction_ns
    + drift_ppb * 1e-9 * (c - at_ns). `bound_ns` is NaN if there is no bound."""

    at_ns: int
    offset_ns: int | float
    drift_ppb: float
    bound_ns: float = float("nan")
    state: str = SYNCED
    domain: str = ""
    offset_fraction_ns: float = 0.0


class Estimator(Protocol):
    """An estimator of clocks, which takes a scenario's windows in order."""

    name: str

    def window(self, window_input: WindowInput) -> Mapping[str, Line]:
        """Return each clock's line for this window, by the name of the clock."""
        ...


class Fabrictime:
    """Our estimator: a `NicWindow` per prober, then `clock_fits`, then `ShardClocks`; a NIC is a clock."""

    name = "fabrictime"

    def __init__(self, parameters: SolveParameters | None = None, limit: JumpLimit | None = None) -> None:
        self.clocks = ShardClocks(SHARD, parameters or SolveParameters())
        self.limit = limit or JumpLimit(100_000.0, 1_000.0)
        self.records: list[ClockOffsets] = []
        self.fits: list[ClockFits] = []
        self.fit_s = self.solve_s = 0.0
        self._states: dict[str, NicState] = {}

    def window(self, window_input: WindowInput) -> Mapping[str, Line]:
        """Fit and solve a window; return the lines of the records as they would be published."""
        closed = ClosedWindow(
            "bench/0", Cut(window_input.number, window_input.number, window_input.number + 1, 1)
        )
        for name, columns in window_input.columns.items():
            nic = NicSamples(NicCounters(name, self._states.get(name)), NicWindow(name))
            nic.samples.add(columns)
            for flush in window_input.flushes[name]:
                nic.counters.take(flush.run, flush.batch, flush.clock_ns, flush.system_ns, 0, flush.append_ns)
            nic.counters.lost = int(columns.lost.sum())
            if nic.counters.state is not None:
                self._states[name] = nic.counters.state
            closed.nics[name] = nic
        members = {name: Member(name, host_of(name), SHARD, name) for name in closed.nics}
        clock_of = {name: name for name in window_input.truth.names}
        solved_ns = EPOCH_NS + int(window_input.start_ns) + window_input.window_ns
        begin = time.perf_counter()
        fitted = fit_window(closed)
        fitted_at = time.perf_counter()
        self.fits = clock_fits(fitted, members, [SHARD], window_input.window_ns, self.limit)
        self.records = self.clocks.solve(
            window_input.number, window_input.window_ns, self.fits, clock_of, solved_ns
        )
        self.fit_s += fitted_at - begin
        self.solve_s += time.perf_counter() - fitted_at
        return {
            c["clock"]: Line(
                c["at_ns"],
                c["offset_ns"],
                c["drift_ppb"],
                c["bound_ns"],
                c["state"],
                record["domain"],
                c["offset_fraction_ns"],
            )
            for record in self.records
            for c in record["clocks"]
        }


@dataclass(slots=True)
class Score:
    """Errors of an estimator over W windows and n clocks.

    `error_ns` and `live_ns` are NaN if there is no line. `live_ns` extrapolates the line of the previous
    window, like a reader of the newest record.
    """

    scenario: Scenario
    names: list[str]
    error_ns: Float64s
    """Corrected reading minus truth at each window's start, middle and end, [W, 3, n]; it includes the
    gauge."""
    live_ns: Float64s
    bound_ns: Float64s
    """Bound at the window's middle, [W, n]."""
    state: NDArray[np.int8]
    """State of each clock, [W, n], an index of `STATES`; -1 if it has no line."""
    domain: NDArray[np.int16]
    """Number of each clock's domain, [W, n]; only NICs of one domain can be compared."""
    alive: NDArray[np.bool_]
    """Whether each NIC was present and could be measured in the scenario, [W, n]."""
    seconds: float
    samples: int

    def pair_errors_ns(self, windows: slice, *, live: bool = False) -> Float64s:
        """Return |error between two clocks| for all pairs of a domain, at all instants of the windows.

        The error is the difference of their corrected readings' errors. Every clock that could be measured
        counts, in any state; the error of one without a line is infinite.
        """
        return self.errors_among(self.alive, windows, live=live)

    def errors_among(self, is_selected: NDArray[np.bool_], windows: slice, *, live: bool = False) -> Float64s:
        """Return the pair errors, ns, of only the clocks that are `is_selected`, [W, n], in each window."""
        errors = (self.live_ns if live else self.error_ns)[windows]
        parts = []
        for off, domain, members in zip(errors, self.domain[windows], is_selected[windows], strict=True):
            which = np.flatnonzero(members)
            a, b = (which[side] for side in np.triu_indices(len(which), 1))
            missing = np.isnan(off[0, a]) | np.isnan(off[0, b])
            comparable = missing | (domain[a] == domain[b])
            apart = np.abs(off[:, a[comparable]] - off[:, b[comparable]])
            parts.append(np.where(np.isnan(apart), np.inf, apart).reshape(-1))
        return np.concatenate(parts) if parts else np.empty(0)

    def p99_ns(self, *, live: bool = False, until: int | None = None) -> float:
        """Return the 99th percentile of pair errors over all clock pairs and windows after the third."""
        return _percentile(self.pair_errors_ns(slice(WARM_UP, until), live=live), 99)

    def clock_errors_ns(self) -> Float64s:
        """Return each clock's error at the window's middle against its domain's own time, [W, n]."""
        middle = self.error_ns[:, MIDDLE]
        errors_ns = np.full(middle.shape, np.nan)
        for w in range(len(middle)):
            for domain in np.unique(self.domain[w][self.state[w] >= 0]):
                in_domain = (self.domain[w] == domain) & (self.state[w] >= 0)
                synced = in_domain & (self.state[w] == STATES[SYNCED])
                if synced.any():
                    bound = self.bound_ns[w, synced]
                    weight = np.where(np.isfinite(bound) & (bound > 0), bound, 1.0) ** -2.0
                    errors_ns[w, in_domain] = middle[w, in_domain] - _weighted_median(
                        middle[w, synced], weight
                    )
        return errors_ns

    def covered(self) -> tuple[int, int]:
        """Return how many bounds of SYNCED and HOLDOVER clocks held, and how many there were."""
        errors = self.clock_errors_ns()
        stated = (self.state >= STATES[HOLDOVER]) & ~np.isnan(errors)
        covered = np.abs(errors[stated]) <= self.bound_ns[stated]
        return int(covered.sum()), int(stated.sum())

    def pairs_covered(self) -> tuple[int, int]:
        """Return how many pairs differed by at most the sum of both bounds, and how many pairs there were."""
        covered = every = 0
        for w in range(len(self.state)):
            members = np.flatnonzero(self.state[w] >= STATES[HOLDOVER])
            a, b = (members[side] for side in np.triu_indices(len(members), 1))
            same = self.domain[w, a] == self.domain[w, b]
            a, b = a[same], b[same]
            off = np.abs(self.error_ns[w, MIDDLE, a] - self.error_ns[w, MIDDLE, b])
            covered += int((off <= self.bound_ns[w, a] + self.bound_ns[w, b]).sum())
            every += len(a)
        return covered, every

    def bound_over_p99(self) -> float:
        """Return the median sum of two bounds, over pairs and windows after the third, over `p99_ns`."""
        bounds = [
            (row[:, None] + row[None])[np.triu_indices(len(row), 1)]
            for row in (self.bound_ns[w, self.alive[w]] for w in range(WARM_UP, len(self.bound_ns)))
        ]
        return float(np.median(np.concatenate(bounds))) / self.p99_ns() if bounds else float("nan")

    def p99_of_window_ns(self, window: int) -> float:
        """Return the 99th percentile of the errors of all pairs of clocks in one window."""
        return _percentile(self.pair_errors_ns(slice(window, window + 1)), 99)

    def windows_to_sync(self, limit_ns: float) -> int | None:
        """Return the number, from 1, of the first window that is good, or None if none is.

        In a good window all clocks are SYNCED and `p99_of_window_ns` is at most `limit_ns`.
        """
        for w in range(len(self.state)):
            synced = (self.state[w, self.alive[w]] == STATES[SYNCED]).all()
            if synced and self.p99_of_window_ns(w) <= limit_ns:
                return w + 1
        return None

    def windows_to_recover(self, nic: int, first: int, limit_ns: float) -> int | None:
        """Return how many windows pass until `nic` recovers, with the window `first` as 1; None if never.

        It has recovered once it is SYNCED and, at every instant, within `limit_ns` of the median of the other
        SYNCED clocks of its domain.
        """
        for w in range(first, len(self.state)):
            others = (self.state[w] == STATES[SYNCED]) & (self.domain[w] == self.domain[w, nic])
            if not others[nic]:
                continue
            others[nic] = False
            fleet = np.median(self.error_ns[w][:, others], axis=1)
            if np.abs(self.error_ns[w][:, nic] - fleet).max() <= limit_ns:
                return w - first + 1
        return None

    def against_fleet_ns(self, nics: list[int], *, live: bool = False) -> Float64s:
        """Return the errors of `nics` against the median of all domains' SYNCED clocks, [W, 3, len(nics)]."""
        errors = self.live_ns if live else self.error_ns
        fleet = np.full(errors.shape[:2], np.nan)
        for w, state in enumerate(self.state):
            is_synced = (state == STATES[SYNCED]) & ~np.isnan(errors[w, 0])
            if is_synced.any():
                fleet[w] = np.median(errors[w][:, is_synced], axis=1)
        return np.asarray(errors[:, :, nics] - fleet[..., None], np.float64)

    def line(self) -> str:
        """Return the score as one line of text."""
        errors = self.pair_errors_ns(slice(WARM_UP, None))
        if not len(errors):
            return f"nothing after window {WARM_UP}"
        synced = self.errors_among(self.state == STATES[SYNCED], slice(WARM_UP, None))
        live = self.p99_ns(live=True)
        covered, stated = self.covered()
        bound = f", bound/p99 {self.bound_over_p99():.2f}, held {covered}/{stated}" if stated else ""
        return (
            f"p50 {_percentile(errors, 50):.2f} p99 {_percentile(errors, 99):.2f} max {errors.max():.2f} ns "
            f"(SYNCED alone p99 {_percentile(synced, 99):.2f}, live p99 {live:.2f}){bound}, "
            f"{self.seconds:.1f} s for {self.samples / 1e6:.1f} M samples"
        )


def score(
    scenario: Scenario,
    estimators: Sequence[Estimator],
    windows: int | None = None,
    seed: int = 1,
    rival_windows: int | None = None,
    watch: Callable[[WindowInput, Estimator, Mapping[str, Line]], None] | None = None,
) -> dict[str, Score]:
    """Run estimators over the same samples of a scenario; return their scores by name.

    All estimators but the first stop after `rival_windows`. `watch` is called with the lines of each
    estimator in each window.
    """
    runs = {one.name: EstimatorRun(one) for one in estimators}
    for window_input in simulate(scenario, windows, seed):
        for number, estimator in enumerate(estimators):
            if number and rival_windows is not None and window_input.index >= rival_windows:
                continue
            lines = runs[estimator.name].take(window_input)
            if watch is not None:
                watch(window_input, estimator, lines)
    return {name: run.score(scenario) for name, run in runs.items()}


class EstimatorRun:
    """Runs an estimator window by window, and collects its errors, sample count and running time, s."""

    def __init__(self, estimator: Estimator) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.seconds = 0.0
        self.samples = 0
        self._estimator = estimator
        self._names: list[str] = []
        self._before: Mapping[str, Line] = {}

    def take(self, window_input: WindowInput) -> Mapping[str, Line]:
        """Let the estimator process the next window; record the errors of its lines and return the lines."""
        begin = time.perf_counter()
        lines = self._estimator.window(window_input)
        self.seconds += time.perf_counter() - begin
        self._add(window_input, lines)
        return lines

    def _add(self, window_input: WindowInput, lines: Mapping[str, Line]) -> None:
        self._names = window_input.truth.names
        truth, n = window_input.truth, len(window_input.truth.names)
        now, live = np.full((len(AT), n), np.nan), np.full((len(AT), n), np.nan)
        bound = np.full(n, np.nan)
        state, domain = np.full(n, ABSENT, np.int8), np.full(n, ABSENT, np.int16)
        domains: dict[str, int] = {}
        at = window_input.start_ns + np.array(AT) * window_input.window_ns
        at[-1] -= 1
        for i, name in enumerate(truth.names):
            ahead = truth.ahead_ns(i, at)
            line, before = lines.get(name), self._before.get(name)
            if before is not None:
                live[:, i] = _error(before, at, ahead, truth.epoch_ns[i])
            if line is not None:
                now[:, i] = _error(line, at, ahead, truth.epoch_ns[i])
                bound[i] = line.bound_ns
                state[i] = STATES[line.state]
                domain[i] = domains.setdefault(line.domain, len(domains))
        self._before = lines
        self.samples += window_input.samples
        self.rows.append((now, live, bound, state, domain, window_input.alive & window_input.probed))

    def score(self, scenario: Scenario) -> Score:
        """Return the score of the windows so far."""
        now, live, bound, state, domain, alive = (np.array(c) for c in zip(*self.rows, strict=True))
        return Score(
            scenario, self._names, now, live, bound, state, domain, alive, self.seconds, self.samples
        )


def _error(line: Line, t_ns: Float64s, ahead_ns: Float64s, epoch_ns: int) -> Float64s:
    """Return the corrected reading minus the true time, ns, both relative to the epoch to fit a double."""
    since = (epoch_ns - line.at_ns) + (t_ns + ahead_ns)
    offset_ns = (line.offset_ns + (epoch_ns - EPOCH_NS)) + line.offset_fraction_ns
    return ahead_ns + offset_ns + line.drift_ppb * 1e-9 * since


def _weighted_median(values: Float64s, weight: Float64s) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order[int(np.searchsorted(total, total[-1] / 2))]])


def _percentile(values: Float64s, share: float) -> float:
    """Return a percentile without interpolation, since interpolation would turn infinities into NaN."""
    if not len(values):
        return float("nan")
    return float(np.percentile(values, share, method="inverted_cdf"))
