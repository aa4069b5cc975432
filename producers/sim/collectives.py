"""Publishes the operations of the simulated fleet's jobs, as the profiler and reporter of each rank would."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.chunk_delays import ChunkDelays
from producers.sim.job_log import JobLog, LoggedOperation
from producers.sim.job_times import OperationTimes
from producers.sim.jobs import SimJob
from schemas.ids import host_of
from schemas.records import (
    ClockSync,
    CollectiveBatch,
    CollectiveFunction,
    CollectiveOperation,
    CollectiveSource,
    CollectiveSummary,
    CollectiveTransfer,
    KeptReason,
)
from schemas.topics import COLLECTIVES

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation

_SECOND_NS: Final = 1_000_000_000
_SAMPLE_TICKS: Final = 5
"""Ticks between two samples of the queues on the flows' routes: 50 ms."""
_BOUND_NS: Final = (80.0, 400.0)
"""Range from which the error bound of a host's fabric time is drawn."""
_ERROR_SHARE: Final = 0.6
"""Largest error of a host's fabric time as a share of its bound."""
_DRIFT_S: Final = 30.0
"""Period with which the error of a host's fabric time oscillates."""
_VERSION: Final = "sim/1"
_EXCHANGE: Final = "exchange"
"""Kind of the jobs whose ranks exchange messages."""
_CALLED_INSTEAD: Final = {
    CollectiveFunction.ALL_REDUCE: CollectiveFunction.ALL_GATHER,
    CollectiveFunction.ALL_TO_ALL: CollectiveFunction.ALL_GATHER,
}
"""The function that a mismatched rank calls, by the function that the other ranks call."""


class SimCollectives:
    """Publishes one record of each rank per second. The ranks are spread over the ticks."""

    def __init__(self, sim: Simulation, tick_ns: int) -> None:
        self._sim = sim
        self._per_second = _SECOND_NS // tick_ns
        self._ranks: list[tuple[JobLog, ChunkDelays, list[_Rank]]] = []
        if COLLECTIVES.name not in sim.topic_names:
            return
        for index, job in enumerate(sim.jobs.jobs):
            rng = np.random.Generator(np.random.SFC64([sim.settings.seed, 6, index]))
            log, delays = JobLog(sim, job, index), ChunkDelays(sim, job)
            self._ranks.append((log, delays, [_Rank(sim, log, delays, r, rng) for r in range(log.ranks)]))
        self._packet = np.zeros(sim.fleet.links)
        self._steps = 0

    def publish(self) -> None:
        """Publish the collective records of the ranks that are due at this tick."""
        if not self._ranks:
            return
        if self._sim.ticks % _SAMPLE_TICKS == 0:
            self._sample()
        phase = (self._sim.ticks - 1) % self._per_second
        for log, _, ranks in self._ranks:
            log.note_ended()
            due = ranks[phase :: self._per_second]
            if not due:
                continue
            sums, cuts, running = self._sim.kernel.flow_sums()[0], self._sim.kernel.flow_cuts(), log.running()
            for rank in due:
                rank.publish(sums, cuts, running)

    def _sample(self) -> None:
        """Add the present wait at each link, ns, to the delay sums of the flows that send now."""
        sums = self._sim.kernel.link_sums()
        steps = max(self._sim.kernel.steps - self._steps, 1)
        depth = sums[5] + (sums[1] - self._packet) / steps
        self._packet, self._steps = sums[1].copy(), self._sim.kernel.steps
        wait_ns = np.append(depth * 8e9 / self._sim.fleet.rate_bps, 0.0)
        _, active = self._sim.kernel.flow_sums()
        for _, delays, _ in self._ranks:
            delays.sample(wait_ns, active)


class _Rank:
    """The simulated reporter of one rank's process."""

    def __init__(
        self, sim: Simulation, log: JobLog, delays: ChunkDelays, rank: int, rng: np.random.Generator
    ) -> None:
        self._sim, self._log, self._delays, self._rank = sim, log, delays, rank
        self._rng = rng
        self._bound_ns = float(rng.uniform(*_BOUND_NS))
        self._phase = float(rng.uniform(0, 2 * math.pi))
        self._ticks = int(rng.integers(10**6, 10**8))
        self._starts = 0
        self._batch = 0
        self._ended = False
        self._since_ns = sim.kernel.now_ns

    def publish(
        self, sums: NDArray[np.float64], cuts: NDArray[np.int64], running: LoggedOperation | None
    ) -> None:
        """Publish the process's operations, delays and counters since its last record."""
        job, rank, now_ns = self._log.job, self._rank, self._sim.kernel.now_ns
        begin_ns, self._since_ns = self._since_ns, now_ns
        operations = self._log.take(rank)
        rows, counter = self._delays.take(rank, sums, cuts, now_ns - begin_ns, self._rng)
        killed = rank in job.conditions.killed
        if self._ended and not killed:
            self._starts, self._batch, self._ended = self._starts + 1, 0, False
        silent = rank in job.conditions.unreported or self._sim.states.dead.get(job.home[rank], False)
        if silent or self._ended:
            return
        self._ended = killed
        shift_ns = self._shift_ns(now_ns)
        unsynced = rank in job.conditions.unsynced
        logged = [operation for operation in operations if operation.reason is not None]
        if running is not None and (running.present is None or running.present[rank]):
            logged.append(running)
        listed = [row for operation in logged for row in self._rows(operation, shift_ns)]
        has_messages = job.settings.kind == _EXCHANGE
        host = host_of(self._sim.fleet.nic_ids[job.home[rank]])
        record: CollectiveBatch = {
            "job": job.name,
            "tenant": job.settings.tenant,
            "host": host,
            "boot": self._sim.boots[host],
            "process": f"{1000 + rank + 10_000 * self._starts}-{self._ticks + self._starts}",
            "batch": self._batch,
            "shard": self._sim.settings.shard,
            "source": CollectiveSource.SIMULATION,
            "version": _VERSION,
            "begin_ns": round(begin_ns) + shift_ns,
            "end_ns": round(now_ns) + shift_ns,
            "clock": ClockSync.UNSYNCED if unsynced else ClockSync.SYNCED,
            "bound_ns": 0.0 if unsynced else self._bound_ns,
            "ended": killed,
            "events_dropped": 0,
            "events_invalid": 0,
            "calls_ignored": 0,
            "communicators": [
                {
                    "id": f"{job.name}/world",
                    "name": "world",
                    "rank": rank,
                    "ranks": self._log.ranks,
                    "nodes": len(set(self._sim.fleet.nic_host[job.home].tolist())),
                    "nics": [self._sim.fleet.nic_ids[job.nics[rank]]],
                    "gpu": str(int(self._sim.fleet.nic_device[job.home[rank]])),
                }
            ],
            "operations": listed,
            "transfers": [
                row
                for at, operation in enumerate(logged)
                if operation.moved is not None and not has_messages
                for row in self._transfers(at, operation, operation.moved, shift_ns)
            ],
            "summaries": self._summaries(operations) if operations else [],
            "queue_pairs": [] if has_messages else rows,
            "counters": [counter],
            "ranks": [],
            "reports": [],
            "activity": None,
        }
        self._batch += 1
        self._sim.publish(COLLECTIVES, job.name, self._sim.system_ns(), record)

    def _shift_ns(self, now_ns: float) -> int:
        """Return the ns to add to simulated time: the epoch, and the error of this host's fabric time."""
        if self._rank in self._log.job.conditions.unsynced:
            return self._sim.kernel.clock_ns(self._log.job.home[self._rank], now_ns) - round(now_ns)
        error_ns = (
            _ERROR_SHARE * self._bound_ns * math.sin(self._phase + 2 * math.pi * now_ns / (_DRIFT_S * 1e9))
        )
        return self._sim.start_ns + round(error_ns)

    def _rows(self, operation: LoggedOperation, shift_ns: int) -> list[CollectiveOperation]:
        """Return an operation as a profiler reports it. MPI messages have one row sent and one received."""
        entries, row = self._log.job.entries, self._operation(operation, shift_ns)
        if self._log.job.settings.kind != _EXCHANGE:
            return [row]
        sent, received = row.copy(), row.copy()
        for message, function, own, peers in (
            (sent, CollectiveFunction.SEND, entries.sender, entries.receiver),
            (received, CollectiveFunction.RECEIVE, entries.receiver, entries.sender),
        ):
            message["function"], message["peer"] = function, int(peers[own == self._rank][0])
            message["launch_ns"] = message["gpu_late_ns"] = message["flush_ns"] = None
            message["peer_late_ns"] = message["network_late_ns"] = message["kernel_ns"] = None
        return [sent, received]

    def _operation(self, operation: LoggedOperation, shift_ns: int) -> CollectiveOperation:
        job, rank, t = self._log.job, self._rank, operation.times
        function, algorithm = _function(job)
        runs = operation.reason == KeptReason.RUNNING
        if runs and rank in job.conditions.mismatched:
            function, algorithm = _CALLED_INSTEAD[function], ""
        begin, end = round(t.arrival[rank]), round(t.end[rank])
        launch, gpu, network, flush = (
            round(float(part[rank])) for part in (t.launch, t.gpu_late, t.network_late, t.flush)
        )
        return {
            "communicator": 0,
            "seq": operation.seq,
            "function": function,
            "algorithm": algorithm,
            "protocol": "SIMPLE",
            "bytes": round(job.settings.bytes),
            "peer": None,
            "channels": job.connections,
            "begin_ns": begin + shift_ns,
            "end_ns": None if runs else end + shift_ns,
            "launch_ns": launch,
            "kernel_ns": None if runs else max(0, end - begin - launch),
            "gpu_late_ns": gpu,
            "peer_late_ns": max(0, end - begin - launch - gpu - network - flush),
            "network_late_ns": network,
            "flush_ns": flush,
            "sampled_share": 1.0,
            "tag": 0,
            "kept": operation.reason or KeptReason.UNKNOWN,
        }

    def _transfers(
        self, at: int, operation: LoggedOperation, moved: NDArray[np.float64], shift_ns: int
    ) -> list[CollectiveTransfer]:
        """Return the transfers of this rank in an operation, one for each peer, direction and connection."""
        job, rank = self._log.job, self._rank
        entries = job.entries
        if moved.shape[1] != len(entries.sender):
            return []  # of the job's start before this one
        transfers: list[CollectiveTransfer] = []
        for sends, own, others in (
            (True, entries.sender, entries.receiver),
            (False, entries.receiver, entries.sender),
        ):
            index = np.flatnonzero((own == rank) & (moved[0] >= 0))
            channel = index % job.connections
            for peer, number in sorted(set(zip(others[index].tolist(), channel.tolist(), strict=True))):
                of = index[(others[index] == peer) & (channel == number)]
                transfers.append(
                    self._transfer(at, operation, of, moved[:, of], peer, number, sends, shift_ns)
                )
        return transfers

    def _transfer(
        self,
        at: int,
        operation: LoggedOperation,
        of: NDArray[np.int64],
        moved: NDArray[np.float64],
        peer: int,
        channel: int,
        sends: bool,
        shift_ns: int,
    ) -> CollectiveTransfer:
        job, rank = self._log.job, self._rank
        runs = bool((moved[1] < 0).any())
        begin_ns, now_ns = float(moved[0].min()), float(operation.times.end[rank])
        ends = np.where(moved[1] < 0, now_ns, moved[1])
        end_ns, moving_ns = float(ends.max()), float((ends - moved[0]).sum())
        gpu_ns = moving_ns * (1 - job.conditions.pcie_share.get(rank, 1.0)) if sends else 0.0
        network_ns = min(moving_ns, end_ns - begin_ns) - gpu_ns
        return {
            "operation": at,
            "channel": channel,
            "peer": peer,
            "sends": sends,
            "bytes": round(float(job.entries.bytes[of][moved[1] >= 0].sum())),
            "begin_ns": round(begin_ns) + shift_ns,
            "end_ns": None if runs else round(end_ns) + shift_ns,
            "gpu_late_ns": round(gpu_ns),
            "peer_late_ns": max(0, round(end_ns - begin_ns - network_ns - gpu_ns)),
            "network_late_ns": max(0, round(network_ns)),
            "flush_ns": 0,
        }

    def _summaries(self, operations: Sequence[LoggedOperation]) -> list[CollectiveSummary]:
        summary = self._summary(operations)
        if self._log.job.settings.kind != _EXCHANGE:
            return [summary]
        received = summary.copy()
        summary["function"], received["function"] = CollectiveFunction.SEND, CollectiveFunction.RECEIVE
        for one in (summary, received):
            one["launch_ns"] = one["gpu_late_ns"] = one["flush_ns"] = one["bus_bps"] = None
            one["peer_late_ns"] = one["network_late_ns"] = one["kernel_ns"] = None
        return [summary, received]

    def _summary(self, operations: Sequence[LoggedOperation]) -> CollectiveSummary:
        job, rank = self._log.job, self._rank
        function, algorithm = _function(job)
        size = round(job.settings.bytes)
        times = np.array(
            [
                (t.arrival[rank], t.end[rank], *(part[rank] for part in _parts(t)))
                for t in (operation.times for operation in operations)
            ]
        )
        lengths = np.maximum(np.rint(times[:, 1]) - np.rint(times[:, 0]), 1.0).astype(np.int64).tolist()
        parts = np.rint(times[:, 2:].cumsum(axis=0)[-1]).astype(np.int64).tolist()
        n = self._log.ranks
        factor = (n - 1) / n * (2 if function == CollectiveFunction.ALL_REDUCE else 1)
        return {
            "communicator": 0,
            "function": function,
            "algorithm": algorithm,
            "protocol": "SIMPLE",
            "bytes_from": 1 << (size.bit_length() - 1) if size else 0,
            "first_seq": operations[0].seq,
            "last_seq": operations[-1].seq,
            "count": len(operations),
            "bytes": size * len(operations),
            "busy_ns": sum(lengths),
            "min_ns": min(lengths),
            "p50_ns": sorted(lengths)[(len(lengths) - 1) // 2],
            "max_ns": max(lengths),
            "launch_ns": parts[0],
            "kernel_ns": max(0, sum(lengths) - parts[0]),
            "gpu_late_ns": parts[1],
            "peer_late_ns": parts[2],
            "network_late_ns": parts[3],
            "flush_ns": parts[4],
            "bus_bps": factor * size * len(operations) * 8e9 / sum(lengths),
        }


def _function(job: SimJob) -> tuple[CollectiveFunction, str]:
    """Return the function of a job's operations, and the name of their algorithm."""
    if job.settings.kind == "allreduce":
        return CollectiveFunction.ALL_REDUCE, "RING"
    return CollectiveFunction.ALL_TO_ALL, ""


def _parts(times: OperationTimes) -> tuple[NDArray[np.float64], ...]:
    return times.launch, times.gpu_late, times.peer_late, times.network_late, times.flush
