"""The shapes in which native/core takes and gives figures: plain data over numpy columns, no behaviour.

`ProbeColumns` is a decoded `ProbeBatch`; `PairFits` and `PathDelayColumns` are what one prober's window comes
down to; `ClockLine` is a clock as fabric time sees it; `MeshSolution` is a solved mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ClockLine",
    "Float64s",
    "Int32s",
    "Int64s",
    "MeshSolution",
    "PairFits",
    "PathDelayColumns",
    "ProbeColumns",
]

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]


def _int32s() -> Int32s:
    return np.empty(0, np.int32)


def _int64s() -> Int64s:
    return np.empty(0, np.int64)


def _one_start() -> Int64s:
    return np.zeros(1, np.int64)


@dataclass(slots=True)
class ProbeColumns:
    """One `ProbeBatch`: G groups (one a peer, path and spacing, in message order) and N samples.

    Samples of group g stand at [start[g], start[g + 1]) of the four sample columns, all in ns.
    """

    nic: str
    """The prober, host/device."""
    run: int = 0
    """Random id of the prober process."""
    batch: int = 0
    """Number of the batch within the run."""
    clock_ns: int = 0
    """The stamping clock at the flush."""
    system_ns: int = 0
    """The host's system clock read with it, ns since the Unix epoch."""
    peers: list[str] = field(default_factory=list)
    """G names."""
    path: Int32s = field(default_factory=_int32s)
    """[G] entropy value of the probe, 0..65535."""
    spacing_ns: Int32s = field(default_factory=_int32s)
    """[G] above 0: samples 2k and 2k+1 of the group are a coded pair."""
    lost: Int32s = field(default_factory=_int32s)
    """[G] requests without a reply."""
    no_t3: Int32s = field(default_factory=_int32s)
    """[G] replies without their follow-up stamp."""
    start: Int64s = field(default_factory=_one_start)
    """[G + 1] where each group's samples begin; the last element is N."""
    sent: Int64s = field(default_factory=_int64s)
    """[N] t1 on the prober's clock, absolute."""
    forward: Int64s = field(default_factory=_int64s)
    """[N] t2 - t1."""
    turnaround: Int64s = field(default_factory=_int64s)
    """[N] t3 - t2 on the peer's clock."""
    reverse: Int64s = field(default_factory=_int64s)
    """[N] t4 - t3."""


@dataclass(frozen=True, slots=True)
class ClockLine:
    """A clock: fabric time at its reading c is c + offset_ns + drift_ppb * 1e-9 * (c - at_ns)."""

    at_ns: int
    offset_ns: float
    drift_ppb: float
    bound_ns: float
    """The true error at at_ns is below it 99.9% of the time."""


@dataclass(slots=True)
class PairFits:
    """Clock lines of one prober's pairs in one window, a row a peer with at least one accepted sample.

    The peer's clock minus the prober's, at the prober's reading c, is
    offset_ns + drift_ppb * 1e-9 * (c - at_ns). Fields as in `PairFit` of ClockFits.avsc.
    """

    peers: list[str]
    at_ns: Int64s
    offset_ns: Float64s
    drift_ppb: Float64s
    sigma_ns: Float64s
    drift_sigma_ppb: Float64s
    rtt_min_ns: Float64s
    samples: Int64s
    accepted: Int64s


@dataclass(slots=True)
class PathDelayColumns:
    """One prober's delays of one window, a row a (peer, path), in order of first appearance.

    Fields as in `PathDelay` of PathDelays.avsc; NaN stands for null. Buckets of row r stand at
    [forward_bucket_start[r], forward_bucket_start[r + 1]) of forward_bucket and forward_bucket_count, bucket
    numbers ascending; the same for reverse.
    """

    peers: list[str]
    path: Int32s
    count: Int64s
    lost: Int64s
    no_t3: Int64s
    forward_min_ns: Float64s
    forward_p50_ns: Float64s
    forward_p99_ns: Float64s
    reverse_min_ns: Float64s
    reverse_p50_ns: Float64s
    reverse_p99_ns: Float64s
    rtt_min_ns: Float64s
    rtt_p50_ns: Float64s
    rtt_p99_ns: Float64s
    bound_ns: Float64s
    forward_bucket_start: Int64s
    forward_bucket: Int32s
    forward_bucket_count: Int32s
    reverse_bucket_start: Int64s
    reverse_bucket: Int32s
    reverse_bucket_count: Int32s


@dataclass(slots=True)
class MeshSolution:
    """Weighted robust least squares of x[b] - x[a] = value over P edges and n nodes."""

    x: Float64s
    """[n] in the unit of `value`; each component's mean, weighted by the nodes' information, is 0."""
    sigma: Float64s
    """[n] standard error of x against that mean; infinite for a node without an edge."""
    component: Int32s
    """[n] number of the connected part, from 0 in order of first node."""
    residual: Float64s
    """[P] value - (x[b] - x[a])."""
    weight: Float64s
    """[P] share of an edge's own weight that the robust rounds left it, 0..1; below 0.5: an outlier."""
