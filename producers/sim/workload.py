"""The traffic of the simulated fleet: jobs in phases, background traffic, and a table of all flows.

The functions for members and phases of jobs are pure. `SimFlowTable` passes flows to the kernel and derives
`FlowReports` from the kernel's sums.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.sim.fluid import Fluid
from producers.sim.settings import JobSettings
from producers.sim.topology import Fleet
from schemas.ids import nic_parts
from schemas.records import Flow, FlowProtocol, FlowReports, FlowState

FLOW_PORT: Final = 4791
"""UDP port of RoCEv2. Together with a flow's source port, it determines the flow's route."""
_FIRST_PORT: Final = 49_152
_MIN_STEPS: Final = 10
"""Minimum number of kernel steps in a phase without other traffic on its links; shorter phases are merged."""

_ENDS: Final = ("", "sender", "receiver")

Float64s = NDArray[np.float64]
Phase = tuple[list[tuple[int, int]], float]
"""Source and destination of each flow in a phase, and bytes per flow."""


def address_of(nic: int) -> str:
    """Return the IPv4 address of NIC number `nic`, in 10.0.0.0/8."""
    return f"10.{nic >> 16 & 255}.{nic >> 8 & 255}.{nic & 255}"


def job_ends(
    job: JobSettings, members: Sequence[Sequence[int]], phases: Sequence[Phase]
) -> list[list[tuple[int, int]]]:
    """Return, for each phase, the (source rank, destination rank) of each connection."""
    rank = {nic: at for at, nic in enumerate(nic for group in members for nic in group)}
    return [[(rank[a], rank[b]) for a, b in pairs for _ in range(job.connections)] for pairs, _ in phases]


def job_members(
    job: JobSettings, fleet: Fleet, rng: np.random.Generator, used_nics: Collection[int] = ()
) -> list[list[int]]:
    """Return the job's NICs in groups; the NICs of a group reduce together.

    If the job occupies whole hosts, NIC k of every host is in group k; otherwise all NICs form one group.
    `used_nics` holds other jobs' NICs. Raises ValueError if too few are left apart from them.
    """
    per_host = fleet.shape.nics_per_host
    by_host = per_host > 1 and job.nics % per_host == 0 and job.nics >= 2 * per_host
    places, count = (fleet.shape.hosts, job.nics // per_host) if by_host else (fleet.nics, job.nics)
    selected = np.arange(places) if job.placed == "packed" else rng.permutation(places)
    if job.placed == "apart":
        full = np.fromiter(used_nics, np.int64) // (per_host if by_host else 1)
        selected = selected[~np.isin(selected, full)]
        if len(selected) < count:
            raise ValueError(f"job {job.name}: {job.nics} NICs apart from other jobs, not enough are left")
    selected = selected[:count]
    if by_host:
        return [[int(host) * per_host + k for host in selected] for k in range(per_host)]
    return [[int(nic) for nic in selected]]


def job_phases(
    job: JobSettings, members: Sequence[Sequence[int]], rate_bps: float, step_ns: int
) -> list[Phase]:
    """Return the phases of an iteration: source and destination of each flow, and bytes per flow.

    allreduce: in rings, every NIC sends 2 (n - 1) / n of its bytes to its neighbour. alltoall: in round k,
    NIC i sends to NIC i + k. Phases shorter than ten steps are merged. rail-alltoall: the same within each
    group, as if data for other rails had moved to another GPU of its host before; phases are not merged.
    exchange: every NIC sends to its neighbour.
    """
    n = len(members[0])
    if job.kind == "allreduce":
        total = 2 * (n - 1) / n * job.bytes
        count = _phases(2 * (n - 1), total, rate_bps, step_ns)
        return [(_shifted(members, 1), total / count)] * count
    if job.kind == "exchange":
        return [(_shifted(members, 1), job.bytes)]
    if job.kind == "rail-alltoall":
        return [(_shifted(members, k), job.bytes / (n - 1)) for k in range(1, n)]
    all_nics = [nic for group in members for nic in group]
    m = len(all_nics)
    flow_bytes = job.bytes / (m - 1)
    rounds = [_shifted([all_nics], k) for k in range(1, m)]
    count = _phases(m - 1, job.bytes, rate_bps, step_ns)
    cuts = np.linspace(0, m - 1, count + 1).astype(int)
    return [
        ([pair for part in rounds[begin:end] for pair in part], flow_bytes) for begin, end in pairwise(cuts)
    ]


def _shifted(groups: Sequence[Sequence[int]], distance: int) -> list[tuple[int, int]]:
    """Return each NIC paired with the NIC `distance` places further in its group, cyclically."""
    return [(nic, group[(at + distance) % len(group)]) for group in groups for at, nic in enumerate(group)]


def _limiting_end(receiver_share: float, sender_share: float) -> str:
    """Return the end that limited a flow for more than half of an interval; empty if neither did."""
    if receiver_share > 0.5:
        return "receiver"
    return "sender" if sender_share > 0.5 else ""


def _phases(max_phases: int, total_bytes: float, rate_bps: float, step_ns: int) -> int:
    return max(1, min(max_phases, int(total_bytes * 8e9 / rate_bps / (_MIN_STEPS * step_ns))))


@dataclass(slots=True)
class SimFlow:
    """One flow in its host's view. `number`: its index in the kernel, reused after the flow is closed."""

    number: int
    flow_id: str
    source: int
    destination: int
    port: int
    job: str | None = None
    tenant: str | None = None
    limit_bps: float | None = None
    demand_bps: float | None = None
    links: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    hops: list[str] = field(default_factory=list)
    at_open: Float64s = field(default_factory=lambda: np.zeros(7))
    at_report: Float64s = field(default_factory=lambda: np.zeros(7))
    reported_ns: float = 0.0
    reported_bps: float = 0.0
    reported_limit: str = ""
    """The limiting end in the last report."""
    opened: bool = True


class SimFlowTable:
    """All flows of the fleet, which the kernel simulates."""

    def __init__(
        self, fleet: Fleet, kernel: Fluid, boots: Sequence[str], step_ns: int, *, flowlets: bool = False
    ) -> None:
        self._fleet, self._kernel, self._boots, self._step_ns = fleet, kernel, boots, step_ns
        self._flowlets = flowlets
        self.flows: dict[str, SimFlow] = {}
        """Open flows by id."""
        self.of_host: list[dict[str, SimFlow]] = [{} for _ in range(fleet.shape.hosts)]
        self._free: dict[int, list[int]] = {}
        self._queue_pairs = 0
        self._reports = [0] * fleet.shape.hosts
        self._slow: set[int] = set()

    def open(
        self,
        source: int,
        destination: int,
        port: int,
        *,
        job: str | None = None,
        tenant: str | None = None,
        demand_bps: float | None = None,
        living: NDArray[np.bool_] | None = None,
        endless: bool = True,
    ) -> SimFlow:
        """Open a flow and return it. An `endless` flow sends at once; a job starts any other."""
        kernel, fleet = self._kernel, self._fleet
        free = self._free.get(source)
        number = free.pop() if free else kernel.add_flow(source, float(fleet.rate_bps[2 * source]))
        self._queue_pairs += 1
        host, device = nic_parts(fleet.nic_ids[source])
        boot = self._boots[int(fleet.nic_host[source])]
        flow = SimFlow(
            number,
            f"{host}/{boot}/qp:{device}:{self._queue_pairs}:1",
            source,
            destination,
            port,
            job,
            tenant,
            demand_bps=demand_bps,
        )
        sums = kernel.flow_sums_of(number)
        flow.at_open, flow.at_report, flow.reported_ns = sums, sums, kernel.now_ns
        self.lead(flow, living)
        kernel.set_flow_limits(number, demand_bps, None)
        if endless:
            kernel.send(number)
        self.flows[flow.flow_id] = self.of_host[int(fleet.nic_host[source])][flow.flow_id] = flow
        return flow

    def close(self, flow: SimFlow) -> None:
        """End a flow; its number may be used by another flow of the same NIC."""
        self._kernel.send(flow.number, 0)
        flow.opened = False
        self.flows.pop(flow.flow_id, None)
        self.of_host[int(self._fleet.nic_host[flow.source])].pop(flow.flow_id, None)
        if flow.job is None:
            self._free.setdefault(flow.source, []).append(flow.number)

    def lead(self, flow: SimFlow, living: NDArray[np.bool_] | None) -> None:
        """Compute a flow's route from its ports and pass the route to the kernel."""
        self.lead_all([flow], living)

    def lead_all(self, flows: Sequence[SimFlow], living: NDArray[np.bool_] | None) -> list[SimFlow]:
        """Compute the routes of many flows and pass them to the kernel; return the rerouted flows."""
        if not flows:
            return []
        paths = self._fleet.paths(
            [flow.source for flow in flows],
            [flow.destination for flow in flows],
            [flow.port for flow in flows],
            FLOW_PORT,
            living,
        )
        moved = []
        names = self._fleet.link_ids
        for i, flow in enumerate(flows):
            links = paths.of(i)
            if np.array_equal(links, flow.links):
                continue
            flow.links = links
            reached = bool(paths.reached[i])
            self._kernel.set_flow_path(flow.number, links, reached)
            # Reporters publish whole traces alone, and none is valid for longer than a flowlet.
            flow.hops = [names[link] for link in links.tolist()] if reached and not self._flowlets else []
            if self._flowlets:
                self._kernel.set_flow_routes(
                    flow.number, self._fleet.routes(flow.source, flow.destination, living)
                )
            moved.append(flow)
        return moved

    def moved(self, before: Float64s, sums: Float64s, span_ns: float) -> list[SimFlow]:
        """Return the open flows that changed since their last report.

        `before` and `sums` are [flows, 7] from `Fluid.flow_sums`, `span_ns` apart. A change means that the
        rate changed by a quarter and by 1 Mbit/s, or that the limiting end changed.
        """
        flow_count = len(before)
        sent = sums[:flow_count] - before
        rate_bps = sent[:, 0] * 8e9 / span_ns
        steps = span_ns / self._step_ns
        limiting = np.where(sent[:, 4] > 0.5 * steps, 2, np.where(sent[:, 3] > 0.5 * steps, 1, 0))
        return [
            flow
            for flow in self.flows.values()
            if flow.number < flow_count
            and (
                abs(rate_bps[flow.number] - flow.reported_bps) > max(0.25 * flow.reported_bps, 1e6)
                or _ENDS[limiting[flow.number]] != flow.reported_limit
            )
        ]

    def report(
        self,
        host: int,
        flows: Sequence[SimFlow],
        *,
        is_complete: bool,
        now_ns: float,
        system_ns: int,
        shard: str,
        wait_ns: Float64s,
        sums: Float64s | None = None,
    ) -> FlowReports:
        """Return the `FlowReports` of a host. `wait_ns` [L]: recent queueing delay at each link, ns."""
        if sums is None:
            sums = self._kernel.flow_sums()[0]
        self._reports[host] += 1
        return {
            "host": self._fleet.node_ids[host],
            "boot": self._boots[host],
            "report": self._reports[host] - 1,
            "shard": shard,
            "system_ns": system_ns,
            "whole": is_complete,
            "flows": [self._row(flow, now_ns, wait_ns, sums[flow.number], is_complete) for flow in flows],
        }

    def _row(
        self, flow: SimFlow, now_ns: float, wait_ns: Float64s, sums: Float64s, is_complete: bool
    ) -> Flow:
        interval_ns = now_ns - flow.reported_ns
        since = sums - flow.at_report
        steps = max(interval_ns / self._step_ns, 1.0)
        sent = max(0.0, float(since[0]))
        links = flow.links
        rate_bps = sent * 8e9 / interval_ns if interval_ns > 0 else 0.0
        busy = min(1.0, float(since[2]) / steps)
        if (
            flow.demand_bps is not None
        ):  # its program wants no more than its demand: it is busy where less passes
            unmet = max(0.0, 1 - rate_bps / flow.demand_bps)
            busy *= min(1.0, max(2 * unmet, rate_bps / float(self._fleet.rate_bps[2 * flow.source])))
        base_ns = 2 * float(self._fleet.delay_ns[links].sum())
        receiver_share, sender_share = (min(1.0, float(since[cause]) / steps) for cause in (4, 3))
        row: Flow = {
            "flow_id": flow.flow_id,
            "state": FlowState.OPEN if flow.opened else FlowState.CLOSED,
            "nic": self._fleet.nic_ids[flow.source],
            "peer": self._fleet.nic_ids[flow.destination],
            "source_address": address_of(flow.source),
            "peer_address": address_of(flow.destination),
            "source_port": flow.port,
            "peer_port": FLOW_PORT,
            "protocol": FlowProtocol.ROCE,
            "links": flow.hops,
            "job": flow.job,
            "tenant": flow.tenant,
            "bytes_total": int(sums[0] - flow.at_open[0]),
            "interval_ns": int(interval_ns),
            "bytes": int(sent),
            "rate_bps": rate_bps,
            "rtt_ns": int(base_ns + float(wait_ns[links].sum())),
            "retransmits": int(since[1] / 4096),
            "busy_share": busy,
            "receiver_limited_share": receiver_share,
            "sender_limited_share": min(1.0, sender_share + 1 - busy),  # as a host counts: idle is its own
            "rate_limit_bps": None if flow.limit_bps is None else int(flow.limit_bps),
            "can": ["MOVE", "PACE"],
        }
        flow.at_report, flow.reported_ns = sums.copy(), now_ns
        flow.reported_bps, flow.reported_limit = rate_bps, _limiting_end(receiver_share, sender_share)
        return row
