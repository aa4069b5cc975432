"""Solves one window's mesh: clocks relative to each other, from pair lines, by robust weighted least squares.

The input is the window's `Pairs`, guesses of every clock's reading at a common instant, prior rates, and the
memory of the pairs. The result is a `Mesh`: each node's offset and rate relative to its connected part with
standard errors, the possible effect of asymmetric paths and queues, and the contradicting pairs and nodes.
Fabric time is added in `solver.py`.

Signs. theta_i is added to clock i for a common time: theta_i = T - c_i. A pair's offset is c_peer - c_prober
= theta_prober - theta_peer. Rates are logarithmic, 1e9 * ln(dT / dc_i), because the pair's 1 + drift =
dc_peer / dc_prober is their quotient: for clocks 100 ppm apart a plain difference would be 10 ppb off.

Whole nanoseconds. The offset of a clock that counts from power-on is some 1.8e18 ns, which a double holds to
256 ns. So a guess of each theta is subtracted from pairs' offsets in integers, and the solve finds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from native.core import solve_mesh
from streams.clock.hull_edges import Rates, rates_by_edges
from streams.clock.pairs import NO_SLOPE_PPB, Bools, Float64s, Int64s, PairMemory, Pairs

MIN_DRIFT_SIGMA_PPB: Final = 0.1
NO_SLOPE_SIGMA_PPB: Final = 50_000.0
FIRST_NOISE_NS: Final = 10.0
EXACT_NODES: Final = 128
"""In parts with more nodes than this, error limits come only from each node's own pairs (see `_Gains`)."""
SUSPECT_WINDOWS: Final = 5
SUSPECT_SIGMAS: Final = 5.0
SUSPECT_SPREADS: Final = 6.0
MIN_SUSPECT_NS: Final = 20.0
MIN_FALSETICKER_PAIRS: Final = 5
FALSETICKER_SPREADS: Final = 10.0
MIN_FALSETICKER_NS: Final = 50.0
RATE_AGREES_SIGMAS: Final = 5.0
ITERATIONS: Final = 3
FLOOR_TILT_SHARE: Final = 0.25
"""A floor is learned from a margin if drift errors change it by less than this share of the round trip."""
CROSSING_SIGMAS: Final = 6.0
"""Number of errors of the drift by which a pair's floors may cross before it counts as stepped."""
CLEAN_SIGMAS: Final = 3.0
"""A margin counts as free of queueing if it is above the floor by at most this many standard errors."""


def log_ppb(rate_ppb: Any) -> Any:
    """Convert a rate, ppb, to a logarithmic rate, ppb: 1e9 * ln(1 + 1e-9 * rate_ppb)."""
    return np.log1p(np.maximum(np.asarray(rate_ppb) * 1e-9, -1 + 1e-9)) * 1e9


def plain_ppb(rate_log_ppb: Any) -> Any:
    """Convert a logarithmic rate in ppb to a plain rate in ppb: the inverse of `log_ppb`."""
    return np.expm1(np.asarray(rate_log_ppb) * 1e-9) * 1e9


@dataclass(slots=True)
class Priors:
    """Each node's rate against fabric time before the window, with its standard error, inf if unknown."""

    rate_log_ppb: Float64s
    rate_sigma_ppb: Float64s


@dataclass(slots=True)
class Suspect:
    """A pair whose path is probably asymmetric, with the estimated asymmetry in ns."""

    prober: str
    peer: str
    node: int
    asymmetry_ns: float
    sigma_ns: float
    weight: float


@dataclass(slots=True)
class MeshMemory:
    """The state that `solve_relative` keeps from window to window, such as the pairs' floors."""

    pairs: PairMemory = field(default_factory=PairMemory)
    noise_ns: float = FIRST_NOISE_NS
    """Typical error of a pair's offset without queueing, from residuals until noise is measured."""
    role_ns: float = 0.0
    """Common error of all pairs' offsets, because probers and peers take timestamps at different places.
    Loops in opposite directions show it."""
    role_weight: float = 0.0


@dataclass(slots=True)
class Mesh:
    """The solution of one window, one array element per clock. Rates are relative to the component's mean."""

    component: NDArray[np.int32]
    theta_ns: Int64s
    """Whole ns to add to the clock to get its component's common time, whose origin is arbitrary."""
    theta_rest_ns: Float64s
    """The small rest of theta, which is added to `theta_ns`."""
    sigma_ns: Float64s
    """Standard error due to timestamps and queues alone, which is independent from window to window."""
    rate_log_ppb: Float64s
    rate_sigma_ppb: Float64s
    reading_ns: Int64s
    """Each clock's reading at the component's common instant."""
    asymmetry_ns: Float64s
    """Standard error of theta due to lasting asymmetry of paths."""
    limit_ns: Float64s
    """Limit of theta's error for any paths and queues: half `share` of round trips, and queueing."""
    queue_ns: Float64s
    """Possible effect of this window's queues in one direction."""
    pairs: Int64s
    residual_ns: Float64s
    noise_ns: Float64s
    """Timestamp noise of each node's pairs: delayed timestamps may shift all of them by this much."""
    stepped: Bools
    """True if most of the node's pairs show a step within the window."""
    contradiction_ns: Float64s
    """For falsetickers, the median residual of their pairs; else 0."""
    suspects: list[Suspect]


def solve_relative(
    nodes: int,
    pairs: Pairs,
    memory: MeshMemory,
    window: int,
    share: float,
    readings: Int64s,
    has_reading: Bools,
    priors: Priors,
) -> Mesh:
    """Solve offsets and rates of `nodes` clocks from `pairs`.

    `readings`: guesses of each prober's clock at one common instant, accurate to some ms. All offsets are
    extrapolated to that instant with their drift. The guesses have different errors. The solution gives
    better guesses, because reading plus theta is the same for all clocks. So the solve is repeated twice.
    """
    a, b = pairs.prober, pairs.peer
    modal = pairs.noise_ns > 0
    rows = memory.pairs.rows(pairs.names, window)
    noise = memory.pairs.noise(rows, pairs.noise_ns, memory.noise_ns)
    rates, rate_sigma, measured_rate, measured_sigma = _rates(
        nodes,
        pairs,
        np.where(modal, _above(pairs.margin_ns, memory.pairs.floor(rows, modal)), 0.0),
        priors,
        noise,
    )
    rotated = pairs.rotated(plain_ppb(rates[a] - rates[b]), np.hypot(rate_sigma[a], rate_sigma[b]))
    good_line = rotated.rotated & (rotated.drift_sigma_ppb * np.abs(rotated.lever_s) < 3 * noise)
    good_line |= rotated.modal | rotated.slope_is_best
    margin_sigma = np.where(modal, 2 * pairs.sigma_ns, noise)
    # A floor is learned from margins that the drift's error changes by a small share of the round trip.
    tilt_ns = rotated.drift_sigma_ppb * rotated.margin_lever_s
    sure = good_line & (rotated.crossing_ns == 0)
    sure &= tilt_ns < np.maximum(3 * noise, FLOOR_TILT_SHARE * pairs.rtt_min_ns)
    excess = memory.pairs.excess(rows, rotated.margin_ns, margin_sigma, sure, modal)
    has_excess = np.isfinite(excess)
    queued = np.where(has_excess, excess, 0.0)
    # A margin within its own error of the floor is free of queueing.
    queued = np.where(queued > CLEAN_SIGMAS * margin_sigma, queued, 0.0)
    # a line without a slope or hull: its clock stepped in the window, so its claimed error counts
    broken = (pairs.drift_sigma_ppb >= NO_SLOPE_PPB) & (pairs.forward.counts == 0) & ~modal
    broken &= (pairs.margin_ns != pairs.rtt_min_ns) | (pairs.sigma_ns > 0.6 * pairs.rtt_min_ns)
    # floors that cross by more than the drift's error: the clock changed in the window
    broken |= rotated.crossing_ns > CROSSING_SIGMAS * (tilt_ns + noise)
    own = np.where(has_excess & ~broken & ~rotated.modal, np.minimum(pairs.sigma_ns, noise), pairs.sigma_ns)
    bias, bias_sigma, bias_windows = memory.pairs.bias(rows)
    spread, lasting = _asymmetry(nodes, pairs, bias, bias_sigma, bias_windows)
    suspect = (
        (bias_windows >= SUSPECT_WINDOWS)
        & (np.abs(bias) > SUSPECT_SIGMAS * bias_sigma)
        & (np.abs(bias) > max(SUSPECT_SPREADS * spread, MIN_SUSPECT_NS))
    )
    independent = own**2 + (queued / 2) ** 2 + (rotated.drift_sigma_ppb * rotated.lever_s) ** 2
    steady = spread**2 + np.where(suspect, bias**2, 0.0)
    counts = np.bincount(a, minlength=nodes) + np.bincount(b, minlength=nodes)
    sloped = np.where(rotated.drift_sigma_ppb < NO_SLOPE_PPB, rotated.drift_sigma_ppb, NO_SLOPE_SIGMA_PPB)
    reading = readings.copy()
    theta = guess_theta(pairs, readings, has_reading)
    for iteration in range(ITERATIONS):
        away_s = (reading[a] - pairs.at_ns) * 1e-9
        beyond = (pairs.offset_ns - (theta[a] - theta[b])).astype(np.float64)
        value = beyond + rotated.rest_ns + rotated.drift_ppb * away_s - memory.role_ns
        sigma_with_spread = np.sqrt(independent + spread**2 + (sloped * away_s) ** 2)
        sigma = np.sqrt(sigma_with_spread**2 + steady - spread**2)
        solution = solve_mesh(nodes, b, a, value, sigma, want_sigma=iteration == ITERATIONS - 1)
        new_theta = theta + np.round(solution.x).astype(np.int64)
        reading = _common_readings(solution.component, new_theta, reading, has_reading)
        has_reading = has_reading | (counts > 0)
        theta = new_theta if iteration < ITERATIONS - 1 else theta
        if iteration == 0:
            _learn_role(memory, pairs, solution.residual, sigma)
            unsure = ~has_excess & ~modal & ~broken
            independent = _lower_by_residuals(pairs, solution.residual, independent, unsure, counts)
    falsetickers = _falsetickers(nodes, pairs, solution.residual, sigma_with_spread)
    if falsetickers.any():
        keep = ~((falsetickers > 0)[a] | (falsetickers > 0)[b])
        sigma = np.where(keep, sigma, 1e9)
        solution = solve_mesh(nodes, b, a, value, sigma)
        new_theta = theta + np.round(solution.x).astype(np.int64)
        reading = _common_readings(solution.component, new_theta, reading, has_reading)
    rest = solution.x
    residual = value - (rest[a] - rest[b]) if len(pairs) else np.empty(0)
    vote = solution.weight / sigma**2 if len(pairs) else np.empty(0)
    error = np.where(np.isfinite(solution.sigma), solution.sigma, 0.0)
    clean = has_excess & (queued == 0) & good_line & (vote > 0)
    memory.pairs.learn_residuals(rows, residual, clean)
    if clean.any():
        typical = 1.4826 * float(np.median(np.abs(residual[clean])))
        memory.noise_ns += (max(typical, 0.5) - memory.noise_ns) / 8
    steady_share = _mean_vote(nodes, pairs, vote, vote * min(lasting, 1e9) ** 2)
    noise_share = _mean_vote(nodes, pairs, vote, vote * (sigma**2 - steady))
    gains = _Gains(nodes, pairs, vote, solution.component)
    floor = np.minimum(memory.pairs.floor(rows, modal), pairs.rtt_min_ns)
    unbiased_variance = vote * (sigma**2 - np.where(suspect, bias**2, 0.0)) if len(pairs) else np.empty(0)
    return Mesh(
        component=solution.component,
        theta_ns=theta,
        theta_rest_ns=rest,
        sigma_ns=error * np.sqrt(np.clip(noise_share, 1e-6, 1.0)),
        rate_log_ppb=measured_rate,
        rate_sigma_ppb=measured_sigma,
        reading_ns=reading,
        asymmetry_ns=np.where(np.isfinite(lasting), error * np.sqrt(steady_share), np.inf),
        limit_ns=gains.shift(share * floor / 2 + queued / 2),
        queue_ns=gains.shift(np.where(has_excess, queued / 2, 0.0)),
        pairs=counts.astype(np.int64),
        residual_ns=np.sqrt(_by_node(nodes, pairs, residual**2) / np.maximum(counts, 1)),
        noise_ns=_mean_vote(nodes, pairs, vote, noise),
        stepped=2 * _by_node(nodes, pairs, broken.astype(np.float64)) > np.maximum(counts, 1),
        contradiction_ns=falsetickers,
        suspects=_suspects(pairs, suspect, bias, bias_sigma, unbiased_variance),
    )


def guess_theta(pairs: Pairs, readings: Int64s, has_reading: Bools) -> Int64s:
    """Return a guess of each node's theta, whole ns: minus the node's reading at the common instant.

    Only small differences then remain to be solved. The guess of a node without a reading follows from a
    pair with a node that has a guess.
    """
    is_guessed = has_reading.copy()
    theta = np.where(is_guessed, -readings, 0)
    a, b = pairs.prober, pairs.peer
    while len(pairs):
        out, back = is_guessed[a] & ~is_guessed[b], is_guessed[b] & ~is_guessed[a]
        theta[b[out]] = theta[a[out]] - pairs.offset_ns[out]
        theta[a[back]] = theta[b[back]] + pairs.offset_ns[back]
        is_guessed[b[out]] = is_guessed[a[back]] = True
        unknown = np.flatnonzero(~(is_guessed[a] & is_guessed[b]))
        if not len(unknown):
            break
        if not (out.any() or back.any()):
            is_guessed[a[unknown[0]]] = True
    return theta


def _above(margin_ns: Float64s, floor_ns: Float64s) -> Float64s:
    return np.where(np.isfinite(floor_ns), np.maximum(margin_ns - floor_ns, 0.0), 0.0)


def _rates(
    nodes: int, pairs: Pairs, excess_ns: Float64s, priors: Priors, noise_ns: Float64s
) -> tuple[Float64s, Float64s, Float64s, Float64s]:
    """Return each node's rate fused with its prior, its error, and rate and error from this window alone.

    The window's own rates are relative to the component's mean. `excess_ns`: each pair's margin above its
    floor; a delay of n ns that comes and goes within a second tilts the pair's line by n ppb. If lines and
    priors leave the rates uncertain, the rates are those on which the edges of the pairs' hulls agree.
    """
    sloped = pairs.drift_sigma_ppb < NO_SLOPE_PPB
    drift = np.where(sloped, log_ppb(pairs.drift_ppb), 0.0)
    sigma = np.hypot(np.maximum(pairs.drift_sigma_ppb, MIN_DRIFT_SIGMA_PPB), excess_ns)
    sigma = np.where(sloped, sigma, NO_SLOPE_SIGMA_PPB)
    solution = solve_mesh(nodes, pairs.peer, pairs.prober, drift, sigma)
    own = Rates(solution.x, solution.sigma)
    fused = _fuse(own, solution.component, priors)
    by_edges = rates_by_edges(nodes, pairs, noise_ns, Rates(drift, sigma), own, fused)
    if by_edges is not own:
        own, fused = by_edges, _fuse(by_edges, solution.component, priors)
    return fused.log_ppb, fused.sigma_ppb, own.log_ppb, own.sigma_ppb


def _fuse(own: Rates, component: NDArray[np.int32], priors: Priors) -> Rates:
    """Combine this window's rates with the rates known before the window, weighted by their variances.

    The prior of a node is ignored if this window shows that the rate has changed.
    """
    rate, error = own.log_ppb, own.sigma_ppb
    fused, fused_error = rate.copy(), error.copy()
    for part in np.unique(component):
        members = np.flatnonzero(component == part)
        before = members[np.isfinite(priors.rate_sigma_ppb[members])]
        if len(members) < 2 or not len(before):
            continue
        ahead = priors.rate_log_ppb[before] - rate[before]
        variance = priors.rate_sigma_ppb[before] ** 2 + error[before] ** 2
        gauge = weighted_median(ahead, 1 / variance)
        fused[members] = rate[members] + gauge
        agrees = np.abs(ahead - gauge) <= RATE_AGREES_SIGMAS * np.sqrt(variance)
        agreeing, sigma_before = before[agrees], priors.rate_sigma_ppb[before[agrees]]
        gain = error[agreeing] ** 2 / (error[agreeing] ** 2 + sigma_before**2)
        fused[agreeing] += gain * (priors.rate_log_ppb[agreeing] - fused[agreeing])
        fused_error[agreeing] = np.sqrt(gain) * sigma_before
    return Rates(fused, fused_error)


def weighted_median(values: Float64s, weight: Float64s) -> float:
    """Return the value with half of the weight at smaller and half at larger values."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    return float(values[order[int(np.searchsorted(total, total[-1] / 2))]])


def _learn_role(memory: MeshMemory, pairs: Pairs, residual: Float64s, sigma: Float64s) -> None:
    """Adjust `memory.role_ns`, the offset error common to all pairs, by their weighted median residual.

    An offset is the peer's clock minus the prober's, so an error common to all offsets depends on these
    roles. Clocks can absorb a part of the error, and the residuals show only the rest. Repetition converges
    to the whole.
    """
    if len(pairs) < 8:
        return
    common = weighted_median(residual, 1 / sigma)
    memory.role_weight = min(memory.role_weight + 1, 16)
    memory.role_ns += common / memory.role_weight


def _lower_by_residuals(
    pairs: Pairs, residual: Float64s, variance: Float64s, unsure: Bools, counts: Int64s
) -> Float64s:
    """Return the pairs' variances, ns^2, lowered for `unsure` pairs with surprisingly small residuals.

    If a pair's floor is unknown, its variance assumes the largest possible effect of queues. If all loops
    close much better than this assumption allows, there were no such queues.
    """
    free = 1 - float((counts > 0).sum()) / max(len(pairs), 1)
    if unsure.sum() < 8 or free < 0.25:
        return variance
    residual_sigma = 1.5 * 1.4826 * float(np.median(np.abs(residual[unsure]))) / np.sqrt(free)
    return np.where(unsure, np.minimum(variance, max(residual_sigma, 1.0) ** 2), variance)


def _asymmetry(
    nodes: int, pairs: Pairs, bias: Float64s, bias_sigma: Float64s, windows: Float64s
) -> tuple[float, float]:
    """Return the standard deviation of the pairs' asymmetry, as loops show it, and its upper limit, both ns.

    The offsets of n nodes can absorb n - 1 combinations of the asymmetries of E pairs. The lasting residuals
    show the rest: E[sum of bias^2] = (E - n + 1) * spread^2, plus the biases' own errors. Both directions
    between two clocks are one pair here, because they show the same path's asymmetry. The limit is the 99.5 %
    quantile by chi-square (Wilson and Hilferty 1931); inf without loops.

    A few pairs may contradict by any amount; they are clipped at 6 times the usual value. With few loops, a
    robust solution assigns each loop's whole contradiction to one of its pairs, and the others show none. The
    usual value is then the median of the L largest, for L loops.
    """
    has_history = windows >= 2
    if not has_history.any():
        return 0.0, float("inf")
    low, high = (
        np.minimum(pairs.prober, pairs.peer)[has_history],
        np.maximum(pairs.prober, pairs.peer)[has_history],
    )
    edge, which = np.unique(low.astype(np.int64) * nodes + high, return_inverse=True)
    signed = np.where(
        pairs.prober[has_history] < pairs.peer[has_history], bias[has_history], -bias[has_history]
    )
    count = np.bincount(which)
    mean = np.bincount(which, signed) / count
    square = np.maximum(mean**2, np.bincount(which, signed**2) / count)
    noise = np.bincount(which, np.minimum(bias_sigma[has_history], 1e6) ** 2) / count**2
    ends = len(np.unique(np.concatenate([low, high])))
    free = len(edge) - ends + 1
    if free < 1:
        return 0.0, float("inf")
    typical_square = float(np.quantile(square, 1 - free / (2 * len(edge)), method="higher"))
    clipped = np.minimum(square, 36 * max(typical_square, 1e-6))
    spread2 = max(float(np.sum(clipped - noise)) / free, 0.0)
    limit2 = max(float(np.sum(clipped)) / free, 0.25)
    quantile = free * (1 - 2 / (9 * free) - 2.576 * np.sqrt(2 / (9 * free))) ** 3
    return float(np.sqrt(spread2)), float(np.sqrt(limit2 * free / max(quantile, 1e-3)))


def _falsetickers(nodes: int, pairs: Pairs, residual: Float64s, sigma: Float64s) -> Float64s:
    """Return the median residual of the pairs of each falseticker, ns; 0 for other nodes.

    A wrong clock still agrees with all its pairs, and an asymmetric path affects only one pair. Only
    timestamp errors that differ by peer affect most pairs of one node, but only one pair of each peer.
    """
    residual_by_node = np.zeros(nodes)
    if len(pairs) < MIN_FALSETICKER_PAIRS:
        return residual_by_node
    off = np.abs(residual)
    order = np.argsort(np.concatenate([pairs.prober, pairs.peer]), kind="stable")
    counts = np.bincount(pairs.prober, minlength=nodes) + np.bincount(pairs.peer, minlength=nodes)
    scaled = np.tile(off / sigma, 2)[order]
    plain = np.tile(off, 2)[order]
    start = np.concatenate([[0], np.cumsum(counts)])
    typical_ratio = max(float(np.median(off / sigma)) * 1.4826, 1.0)
    for node in np.flatnonzero(counts >= MIN_FALSETICKER_PAIRS):
        part = slice(start[node], start[node + 1])
        if (
            np.median(scaled[part]) > FALSETICKER_SPREADS * typical_ratio
            and np.median(plain[part]) > MIN_FALSETICKER_NS
        ):
            residual_by_node[node] = np.median(plain[part])
    return residual_by_node


def _suspects(
    pairs: Pairs, suspect: Bools, bias: Float64s, bias_sigma: Float64s, weight: Float64s
) -> list[Suspect]:
    worst = np.flatnonzero(suspect)
    worst = worst[np.argsort(-np.abs(bias[worst]), kind="stable")]
    return [
        Suspect(
            *pairs.names[k],
            int(pairs.prober[k]),
            float(bias[k]),
            float(bias_sigma[k]),
            float(np.clip(weight[k], 0.0, 1.0)),
        )
        for k in worst.tolist()
    ]


def _common_readings(
    component: NDArray[np.int32], theta: Int64s, reading: Int64s, has_reading: Bools
) -> Int64s:
    """Return each node's reading at its component's common instant, ns.

    The reading is the common time of that instant, the median over the nodes' guesses, minus the node's
    theta.
    """
    better = reading.copy()
    for part in np.unique(component):
        members = np.flatnonzero(component == part)
        members_with_reading = members[has_reading[members]]
        if len(members) < 2 or not len(members_with_reading):
            continue
        common = reading[members_with_reading] + theta[members_with_reading]
        middle = int(common[0]) + int(np.median(common - common[0]))
        better[members] = middle - theta[members]
    return better


def _by_node(nodes: int, pairs: Pairs, values: Float64s) -> Float64s:
    if not len(pairs):
        return np.zeros(nodes)
    total = np.bincount(pairs.prober, values, nodes) + np.bincount(pairs.peer, values, nodes)
    return np.asarray(total, np.float64)


def _mean_vote(nodes: int, pairs: Pairs, vote: Float64s, values: Float64s) -> Float64s:
    """Return each node's mean of `values` over its pairs, weighted by `vote`."""
    total_vote = _by_node(nodes, pairs, vote)
    return _by_node(nodes, pairs, vote * values) / np.where(total_vote > 0, total_vote, 1.0)


class _Gains:
    """Computes the effect of the pairs' errors on each node's theta.

    theta = G v with G the gains of weighted least squares, so |error| <= sum |G| limit. With L the weighted
    Laplacian and A the pairs' incidence, G = pinv(L) A' W. As A' W has no mean, inv(L + 1/n) gives the same.
    In large parts, the sum is replaced by the weighted mean of the limits of the node's own pairs, which is
    close to it in a well-connected mesh.
    """

    NEIGHBOURS: Final = 1.5

    def __init__(self, nodes: int, pairs: Pairs, vote: Float64s, component: NDArray[np.int32]) -> None:
        self._nodes, self._pairs, self._vote = nodes, pairs, vote
        self._own = _by_node(nodes, pairs, vote)
        self._exact: list[tuple[NDArray[np.intp], NDArray[np.intp], Float64s]] = []
        for part in np.unique(component[pairs.prober]) if len(pairs) else ():
            members = np.flatnonzero(component == part)
            if len(members) > EXACT_NODES:
                continue
            index = np.full(nodes, -1)
            index[members] = np.arange(len(members))
            part_pairs = np.flatnonzero(component[pairs.prober] == part)
            rows = np.arange(len(part_pairs))
            incidence = np.zeros((len(part_pairs), len(members)))
            incidence[rows, index[pairs.prober[part_pairs]]] = 1.0
            incidence[rows, index[pairs.peer[part_pairs]]] = -1.0
            largest = float(vote[part_pairs].max())
            weighted = incidence * np.maximum(vote[part_pairs] / max(largest, 1e-300), 1e-9)[:, None]
            gains = np.linalg.solve(incidence.T @ weighted + 1.0 / len(members), weighted.T)
            total = float(self._own[members].sum())
            if total > 0:
                gains -= (self._own[members] / total) @ gains
            self._exact.append((members, part_pairs, np.abs(gains)))

    def shift(self, limit_ns: Float64s) -> Float64s:
        """Return the largest shift of each node's theta, ns, by errors of at most `limit_ns` per pair."""
        if not len(self._pairs):
            return np.zeros(self._nodes)
        own = np.where(self._own > 0, self._own, 1.0)
        result = _by_node(self._nodes, self._pairs, self._vote * limit_ns) / own * self.NEIGHBOURS
        for members, part_pairs, gains in self._exact:
            result[members] = gains @ limit_ns[part_pairs]
        return result
