"""Data shapes of native/core: plain records over numpy columns, without behaviour.

`ProbeColumns` is a decoded `ProbeBatch`. `PairFits` and `PathDelayColumns` are the results of one prober's
window. `ClockModel` is a clock against fabric time. `MeshSolution` is a solved mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]
Float64Table: TypeAlias = NDArray[np.float64]


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
    dscp: Int32s = field(default_factory=_int32s)
    """[G] traffic class of the probes; empty: 0 for all."""
    ecn: Int32s = field(default_factory=_int32s)
    """[G] samples whose request and reply both arrived ECN-capable; empty: not known."""
    forward_ce: Int64s = field(default_factory=_int64s)
    """Samples whose request arrived with CE: indices 0 to N - 1, ascending."""
    reverse_ce: Int64s = field(default_factory=_int64s)
    """The same of replies."""


@dataclass(frozen=True, slots=True)
class ClockLine:
    """A clock: fabric time at its reading c is c + offset_ns + offset_fraction_ns + drift_ppb * 1e-9 *
    (c - at_ns).
    """

    at_ns: int
    offset_ns: int
    """Whole ns: a double would hold the offset of a clock that counts from power-on to 256 ns only."""
    drift_ppb: float
    bound_ns: float
    """The true error at at_ns is below it 99.9% of the time."""
    offset_fraction_ns: float = 0.0

    def correction_ns(self, reading_ns: int) -> int:
        """Return the whole ns to add to `reading_ns` for fabric time."""
        drifted_ns = self.drift_ppb * 1e-9 * (reading_ns - self.at_ns)
        return self.offset_ns + round(self.offset_fraction_ns + drifted_ns)


@dataclass(slots=True)
class PairFits:
    """Clock lines of one prober's pairs in one window, a row per peer with at least one accepted sample.

    The peer's clock minus the prober's, at the prober's reading c, is offset_ns + offset_fraction_ns +
    drift_ppb * 1e-9 * (c - at_ns). Fields are those of `PairFit` in ClockFits.avsc.
    """

    peers: list[str]
    at_ns: Int64s
    offset_ns: Int64s
    offset_fraction_ns: Float64s
    drift_ppb: Float64s
    sigma_ns: Float64s
    drift_sigma_ppb: Float64s
    rtt_min_ns: Float64s
    margin_ns: Float64s
    noise_ns: Float64s
    samples: Int64s
    accepted: Int64s
    forward_start: Int64s
    """Corners of row k stand at [forward_start[k], forward_start[k + 1]) of the next two."""
    forward_after_ns: Int64s
    forward_delay_ns: Float64s
    reverse_start: Int64s
    reverse_after_ns: Int64s
    reverse_delay_ns: Float64s

    def records(self, prober: str) -> list[dict[str, object]]:
        """Return the rows as elements of `ClockFits.pairs`."""
        columns = [getattr(self, name).tolist() for name in _FIGURES]
        forward, reverse = self.forward_start.tolist(), self.reverse_start.tolist()
        corners = [getattr(self, name).tolist() for name in _CORNERS]
        rows = []
        for k, (peer, *figures) in enumerate(zip(self.peers, *columns, strict=True)):
            row: dict[str, object] = {"prober": prober, "peer": peer}
            row.update(zip(_FIGURES, figures, strict=True))
            out, back = slice(forward[k], forward[k + 1]), slice(reverse[k], reverse[k + 1])
            for name, column, part in zip(_CORNERS, corners, (out, out, back, back), strict=True):
                row[name] = column[part]
            rows.append(row)
        return rows


_FIGURES = ("at_ns", "offset_ns", "offset_fraction_ns", "drift_ppb", "sigma_ns", "drift_sigma_ppb",
            "rtt_min_ns", "margin_ns", "noise_ns", "samples", "accepted")  # fmt: skip
_CORNERS = ("forward_after_ns", "forward_delay_ns", "reverse_after_ns", "reverse_delay_ns")


@dataclass(slots=True)
class PathDelayColumns:
    """One prober's delays of one window, a row per (peer, path, class), in order of first appearance.

    Fields are those of `PathDelay` in PathDelays.avsc; NaN stands for null. Buckets of row r stand at
    [forward_bucket_start[r], forward_bucket_start[r + 1]) of forward_bucket and forward_bucket_count, bucket
    numbers ascending; the reverse columns have the same layout.
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
    dscp: Int32s
    ecn: Int64s
    forward_ce: Int64s
    reverse_ce: Int64s


@dataclass(slots=True)
class MeshSolution:
    """Weighted robust least squares of x[b] - x[a] = value and x = prior over P edges and n nodes."""

    x: Float64s
    """[n] in the unit of `value`; of a part without a prior the mean, by the nodes' information, is 0."""
    sigma: Float64s
    """[n] standard error of x, against that mean without a prior; infinite without an edge and a prior."""
    component: Int32s
    """[n] number of the part that edges connect, from 0 in order of first node."""
    residual: Float64s
    """[P] value - (x[b] - x[a])."""
    weight: Float64s
    """[P] share of an edge's own weight that the robust rounds left it, 0..1; below 0.5: an outlier."""
    prior_residual: Float64s
    """[n] prior - x; 0 without a prior."""
    prior_weight: Float64s
    """[n] as `weight`, of the prior; 0 without one."""
    contradiction: Float64s
    """[n] typical |residual| / sigma of the node's own edges before any weight: 1.48 times the lower median,
    in units of its part's residuals. About 1, and large where a clock's edges contradict each other."""
    leverage: Float64s
    """[P] share of an edge's own vote in its residual, 0..1: the residual's variance is 1 - leverage of the
    edge's. From random draws, good to some 0.05, in parts of more than 96 nodes."""
    scale: Float64s
    """[parts] rms of the edges' errors over their sigma, from the residuals that count; 1 without degrees of
    freedom."""
    dof: Float64s
    """[parts] degrees of freedom behind `scale`."""


@dataclass(slots=True)
class QueueSlots:
    """Queues of L links over S slots, as `QueueSolver` infers them."""

    queue_ns: Float64Table
    """[S, L] ns that a packet waits at the link, mean of the slot; 0 where no path crosses it."""
    sigma_ns: Float64Table
    """[S, L] standard error of it; 0 where no path crosses it."""


@dataclass(slots=True)
class QueueingColumns:
    """Delays above the floors of R paths, one direction each, in the slots that have samples."""

    start_ns: int
    """Fabric time where slot 0 begins, a multiple of the slots' length."""
    prober: Int64s
    """[R] number of the prober in `SlotReducer.nics`."""
    peer: Int64s
    """[R] number of the peer."""
    path: Int64s
    """[R] entropy value."""
    direction: Int64s
    """[R] 1 forward, 2 reverse, 3 round trip."""
    floor_ns: Float64s
    """[R] delay without a queue; 0 if there was no sample yet."""
    noise_ns: Float64s
    """[R] standard deviation of one delay."""
    singles: Int64s
    """[R] samples not right behind another of ours."""
    idle: Int64s
    """[R] of those, how many met no queue."""
    lost: Int64s
    """[R] requests without a reply."""
    cells: Int64s
    """[R] cells of each path, which stand one after another."""
    slot: Int32s
    """[cells] slot, ascending within a path."""
    count: Int32s
    """[cells] samples."""
    min_ns: Float64s
    """[cells] least delay above the floor."""
    mean_ns: Float64s
    """[cells] mean delay above the floor."""
    at_ns: Int64s
    """[cells] mean time of the samples within the slot."""
    dscp: Int32s
    """[R] traffic class."""
    ce: Int32s
    """[cells] samples that a queue marked with CE."""

    def of_rows(self, rows: Int64s) -> QueueingColumns:
        """Return the columns restricted to the given rows."""
        cells = self.cells[rows]
        first = np.cumsum(self.cells) - self.cells
        within = np.arange(int(cells.sum())) - np.repeat(np.cumsum(cells) - cells, cells)
        of = np.repeat(first[rows], cells) + within
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _PATHS}
        columns |= {name: getattr(self, name)[of] for name in _CELLS}
        return replace(self, **columns)


_PATHS = (
    "prober", "peer", "path", "direction", "floor_ns", "noise_ns", "singles", "idle", "lost", "cells", "dscp",
)  # fmt: skip
_CELLS = ("slot", "count", "min_ns", "mean_ns", "at_ns", "ce")
