"""The times of one operation of a simulated job at each of its ranks, and their parts. Pure.

Data moves once the last rank has arrived. Until then, the other ranks wait for it. From then on a rank sends,
phase by phase. In the rest of the operation it waits for slower ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.job_conditions import JobConditions
from producers.sim.jobs import Entries

_JITTER_NS: Final = 40_000.0
"""Mean time by which a rank computes longer than the fastest one."""
_LAUNCH_NS: Final = (8_000.0, 15_000.0)
_FLUSH_NS: Final = 2_000.0
"""Time for flushing a healthy NIC's last data."""
_FLUSH_SHARE: Final = 0.6
"""Share of the time lost to slow PCIe that flushes of received data take. The rest is waiting for data."""

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Times at which the ranks are ready for an operation, ns after the common end of their computation."""

    call_ns: Float64s
    """[ranks] time of the call."""
    launch_ns: Float64s
    """[ranks] time from the call to the start of the communication kernel."""

    @property
    def ready_ns(self) -> Float64s:
        """[ranks] time at which the communication kernel starts."""
        return self.call_ns + self.launch_ns


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """An operation at every rank. Fields are [ranks].

    `arrival` and `end` are ns since the start. The others are its parts, ns, that add up to end - arrival.
    """

    arrival: Float64s
    end: Float64s
    """End of the operation at each rank; the present time if it still runs."""
    launch: Float64s
    gpu_late: Float64s
    peer_late: Float64s
    network_late: Float64s
    flush: Float64s


def arrivals_of(conditions: JobConditions, ranks: int, chance: np.random.Generator) -> Arrivals:
    """Draw the time at which each rank calls an operation, and its kernel's start delay, both ns."""
    call = chance.exponential(_JITTER_NS, ranks)
    launch = chance.uniform(*_LAUNCH_NS, ranks)
    for rank, added_ns in conditions.compute_ns.items():
        call[rank] += added_ns
    for rank, added_ns in conditions.launch_ns.items():
        launch[rank] += added_ns
    return Arrivals(call, launch)


def operation_times(
    arrivals: Arrivals,
    entries: Entries,
    times: Float64s,
    begin_ns: float,
    now_ns: float,
    earliest: Float64s,
    conditions: JobConditions,
    line_bps: float,
) -> OperationTimes:
    """Return the times of an operation whose data began to move at `begin_ns`.

    `times` is [2, entries]: begin and end of each transfer, ns, or -1 if not reached yet. A transfer without
    an end counts up to `now_ns`. `earliest` is [ranks], the end of each rank's previous operation, ns.
    """
    ranks = len(arrivals.call_ns)
    begin, end = times
    began = begin >= 0
    end = np.where(end >= 0, end, now_ns)
    length = np.where(began, end - begin, 0.0)
    phases = int(entries.phase[-1]) + 1
    sending = np.zeros(ranks * phases)
    np.maximum.at(sending, entries.sender * phases + entries.phase, length)
    sending = sending.reshape(ranks, phases).sum(axis=1)
    last = np.full(ranks, begin_ns)
    ended = np.where(began, end, begin_ns)
    np.maximum.at(last, entries.sender, ended)
    np.maximum.at(last, entries.receiver, ended)
    if (times < 0).any():
        last[:] = now_ns
    latest = float(arrivals.ready_ns.max())
    arrival = np.maximum(begin_ns - latest + arrivals.call_ns, earliest)
    launch = np.minimum(arrivals.launch_ns, np.maximum(begin_ns - arrival, 0.0))
    sent = np.bincount(entries.sender, np.where(began, entries.bytes, 0.0), ranks)
    slow = np.zeros(ranks)
    for rank, share in conditions.pcie_share.items():
        slow[rank] = sent[rank] * 8e9 / line_bps * (1 / share - 1)
    slow = np.minimum(slow, sending)
    flush = np.minimum(_FLUSH_NS + _FLUSH_SHARE * slow, np.maximum(last - begin_ns - sending, 0) + slow)
    gpu_late = np.minimum(slow, np.maximum(slow - np.maximum(flush - _FLUSH_NS, 0), 0))
    network = sending - slow
    peer = last - arrival - launch - network - gpu_late - flush
    short = np.minimum(peer, 0.0)  # a flush that does not fit beside the transfers
    return OperationTimes(arrival, last, launch, gpu_late, peer - short, network + short, flush)
