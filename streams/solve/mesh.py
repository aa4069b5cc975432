"""One window's pair fits to relative clocks: offsets and rates of the mesh's nodes at one common instant.

In: pairs (prober, peer, offset, drift, round trip) and a guess of every prober's reading at the common
instant. Out: `Mesh`, each node's value against its connected part's mean, with standard error and asymmetry
limit. No memory and no fabric time in here: see clocks.py.

Signs. theta_i is what added to clock i gives a common time: theta_i = T - c_i. A pair's offset is
c_peer - c_prober = theta_prober - theta_peer, and its drift the same difference of rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from native.core import solve_mesh

__all__ = ["Mesh", "Pairs", "RttFloor", "solve_relative"]

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

ASYMMETRY_RMS: Final = 0.1
"""Typical one-sided share of an unloaded round trip's half: how pairs are weighted, not how errors are
bound."""
SIGMA_LEAST_NS: Final = 1.0
DRIFT_LIMIT_PPB: Final = 1e6
"""Beyond 1,000 ppm it is no oscillator: the clock stepped within the window."""
NO_SLOPE_PPB: Final = 1e6
EXACT_NODES: Final = 128
"""Parts up to this size get their asymmetry limit from the solution's own gains, larger ones from
neighbours."""


@dataclass(slots=True)
class Pairs:
    """Usable pairs of one window between different nodes (clocks), one element a directed NIC pair."""

    prober: NDArray[np.int32]
    peer: NDArray[np.int32]
    at_ns: Int64s
    offset_ns: Float64s
    drift_ppb: Float64s
    sigma_ns: Float64s
    drift_sigma_ppb: Float64s
    rtt_min_ns: Float64s

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], node_of: Mapping[str, int]) -> Pairs:
        """Take `ClockFits.pairs` elements; those of unknown or equal nodes, and those that no clock could
        have made, are left out."""
        rows = [
            (node_of[r["prober"]], node_of[r["peer"]], r["at_ns"], r["offset_ns"], r["drift_ppb"],
             r["sigma_ns"], r["drift_sigma_ppb"], r["rtt_min_ns"])
            for r in records
            if r["accepted"] > 0
            and r["prober"] in node_of
            and r["peer"] in node_of
            and node_of[r["prober"]] != node_of[r["peer"]]
            and (abs(r["drift_ppb"]) < DRIFT_LIMIT_PPB or r["drift_sigma_ppb"] >= NO_SLOPE_PPB)
        ]  # fmt: skip
        columns = list(zip(*rows, strict=True)) or [()] * 8
        return cls(
            np.array(columns[0], np.int32), np.array(columns[1], np.int32), np.array(columns[2], np.int64),
            *(np.array(column, np.float64) for column in columns[3:]),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.prober)


class RttFloor:
    """The least round trip that each pair of clocks showed lately: what is above it is queueing, which may
    stand in one direction alone. A pair without history takes the window's median."""

    RISE: Final = 1.002

    def __init__(self) -> None:
        self._floor: dict[tuple[str, str], float] = {}

    def of(self, names: Sequence[str], pairs: Pairs) -> Float64s:
        """Return each pair's floor in ns, this window taken in."""
        if not len(pairs):
            return np.empty(0)
        usual = float(np.median(pairs.rtt_min_ns))
        floor = np.empty(len(pairs))
        for i, (a, b, rtt) in enumerate(
            zip(pairs.prober.tolist(), pairs.peer.tolist(), pairs.rtt_min_ns.tolist(), strict=True)
        ):
            key = (names[a], names[b]) if a < b else (names[b], names[a])
            known = self._floor.get(key)
            least = min(rtt, usual) if known is None else min(rtt, known * self.RISE)
            self._floor[key] = floor[i] = least
        return floor

    def forget(self, keep: set[str]) -> None:
        """Drop pairs of clocks that are not in `keep`."""
        self._floor = {key: value for key, value in self._floor.items() if key[0] in keep and key[1] in keep}


@dataclass(slots=True)
class Mesh:
    """Nodes of one window, n elements each; values are against the mean of the node's component."""

    component: NDArray[np.int32]
    theta_ns: Float64s
    sigma_ns: Float64s
    rate_ppb: Float64s
    rate_sigma_ppb: Float64s
    reading_ns: Int64s
    """Each clock's reading at the component's common instant."""
    asymmetry_ns: Float64s
    """What path asymmetry can have added to |theta|."""
    pairs: Int64s
    residual_ns: Float64s


def solve_relative(
    nodes: int,
    pairs: Pairs,
    floor_ns: Float64s,
    share: float,
    readings: Int64s,
    has_reading: NDArray[np.bool_],
) -> Mesh:
    """Solve offsets and rates of `nodes` clocks from `pairs`.

    `readings` guesses each prober's clock at one common instant, good to some ms. All offsets are carried to
    that instant with their own drift; as the guesses differ from the true instant by clock, the solution
    itself then tells better ones (all readings plus theta are one number) and the solve is done again, twice.
    """
    excess = np.maximum(pairs.rtt_min_ns - floor_ns, 0.0)
    asymmetry = share * floor_ns / 2 + excess / 2
    theta = np.zeros(nodes)
    reading = readings.copy()
    slope_known = pairs.drift_sigma_ppb < NO_SLOPE_PPB
    drift = np.where(slope_known, pairs.drift_ppb, 0.0)
    drift_sigma = np.where(slope_known, pairs.drift_sigma_ppb, 50_000.0)
    rates = solve_mesh(nodes, pairs.peer, pairs.prober, drift, np.maximum(drift_sigma, 0.1))
    solution = rates
    for _ in range(3):
        away_s = (reading[pairs.prober] - pairs.at_ns) * 1e-9
        value = pairs.offset_ns + drift * away_s
        sigma = np.sqrt(
            np.maximum(pairs.sigma_ns, SIGMA_LEAST_NS) ** 2
            + (ASYMMETRY_RMS * floor_ns / 2) ** 2
            + (excess / 2) ** 2
            + (drift_sigma * away_s) ** 2
        )
        solution = solve_mesh(nodes, pairs.peer, pairs.prober, value, sigma)
        theta = solution.x
        reading = _common_readings(solution.component, theta, reading, has_reading)
        has_reading = np.isfinite(solution.sigma) | has_reading
    weight = 1.0 / sigma**2 if len(pairs) else np.empty(0)
    counts = np.bincount(pairs.prober, minlength=nodes) + np.bincount(pairs.peer, minlength=nodes)
    squares = _by_node(nodes, pairs, solution.residual**2)
    return Mesh(
        component=solution.component,
        theta_ns=theta,
        sigma_ns=solution.sigma,
        rate_ppb=rates.x,
        rate_sigma_ppb=rates.sigma,
        reading_ns=reading,
        asymmetry_ns=_asymmetry_of_nodes(
            nodes, pairs, weight * solution.weight, asymmetry, solution.component
        ),
        pairs=counts.astype(np.int64),
        residual_ns=np.sqrt(squares / np.maximum(counts, 1)),
    )


def _common_readings(
    component: NDArray[np.int32], theta: Float64s, reading: Int64s, has_reading: NDArray[np.bool_]
) -> Int64s:
    """Return every node's reading at its component's instant: the median over the guesses, less theta."""
    better = reading.copy()
    whole = np.round(theta).astype(np.int64)
    for part in np.unique(component):
        members = np.flatnonzero(component == part)
        known = members[has_reading[members]]
        if len(members) < 2 or not len(known):
            continue
        base = int(reading[known[0]])
        ahead = (reading[known] - base) + whole[known]
        better[members] = base + int(np.median(ahead)) - whole[members]
    return better


def _by_node(nodes: int, pairs: Pairs, values: Float64s) -> Float64s:
    if not len(pairs):
        return np.zeros(nodes)
    total = np.bincount(pairs.prober, values, nodes) + np.bincount(pairs.peer, values, nodes)
    return np.asarray(total, np.float64)


def _asymmetry_of_nodes(
    nodes: int, pairs: Pairs, weight: Float64s, limit: Float64s, component: NDArray[np.int32]
) -> Float64s:
    """Return for each node the most that errors of at most `limit` a pair can shift its theta.

    theta = G v with G the gains of weighted least squares, so |error| <= sum |G| limit. With L the weighted
    Laplacian and A the pairs' incidence, G = pinv(L) A' W, and as A' W has no mean, inv(L + 1/n) serves as
    well. Large parts take the weighted mean of the node's own pairs, which that sum comes close to in a well
    connected mesh.
    """
    result = np.zeros(nodes)
    if not len(pairs):
        return result
    own = _by_node(nodes, pairs, weight)
    result = _by_node(nodes, pairs, weight * limit) / np.where(own > 0, own, 1.0) * 1.5
    for part in np.unique(component[pairs.prober]):
        members = np.flatnonzero(component == part)
        if len(members) > EXACT_NODES:
            continue
        index = np.full(nodes, -1)
        index[members] = np.arange(len(members))
        mine = np.flatnonzero(component[pairs.prober] == part)
        incidence = np.zeros((len(mine), len(members)))
        rows = np.arange(len(mine))
        incidence[rows, index[pairs.prober[mine]]] = 1.0
        incidence[rows, index[pairs.peer[mine]]] = -1.0
        share = weight[mine] / max(float(weight[mine].max()), 1e-300)
        weighted = incidence * np.maximum(share, 1e-9)[:, None]
        whole = incidence.T @ weighted + 1.0 / len(members)
        gains = np.linalg.solve(whole, weighted.T)
        gains -= (own[members] / own[members].sum()) @ gains
        result[members] = np.abs(gains) @ limit[mine]
    return result
