"""Parameters and results of native/sim: plain data in numpy columns, without behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Float32s: TypeAlias = NDArray[np.float32]
Float64s: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Dcqcn:
    """Constants of DCQCN, as in Zhu et al., SIGCOMM 2015 (hyper increase as in QCN)."""

    g: float = 1 / 256
    """Weight of a congestion notification in alpha."""
    notice_ns: int = 50_000
    """Shortest time between two notifications to one flow."""
    decay_ns: int = 55_000
    """Alpha falls by `g` after each such time without a notification."""
    rise_ns: int = 55_000
    rise_bytes: int = 10_000_000
    """The rate rises a step after each such time, and after this many bytes."""
    fast_steps: int = 5
    """Steps of fast recovery before additive increase."""
    additive_bps: float = 40e6
    hyper_bps: float = 400e6
    min_bps: float = 10e6


@dataclass(slots=True)
class ProbeTruth:
    """[N] probes with a known result, in the order of sending. Times are ns since the start, without
    noise.
    """

    prober: Int32s
    """Number of the (NIC, peer, path) as `add_probes` returned it."""
    nic: Int32s
    peer: Int32s
    path: Int32s
    t1_ns: Float64s
    """First bit of the request on the first link, as a NIC or kernel behind the host's queue timestamps
    it.
    """
    wait_ns: Float64s
    """Wait in the host's own queue before t1."""
    forward_ns: Float64s
    """t2 - t1, with t2 when its last bit has reached the peer; NaN: lost."""
    turnaround_ns: Float64s
    """t3 - t2: wait of the answer in the peer's own queue; NaN: no answer."""
    reverse_ns: Float64s
    """t4 - t3; NaN: the probe is lost, in either direction."""


@dataclass(slots=True)
class LinkTruth:
    """[S, L]: S consecutive slots, L links. Depth counts accepted bytes that are not yet sent.

    It includes the unsent rest of the packet in service, so depth / rate is the wait of a packet that arrives
    now.
    """

    first_slot: int
    slot_ns: int
    depth_bytes: Float32s
    """Mean over the slot."""
    deepest_bytes: Float32s
    busy: Float32s
    """Utilisation: share of the slot in which the link sends, 0 to 1."""
    accepted_bytes: Int64s
    """Bytes accepted, probes included."""
    drops: Int32s
    """Packets dropped at a full buffer."""


@dataclass(slots=True)
class FlowColumns:
    """[F] results of each flow so far, in the order of adding."""

    sent_bytes: Int64s
    """Bytes given to the host's own queue, retransmissions included."""
    delivered_bytes: Int64s
    dropped_bytes: Int64s
    """Bytes lost: full buffer, lossy wire or no route."""
    dropped: Int64s
    """Packets lost."""
    marked: Int64s
    """Packets that arrived with a congestion mark."""
    rate_bps: Float64s
    """Mean rate of Poisson flows, peak of bursty ones, pace of messages at their last packet."""
    start_ns: Float64s
    done_ns: Float64s
    """Arrival of a message's last byte; NaN: not yet, or not a message."""
