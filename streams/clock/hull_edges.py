"""Finds the rates of one window's clocks from the hulls of all pairs at once.

Under heavy load, a window of one pair has only one or two readings per direction that met no queue. These are
too few for a mode, and the line of the widest gap is off by up to some ppm. But if two readings of a
direction met no queue, an edge of the lower hull joins them. Its slope is the pair's drift; the error is the
timestamps' noise over the time between them. Edges between queued readings have any slope, over thousands of
ppb. The rates of n clocks are common to many pairs, so edges that agree show them: near the true rates there
are a hundred times as many edges per ppb as elsewhere.

A robust least-squares solve of the mesh (`solve_mesh`) uses the lines through modes, and the edges that agree
with the rates known so far within their uncertainty. The solve is repeated with half the uncertainty each
time, down to the noise. At first many wrong edges take part and cancel out; in the end only agreeing edges
are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core import solve_mesh
from native.core.columns import MeshSolution
from streams.clock.pairs import NO_SLOPE_PPB, Bools, Float64s, HullVertices, Int64s, Pairs

DOUBTFUL: Final = 5.0
DOUBTFUL_SHARE: Final = 0.02
MIN_DOUBTFUL: Final = 8
"""Edges are used only if enough of them, at least `MIN_DOUBTFUL` and `DOUBTFUL_SHARE` of all, are `DOUBTFUL`
times as accurate as the rates known before. That is so at the start and when clocks join. Later the clocks'
tracks are as good, and their errors are better known."""
MAX_PASSES: Final = 16
MAX_ROUNDS: Final = 8
NEAR_SIGMAS: Final = 2.0
BLUR: Final = 0.3
"""Share of a pass's uncertainty that is added to each edge's error. It distinguishes edges near the middle of
the uncertainty from those at its limits."""
INNER_SIGMAS: Final = 2.0
OUTER_SIGMAS: Final = 8.0
MIN_SHARPNESS: Final = 0.5
"""Edges are better than lines if at least this share of those within `OUTER_SIGMAS` is within `INNER_SIGMAS`.
Random slopes would give a quarter."""
WORSE: Final = 1.5
"""Factor on the standard errors of rates, because some edges near the rates join queued readings."""
AGREES: Final = 0.5
"""An edge agrees if the robust solve leaves it more than this share of its weight."""
MIN_EDGES: Final = 3.0
"""Agreeing edges that a clock needs, counted as equally accurate ones, because two may agree by chance."""
FINEST: Final = 0.1
"""The last pass has the uncertainty of the most accurate edges; this quantile of their errors defines it."""
MIN_BETWEEN_S: Final = 1e-3
MIN_EDGE_SIGMA_PPB: Final = 0.5
"""Lower limit of an edge's standard error: the wander of a good crystal within a window."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of nodes or drifts of pairs with standard errors, in logarithmic ppb as `Mesh.rate_log_ppb`."""

    log_ppb: Float64s
    sigma_ppb: Float64s


@dataclass(frozen=True, slots=True)
class HullEdges:
    """Edges of the lower hulls of all pairs' delays over time, as arrays with one element per edge."""

    pair: Int64s
    """Index of the edge's pair."""
    drift_log_ppb: Float64s
    """Slope of the edge: the pair's drift if the readings at both ends met no queue."""
    sigma_ppb: Float64s
    """Standard error of the slope due to timestamp noise."""

    @classmethod
    def of(cls, pairs: Pairs, noise_ns: Float64s) -> HullEdges:
        """Return the hull edges of both directions of `pairs`; `noise_ns`: each pair's noise of a reading."""
        forward, reverse = _edges(pairs.forward), _edges(pairs.reverse)
        pair = np.concatenate([forward[0], reverse[0]])
        slope_ppb = np.concatenate([forward[1], -reverse[1]])
        between_s = np.concatenate([forward[2], reverse[2]])
        drift_ppb = pairs.drift_ppb[pair] + slope_ppb
        return cls(
            pair,
            np.log1p(np.maximum(drift_ppb * 1e-9, -0.5)) * 1e9,
            np.clip(np.sqrt(2) * noise_ns[pair] / between_s, MIN_EDGE_SIGMA_PPB, NO_SLOPE_PPB),
        )


def _edges(hull: HullVertices) -> tuple[Int64s, Float64s, Float64s]:
    """Return pair, slope (ns per s) and length (s) of each edge of one direction's hulls."""
    pair = np.repeat(np.arange(len(hull.counts)), hull.counts)
    between_s, rise_ns = np.diff(hull.after_s), np.diff(hull.delay_ns)
    at = np.flatnonzero((pair[1:] == pair[:-1]) & (between_s >= MIN_BETWEEN_S))
    return pair[at], rise_ns[at] / between_s[at], between_s[at]


def rates_by_edges(
    nodes: int, pairs: Pairs, noise_ns: Float64s, drift: Rates, own: Rates, start: Rates
) -> Rates:
    """Return the rates on which the hulls' edges agree; `own` where no edges agree.

    `noise_ns`: [pairs] noise of a reading. `drift`: [pairs] drifts of the pairs' own lines. `own`: [nodes]
    rates from these lines. `start`: [nodes] best known rates, whose errors limit the search.
    """
    a, b = pairs.prober, pairs.peer
    edges = HullEdges.of(pairs, noise_ns)
    of_a, of_b = a[edges.pair], b[edges.pair]
    doubt_ppb = np.minimum(np.hypot(start.sigma_ppb[of_a], start.sigma_ppb[of_b]), NO_SLOPE_PPB)
    doubtful = np.count_nonzero(doubt_ppb > DOUBTFUL * edges.sigma_ppb)
    if doubtful < max(MIN_DOUBTFUL, DOUBTFUL_SHARE * len(edges.pair)):
        return own
    has_line = (pairs.forward.counts == 0) | (pairs.reverse.counts == 0)
    finest_ppb = float(np.quantile(edges.sigma_ppb, FINEST))
    rate = start.log_ppb
    for left in reversed(range(_passes(doubt_ppb, finest_ppb))):
        off_ppb = np.abs(edges.drift_log_ppb - (rate[of_a] - rate[of_b]))
        near = off_ppb <= NEAR_SIGMAS * np.hypot(doubt_ppb, edges.sigma_ppb)
        sigma_ppb = np.hypot(edges.sigma_ppb, BLUR * doubt_ppb) if left else edges.sigma_ppb
        used = HullEdges(edges.pair[near], edges.drift_log_ppb[near], sigma_ppb[near])
        solution = _solve(nodes, pairs, used, drift, has_line, want_sigma=not left)
        rate, doubt_ppb = solution.x, doubt_ppb / 2
    part = solution.component
    off_ppb = edges.drift_log_ppb - (rate[of_a] - rate[of_b])
    sharpness = _sharpness(nodes, edges, off_ppb, part[of_a])[part]
    few = _few(nodes, pairs, used, solution)
    sigma_ppb = WORSE * solution.sigma / np.maximum(sharpness, MIN_SHARPNESS) ** 2
    sigma_ppb = np.where(few, np.hypot(sigma_ppb, start.sigma_ppb), sigma_ppb)
    has_majority = 2 * np.bincount(part, few)[part] < np.bincount(part)[part]
    better = has_majority & (sharpness >= MIN_SHARPNESS)
    return Rates(np.where(better, rate, own.log_ppb), np.where(better, sigma_ppb, own.sigma_ppb))


def _passes(doubt_ppb: Float64s, finest_ppb: float) -> int:
    """Return the number of halvings after which the largest uncertainty, ppb, is at most `finest_ppb`."""
    return min(max(math.ceil(math.log2(float(doubt_ppb.max()) / finest_ppb)), 1), MAX_PASSES)


def _solve(
    nodes: int, pairs: Pairs, edges: HullEdges, drift: Rates, lines: Bools, want_sigma: bool
) -> MeshSolution:
    """Solve the nodes' rates from edges and the chosen `lines`; add lines between unconnected parts."""
    while True:
        solution = solve_mesh(
            nodes,
            np.concatenate([pairs.peer[lines], pairs.peer[edges.pair]]),
            np.concatenate([pairs.prober[lines], pairs.prober[edges.pair]]),
            np.concatenate([drift.log_ppb[lines], edges.drift_log_ppb]),
            np.concatenate([drift.sigma_ppb[lines], edges.sigma_ppb]),
            want_sigma=want_sigma,
        )
        apart = solution.component[pairs.prober] != solution.component[pairs.peer]
        if not apart.any():
            return solution
        lines = lines | apart


def _few(nodes: int, pairs: Pairs, edges: HullEdges, solution: MeshSolution) -> Bools:
    """Return a mask of the nodes with fewer than `MIN_EDGES` agreeing edges to nodes that have enough edges.

    Edges are counted as equally accurate edges with the same information, because an accurate edge outweighs
    others. Nodes connected by lines through modes form a group, and only edges to other groups count.
    """
    modal = pairs.noise_ns > 0
    a, b = pairs.prober[modal], pairs.peer[modal]
    group = solve_mesh(
        nodes, b, a, np.zeros(len(a)), np.ones(len(a)), robust=False, want_sigma=False
    ).component
    ends = group[pairs.prober[edges.pair]], group[pairs.peer[edges.pair]]
    agrees = (solution.weight[len(solution.weight) - len(edges.pair) :] > AGREES) & (ends[0] != ends[1])
    information = np.where(agrees, edges.sigma_ppb**-2.0, 0.0)
    few = np.zeros(nodes, np.bool_)
    for _ in range(MAX_ROUNDS):
        firm = [np.where(few[other], 0.0, information) for other in reversed(ends)]
        sums, squares = (
            np.bincount(ends[0], firm[0] ** power, nodes) + np.bincount(ends[1], firm[1] ** power, nodes)
            for power in (1, 2)
        )
        before, few = few, sums**2 < MIN_EDGES * np.maximum(squares, 1e-300)
        if (few == before).all():
            break
    return few[group]


def _sharpness(nodes: int, edges: HullEdges, off_ppb: Float64s, part: NDArray[np.int32]) -> Float64s:
    """Return for each part the share of the edges near its rates that agree within the timestamps' noise.

    The share is about 1 if edges join readings without a queue. If timestamps are late by chance, or queues
    are short, edges scatter by more than the noise. The nearest edges then agree only because they were
    chosen.
    """
    off = np.abs(off_ppb) / edges.sigma_ppb
    inner = np.bincount(part[off <= INNER_SIGMAS], minlength=nodes)
    outer = np.bincount(part[off <= OUTER_SIGMAS], minlength=nodes)
    return np.where(outer >= MIN_DOUBTFUL, inner / np.maximum(outer, 1), 0.0)
