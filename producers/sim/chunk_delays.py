"""Delays of simulated jobs' data, and counters of their NICs, derived from the kernel's queues and rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.jobs import SimJob
from producers.sim.workload import SimFlow
from schemas.records import NicCounter, QueuePairDelay

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation

CHUNK_BYTES: Final = 1 << 17
_WINDOW_CHUNKS: Final = 8
"""Maximum chunks of a connection that are in flight."""
_NOISE: Final = 0.02
"""Relative standard deviation of a mean delay."""
_RETRANSMIT_NS: Final = 500_000.0
"""Time until a lost packet is sent again, after a negative acknowledgement or a time-out."""
_PACKET_BYTES: Final = 4096
_PAUSES_PER_S: Final = 12_000.0
"""Pause frames per second of a NIC that pauses its port all the time: 65,535 quanta at 400 Gbit/s each."""
_REBUILD_SAMPLES: Final = 5
MAX_LINKS: Final = 6

Float64s = NDArray[np.float64]


class ChunkDelays:
    """Samples the queues on the routes of one job's flows; derives each rank's delays and NIC counters."""

    def __init__(self, sim: Simulation, job: SimJob) -> None:
        self._sim, self._job = sim, job
        self._flows: list[SimFlow] = []
        self._samples = 0

    def sample(self, wait_ns: Float64s, active: NDArray[np.bool_]) -> None:
        """Add the present queueing waits on the routes of sending flows to the sums of these flows.

        `wait_ns` is [links + 1], ns; its last element is 0. `active` is [flows]: True for flows that send.
        """
        if self._flows is not self._job.flows or self._samples % _REBUILD_SAMPLES == 0:
            self._rebuild()
        self._samples += 1
        at = np.flatnonzero(active[self._numbers])
        wait = wait_ns[self._links[at]].sum(axis=1)
        self._wait[at] += wait
        self._longest[at] = np.maximum(self._longest[at], wait)
        self._count[at] += 1

    def _rebuild(self) -> None:
        flows = self._job.flows
        if self._flows is not flows:
            self._flows = flows
            self._numbers = np.array([flow.number for flow in flows])
            self._wait, self._longest, self._count = np.zeros((3, len(flows)))
            self._sums = self._sim.kernel.flow_sums()[0][self._numbers]
            self._cuts = self._sim.kernel.flow_cuts()[self._numbers]
            self._received = (self._sums.copy(), self._cuts.copy())
            """Sums as each flow's receiver last counted them."""
            senders, receivers = np.array(self._job.pairs).T
            order = np.arange(len(self._job.home))
            self._of = [np.flatnonzero(senders == rank) for rank in order]
            self._to = [np.flatnonzero(receivers == rank) for rank in order]
        self._links = np.full((len(flows), MAX_LINKS), self._sim.fleet.links, np.int64)
        for row, flow in zip(self._links, flows, strict=True):
            row[: len(flow.links)] = flow.links

    def take(
        self,
        rank: int,
        sums: Float64s,
        cuts: NDArray[np.int64],
        interval_ns: float,
        chance: np.random.Generator,
    ) -> tuple[list[QueuePairDelay], NicCounter]:
        """Return the queue pair delays and the NIC counters of a rank since the last call for this rank.

        `sums` and `cuts` are the kernel's sums and rate cuts of all flows.
        """
        if self._flows is not self._job.flows:
            self._rebuild()
        own_flows, to = self._of[rank], self._to[rank]
        now, now_cuts = sums[self._numbers[own_flows]], cuts[self._numbers[own_flows]]
        since, cnp = now - self._sums[own_flows], int((now_cuts - self._cuts[own_flows]).sum())
        self._sums[own_flows], self._cuts[own_flows] = now, now_cuts
        rows = [
            row
            for at, growth, left in zip(own_flows.tolist(), since, now[:, 6].tolist(), strict=True)
            if (row := self._row(at, growth, left, chance)) is not None
        ]
        received, received_cuts = self._received
        arrived = sums[self._numbers[to]] - received[to]
        sent_cnp = int((cuts[self._numbers[to]] - received_cuts[to]).sum())
        received[to], received_cuts[to] = sums[self._numbers[to]], cuts[self._numbers[to]]
        for column in (self._wait, self._longest, self._count):
            column[own_flows] = 0
        nic = self._job.nics[rank]
        paused = max(0.0, 1 - float(self._sim.states.share[2 * nic + 1]))
        counter: NicCounter = {
            "nic": self._sim.fleet.nic_ids[nic],
            "cnp_sent": sent_cnp,
            "cnp_received": cnp,
            "ce_received": None,
            "retransmits": int(since[:, 1].sum() / _PACKET_BYTES),
            "out_of_sequence": int(arrived[:, 1].sum() / _PACKET_BYTES),
            "pause_received": None,
            "pause_sent": round(paused * _PAUSES_PER_S * interval_ns / 1e9),
        }
        return rows, counter

    def _row(
        self, at: int, since: Float64s, left: float, chance: np.random.Generator
    ) -> QueuePairDelay | None:
        """Return the delays of one queue pair; None if the pair neither sent nor had data to send."""
        flow, (sender, peer) = self._flows[at], self._job.pairs[at]
        sent, resent, busy_ns = float(since[0]), float(since[1]), float(since[2]) * self._sim.step_ns
        count = math.ceil(sent / CHUNK_BYTES)
        posted = min(_WINDOW_CHUNKS, math.ceil(max(left, 0.0) / CHUNK_BYTES))
        if not count and not posted:
            return None
        fleet, conditions = self._sim.fleet, self._job.conditions
        base_ns = 2 * float(fleet.delay_ns[flow.links].sum()) + conditions.class_ns
        unloaded_ns = base_ns + CHUNK_BYTES * 8e9 / float(fleet.rate_bps[2 * flow.source])
        mean_ns = longest_ns = 0.0
        if count:
            # a flow over a dead link sends a rest of a chunk: nothing takes longer than the flow was busy
            chunk_share = min(1.0, CHUNK_BYTES / sent)
            serial_ns = chunk_share * busy_ns * conditions.pcie_share.get(sender, 1.0)
            wait_ns = float(self._wait[at] / max(self._count[at], 1))
            lost = resent / _PACKET_BYTES
            noise = 1 + _NOISE * float(chance.standard_normal())
            mean_ns = (serial_ns + base_ns + wait_ns + min(lost / count, 8.0) * _RETRANSMIT_NS) * noise
            mean_ns = max(mean_ns, unloaded_ns)
            longest_ns = max(mean_ns * 1.1, serial_ns + base_ns + float(self._longest[at]))
            longest_ns += 8 * _RETRANSMIT_NS if lost >= 1 else 0.0
        return {
            "nic": fleet.nic_ids[flow.source],
            "flow_id": flow.flow_id,
            "queue_pair": int(flow.flow_id.split(":")[-2]),
            "peer": peer,
            "count": count,
            "bytes": int(sent),
            "min_ns": round(unloaded_ns) if count else 0,
            "mean_ns": round(mean_ns),
            "p99_ns": round(longest_ns),
            "max_ns": round(longest_ns * 1.05),
            "posted": posted,
        }
