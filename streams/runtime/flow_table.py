"""A global table of the open flows and the links that they cross.

It is filled from `fabric.flows`; flows without a traced route get the likely links of `RouteTable`.
`FlowTable` passes each shard's reports to that shard's `LiveFlows`. A `LiveFlows` shows the flows as of a
given time of the log's clock, so a replay gives the same result.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from schemas import codec
from schemas.ids import host_of
from schemas.log_time import STEP_NS
from schemas.records import Flow, FlowReports, FlowState
from schemas.topics import FLOWS
from streams.runtime.route_table import is_link
from streams.runtime.tables import GlobalTable

log = logging.getLogger(__name__)

STALE_NS: Final = 5_000_000_000
"""Time without a report after which a host counts as having no known flows."""
APPLY_AFTER_NS: Final = 2_000_000_000
"""Time after which a report is applied even if `advance` is not called."""
LIMITED_SHARE: Final = 0.5
"""Share of an interval above which one end counts as limiting a flow."""
ALLOWED_SHARE: Final = 0.9
"""Share of its rate limit above which that limit, and not the host, counts as setting a flow's rate."""
CERTAIN: Final = 0.99
MAX_RATE_BPS: Final = 1e15


class Paths(Protocol):
    """The part of the interface of `RouteTable` that this module uses."""

    version: int

    def paths(self, nic: str, peer: str) -> Mapping[tuple[str, int], Any]:
        """Return the routes of one directed pair, by (leg, entropy value)."""


class LiveFlow(NamedTuple):
    """One flow with the values of its last report."""

    flow_id: str
    nic: str
    peer: str
    job: str | None
    tenant: str | None
    rate_bps: float
    receiver_limited: bool
    """Whether the receiver's window limited the flow for most of the interval."""
    sender_limited: bool
    """Whether the sending host limited the flow although there was data to send."""
    hops: tuple[str, ...]
    path: int
    """Source port: the entropy value of its path."""
    rtt_ns: int | None
    """The smoothed round-trip time of the transport."""
    peer_port: int = 0
    """Destination port."""
    can: tuple[str, ...] = ()
    """Actions that the flow's endpoint supports: MOVE, PACE."""
    rate_limit_bps: int | None = None
    """Its rate limit."""
    bytes_total: int = 0
    system_ns: int = 0
    """Time of the report by its host's system clock."""
    busy_share: float | None = None
    """Share of the interval in which it had data to send."""


class Report(NamedTuple):
    """The content of a `FlowReports` record; closed flows have the value None."""

    host: str
    whole: bool
    flows: dict[str, LiveFlow | None]


@dataclass(frozen=True, slots=True)
class FlowOnLink:
    """A flow on one link. `weight`: probability that the flow takes this link; 1 if it is certain."""

    flow: LiveFlow
    weight: float

    @property
    def certain(self) -> bool:
        """Whether the flow certainly crosses the link."""
        return self.weight >= CERTAIN


def report_of(record: FlowReports, has_nic: Callable[[str], bool]) -> tuple[Report, list[str]]:
    """Return the valid flows of a `FlowReports` record, and a message about each invalid one.

    `has_nic` returns whether the inventory has a NIC. Raises BadRecord if the whole record is invalid.
    """
    host = record["host"]
    if not host or "/" in host:
        raise codec.BadRecord("OUT_OF_RANGE", f"FlowReports.host: {host!r}, expected a host's name")
    flows: dict[str, LiveFlow | None] = {}
    refused = []
    for element in record["flows"]:
        name = element["flow_id"]
        reason = (
            f"{name}: reported twice in one record"
            if name in flows
            else _invalid_reason(element, host, has_nic)
        )
        if reason is None:
            flows[name] = (
                None if element["state"] == FlowState.CLOSED else _flow(element, record["system_ns"])
            )
        else:
            refused.append(reason)
    return Report(host, record["whole"], flows), refused


def _invalid_reason(flow: Flow, host: str, has_nic: Callable[[str], bool]) -> str | None:
    name = flow["flow_id"]
    if not name.startswith(f"{host}/"):
        return f"{name}: reported by {host}, which is not its host"
    if host_of(flow["nic"]) != host:
        return f"{name}: sent by {flow['nic']}, expected a NIC of {host}"
    for nic in (flow["nic"], flow["peer"]):
        if not has_nic(nic):
            return f"{name}: NIC {nic!r}: not in the inventory"
    if not (math.isfinite(flow["rate_bps"]) and 0 <= flow["rate_bps"] <= MAX_RATE_BPS):
        return f"{name}: rate_bps {flow['rate_bps']}, expected 0 to {MAX_RATE_BPS:g}"
    shares = {
        "busy_share": flow["busy_share"],
        "receiver_limited_share": flow["receiver_limited_share"],
        "sender_limited_share": flow["sender_limited_share"],
    }
    for share, value in shares.items():
        if value is not None and not 0 <= value <= 1:
            return f"{name}: {share} {value}, expected 0 to 1"
    bad_link = next((link for link in flow["links"] if not is_link(link)), None)
    return None if bad_link is None else f"{name}: links {bad_link!r}, expected node:port>node:port"


def _flow(element: Flow, system_ns: int) -> LiveFlow:
    rate_bps, limit_bps = element["rate_bps"], element["rate_limit_bps"]
    busy, sender = element["busy_share"], element["sender_limited_share"]
    idle = 0.0 if busy is None else 1 - busy
    allowed = limit_bps is not None and rate_bps >= ALLOWED_SHARE * limit_bps
    return LiveFlow(
        element["flow_id"],
        element["nic"],
        element["peer"],
        element["job"],
        element["tenant"],
        rate_bps,
        (element["receiver_limited_share"] or 0.0) > LIMITED_SHARE,
        not allowed and (sender or 0.0) - idle > LIMITED_SHARE,
        tuple(element["links"]),
        element["source_port"],
        element["rtt_ns"],
        element["peer_port"],
        tuple(element["can"]),
        limit_bps,
        element["bytes_total"],
        system_ns,
        busy,
    )


class LiveFlows:
    """The flows of one shard, as of the moment of the last `advance`."""

    def __init__(self, shard: str, paths: Paths) -> None:
        self.shard = shard
        self._paths = paths
        self._paths_version = paths.version
        self._waiting: list[tuple[int, int, Report]] = []
        self._order = itertools.count()
        self._newest_ns = 0
        self._taken_ns: dict[str, int] = {}
        """Maps host to the append time of its last report, ns."""
        self._hosts: dict[str, tuple[int, dict[str, LiveFlow]]] = {}
        """Maps host to the log time of its last report, ns, and its flows."""
        self._links: dict[str, dict[str, float]] = {}
        """Maps flow to the links that it takes, or may take, each with its probability."""
        self._flows_on: dict[str, dict[str, LiveFlow]] = {}
        self._limited: dict[str, LiveFlow] = {}

    def take(self, report: Report, append_ns: int) -> None:
        """Add a report with its append time.

        The report is applied once `advance` reaches its append time, or `APPLY_AFTER_NS` later.
        """
        last_ns, self._taken_ns[report.host] = self._taken_ns.get(report.host), append_ns
        if last_ns is not None and append_ns < last_ns - STEP_NS and append_ns < self._newest_ns - STEP_NS:
            self._step_back(append_ns)
        heapq.heappush(self._waiting, (append_ns, next(self._order), report))
        self._newest_ns = max(self._newest_ns, append_ns)
        self._show(self._newest_ns - APPLY_AFTER_NS)

    def _step_back(self, append_ns: int) -> None:
        """Apply all waiting reports and date none later than `append_ns`, to which log time stepped back."""
        self._show(self._newest_ns)
        self._newest_ns = append_ns
        for host, (last_ns, flows) in self._hosts.items():
            self._hosts[host] = (min(last_ns, append_ns), flows)

    def advance(self, append_ns: int, stale_ns: int = STALE_NS) -> None:
        """Apply reports up to `append_ns` of the log's clock; drop hosts without a report for `stale_ns`."""
        self._show(append_ns)
        for host in [host for host, (last_ns, _) in self._hosts.items() if last_ns < append_ns - stale_ns]:
            for name in self._hosts.pop(host)[1]:
                self._drop(name)
        if self._paths.version != self._paths_version:
            self._paths_version = self._paths.version
            for _, flows in self._hosts.values():
                for flow in flows.values():
                    if not flow.hops:
                        self._place(flow)

    def copy(self) -> LiveFlows:
        """Return another view of the same flows, to be advanced separately."""
        view = LiveFlows(self.shard, self._paths)
        for host, (append_ns, flows) in self._hosts.items():
            view._apply(append_ns, Report(host, True, dict(flows)))
        for append_ns, _, report in sorted(self._waiting):
            view.take(report, append_ns)
        return view

    def hosts(self) -> set[str]:
        """Return the hosts whose reports are applied."""
        return set(self._hosts)

    def flows_on(self, link: str) -> list[FlowOnLink]:
        """Return the flows on a link, the heaviest first."""
        of_link = self._flows_on.get(link, {}).values()
        flows = [FlowOnLink(flow, self._links[flow.flow_id][link]) for flow in of_link]
        flows.sort(key=lambda item: (-item.weight * item.flow.rate_bps, item.flow.flow_id))
        return flows

    def rates_bps(self) -> dict[str, float]:
        """Return, by link, the total rate of the flows that certainly cross it, bit/s."""
        rates = {}
        for link, flows in self._flows_on.items():
            certain = [f.rate_bps for f in flows.values() if self._links[f.flow_id][link] >= CERTAIN]
            if certain:
                rates[link] = math.fsum(certain)  # in any order the same
        return rates

    def limited_flows(self) -> list[tuple[LiveFlow, tuple[str, ...]]]:
        """Return the flows limited by one of their hosts, each with the links that it certainly crosses."""
        return [
            (flow, tuple(link for link, weight in self._links[name].items() if weight >= CERTAIN))
            for name, flow in sorted(self._limited.items())
        ]

    def open_flows(self) -> list[LiveFlow]:
        """Return the open flows, sorted by id."""
        flows = (flow for _, flows in self._hosts.values() for flow in flows.values())
        return sorted(flows, key=lambda flow: flow.flow_id)

    def count(self) -> int:
        """Return the number of open flows."""
        return len(self._links)

    def _show(self, append_ns: int) -> None:
        while self._waiting and self._waiting[0][0] <= append_ns:
            self._apply(*heapq.heappop(self._waiting)[::2])

    def _apply(self, append_ns: int, report: Report) -> None:
        _, flows = self._hosts.get(report.host, (0, {}))
        self._hosts[report.host] = (append_ns, flows)
        for name, flow in report.flows.items():
            flow_before = flows.get(name)
            if flow is None:
                if flows.pop(name, None) is not None:
                    self._drop(name)
                continue
            flows[name] = flow
            if flow_before is None or flow_before.hops != flow.hops:
                self._place(flow)
            else:
                for link in self._links[name]:
                    self._flows_on[link][name] = flow
            if flow.receiver_limited or flow.sender_limited:
                self._limited[name] = flow
            else:
                self._limited.pop(name, None)
        if report.whole:
            self._drop_missing(flows, report)

    def _drop_missing(self, flows: dict[str, LiveFlow], report: Report) -> None:
        for name in [name for name in flows if name not in report.flows]:
            del flows[name]
            self._drop(name)

    def _place(self, flow: LiveFlow) -> None:
        """Add a flow to the links that it crosses."""
        self._unplace(flow.flow_id)
        links = dict.fromkeys(flow.hops, 1.0) if flow.hops else self._likely(flow.nic, flow.peer)
        self._links[flow.flow_id] = links
        for link in links:
            self._flows_on.setdefault(link, {})[flow.flow_id] = flow

    def _likely(self, nic: str, peer: str) -> dict[str, float]:
        """Return, by link, the probability that a flow between two NICs crosses it, given probed routes."""
        routes = {route.links for route in self._paths.paths(nic, peer).values() if route.complete}
        shares: dict[str, float] = {}
        for links in sorted(routes):
            for link in dict.fromkeys(links):
                shares[link] = shares.get(link, 0.0) + 1 / len(routes)
        return shares

    def _drop(self, name: str) -> None:
        self._limited.pop(name, None)
        self._unplace(name)

    def _unplace(self, name: str) -> None:
        for link in self._links.pop(name, {}):
            of_link = self._flows_on[link]
            del of_link[name]
            if not of_link:
                del self._flows_on[link]


class FlowTable(GlobalTable):
    """Passes the reports of `fabric.flows` to the `LiveFlows` of each shard."""

    topic = FLOWS

    def __init__(self, paths: Paths, has_nic: Callable[[str], bool]) -> None:
        self._paths, self._has_nic = paths, has_nic
        self._base: dict[str, LiveFlows] = {}
        self._views: dict[str, list[LiveFlows]] = {}
        self.refused = 0
        """Number of flows that were ignored as invalid."""

    def of(self, shard: str) -> LiveFlows:
        """Return a new view of a shard's flows; the caller advances it."""
        base = self._base.get(shard)
        view = LiveFlows(shard, self._paths) if base is None else base.copy()
        self._views.setdefault(shard, []).append(view)
        return view

    def forget(self, flows: LiveFlows) -> None:
        """Stop updating a view that `of` returned."""
        self._views[flows.shard] = [view for view in self._views[flows.shard] if view is not flows]

    def apply(self, record: FlowReports, append_ns: int) -> None:
        """Pass a record's flows to its shard's `LiveFlows`. Raises BadRecord if the record is invalid."""
        report, refused = report_of(record, self._has_nic)
        if refused:
            if not self.refused:
                log.warning("%s: left out: %s", self.topic.name, refused[0])
            self.refused += len(refused)
        shard = record["shard"]
        base = self._base.get(shard)
        if base is None:
            base = self._base[shard] = LiveFlows(shard, self._paths)
        base.take(report, append_ns)
        for flows in self._views.get(shard, ()):
            flows.take(report, append_ns)
