"""The shapes in which native/sim takes and gives figures: plain data over numpy columns, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dcqcn", "FlowColumns", "LinkTruth", "ProbeTruth"]

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Float32s: TypeAlias = NDArray[np.float32]
Float64s: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Dcqcn:
    """Constants of the rate control, as in Zhu et al., SIGCOMM 2015 (hyper: as in QCN)."""

    g: float = 1 / 256
    """Weight of a notice in alpha."""
    notice_ns: int = 50_000
    """Least time between two notices to one flow."""
    decay_ns: int = 55_000
    """Alpha falls by `g` after each such time without a notice."""
    rise_ns: int = 55_000
    rise_bytes: int = 10_000_000
    """The rate rises a step each such time, and each so many bytes."""
    fast_steps: int = 5
    """Steps that halve the way back to the rate before, until additive ones follow."""
    additive_bps: float = 40e6
    hyper_bps: float = 400e6
    least_bps: float = 10e6


@dataclass(slots=True)
class ProbeTruth:
    """[N] probes whose fate is known, in the order of sending. Times in ns since the start, without noise."""

    prober: Int32s
    """Number of the (NIC, peer, path) as `add_probes` returned it."""
    nic: Int32s
    peer: Int32s
    path: Int32s
    t1_ns: Float64s
    """The request's first bit on the first link: what a NIC or kernel behind the host's own queue stamps."""
    wait_ns: Float64s
    """In the host's own queue before t1."""
    forward_ns: Float64s
    """t2 - t1, t2 when its last bit is at the peer; NaN: never came."""
    turnaround_ns: Float64s
    """t3 - t2: the answer's wait in the peer's own queue; NaN: no answer sent."""
    reverse_ns: Float64s
    """t4 - t3; NaN: the probe is lost, whichever way."""


@dataclass(slots=True)
class LinkTruth:
    """[S, L]: S whole slots one after another, L links. Depth is what a link has accepted and not yet sent.

    It counts the packets that wait and the unsent rest of the one in service: depth / rate is how long a
    packet that arrives now waits.
    """

    first_slot: int
    slot_ns: int
    depth_bytes: Float32s
    """Mean over the slot."""
    deepest_bytes: Float32s
    busy: Float32s
    """Share of the slot in which the link sends: its utilisation, 0 to 1."""
    accepted_bytes: Int64s
    """That came in and were not dropped, probes included."""
    drops: Int32s
    """Packets that found no room."""


@dataclass(slots=True)
class FlowColumns:
    """[F]: what became of each flow so far, in the order of adding."""

    sent_bytes: Int64s
    """Handed to the host's own queue, repeats included."""
    delivered_bytes: Int64s
    dropped_bytes: Int64s
    """Lost on the way: no room, lossy wire or no way."""
    dropped: Int64s
    """Packets."""
    marked: Int64s
    """Packets that arrived with a congestion mark."""
    rate_bps: Float64s
    """Mean rate of Poisson flows, peak of bursty ones, pace of messages as of their last packet."""
    start_ns: Float64s
    done_ns: Float64s
    """When a message's last byte arrived; NaN: not yet, or no message."""
