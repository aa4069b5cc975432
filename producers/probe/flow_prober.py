"""Probes the routes of a NIC's live flows at a configured rate, in addition to the regular probes.

The live flows come from the host's `FlowReports`. The prober adds probes to the engine's schedule, and the
flows' destinations to the peers. It requests spare source ports for routes that no port takes.
`flow_targets.py` plans the probes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from native.core.probe import Engine
from producers.probe.flow_targets import (
    NO_FLOW_TARGETS,
    FlowTargets,
    PathKey,
    PeerRoute,
    plan_flow_targets,
)
from producers.probe.schedule import ScheduleFollower
from producers.settings import ProbeSettings
from producers.trace.probe_routes import ProbeRouteTracer
from schemas.records import Flow, FlowReports, FlowState

LIVE_S: Final = 10.0
"""A flow that has sent nothing for this long is not live; a flow behind a dead link can be moved in less."""
REPORT_TIMEOUT_S: Final = 5.0
"""The flows of a host are unknown after this time without a report."""
MAX_ROUTES: Final = 64
"""Routes probed per NIC; those of the fastest flows come first."""
PEER_KEEP_S: Final = 60.0
"""The destination of a flow stays a peer for this long after the last flow to it."""
REFRESH_S: Final = 1.0
"""The plan is renewed after this time even if its inputs are unchanged, as traces may have changed."""
MS_PER_S: Final = 1e3


@dataclass(slots=True)
class _Flow:
    peer: str
    port: int
    links: tuple[str, ...]
    rate_bps: float
    sent_s: float


class LiveFlows:
    """The live flows of one NIC, from its host's reports. Pure; the caller passes the time, in s."""

    def __init__(self, nic: str) -> None:
        self.nic = nic
        self._flows: dict[str, _Flow] = {}
        self._reported_s = float("-inf")

    def update(self, record: FlowReports, now_s: float) -> None:
        """Apply one `FlowReports` record of the NIC's host, received at `now_s`."""
        self._reported_s = now_s
        flows = {flow["flow_id"]: flow for flow in record["flows"] if self._is_own(flow)}
        listed = list(self._flows) if record["whole"] else [flow["flow_id"] for flow in record["flows"]]
        for name in listed:
            if name not in flows:
                self._flows.pop(name, None)
        for name, flow in flows.items():
            self._flows[name] = self._updated(self._flows.get(name), flow, now_s)

    def routes(self, now_s: float) -> tuple[PeerRoute, ...]:
        """Return the sorted routes of the live flows; if above `MAX_ROUTES`, those of the fastest flows."""
        if now_s - self._reported_s > REPORT_TIMEOUT_S:
            return ()
        live = [flow for flow in self._flows.values() if flow.links and now_s - flow.sent_s <= LIVE_S]
        live.sort(key=lambda flow: -flow.rate_bps)
        routes = dict.fromkeys(PeerRoute(flow.peer, flow.links) for flow in live)
        return tuple(sorted(list(routes)[:MAX_ROUTES]))

    def _is_own(self, flow: Flow) -> bool:
        return bool(flow["nic"] == self.nic and flow["peer"] and flow["state"] == FlowState.OPEN)

    @staticmethod
    def _updated(before: _Flow | None, flow: Flow, now_s: float) -> _Flow:
        links = tuple(flow["links"])
        if (
            before is not None
            and not links
            and (before.peer, before.port) == (flow["peer"], flow["source_port"])
        ):
            links = before.links  # a broken route must still be probed
        sent_s = now_s if before is None or flow["rate_bps"] > 0 else before.sent_s
        return _Flow(flow["peer"], flow["source_port"], links, flow["rate_bps"], sent_s)


class FlowProber:
    """Adds probes on the routes of live flows to one engine. Call `refresh` several times per second."""

    def __init__(
        self,
        engine: Engine,
        settings: ProbeSettings,
        tracer: ProbeRouteTracer,
        schedule: ScheduleFollower,
        nic: str,
    ) -> None:
        self.engine, self.settings, self.tracer, self.schedule = engine, settings, tracer, schedule
        self.flows = LiveFlows(nic)
        self.targets: FlowTargets = NO_FLOW_TARGETS
        self.peers: frozenset[str] = frozenset()
        """Peers of live flows, and of flows that ended less than `PEER_KEEP_S` ago."""
        self._used_s: dict[str, float] = {}
        self._known: dict[PathKey, tuple[str, ...]] = {}
        self._inputs: tuple[Any, ...] = ()
        self._refresh_at_s = 0.0
        self._applied: tuple[Any, ...] = ()
        """Plan, ports and peers from which the engine's present flow probes were computed."""

    @property
    def status(self) -> str:
        """Return text on the flow probes for the service's status line; empty if there are none."""
        targets = self.targets
        if not targets.probes:
            return ""
        routes = len(targets.rates_pps())
        return f"{routes} flow routes at {targets.rate_pps:.0f}/s each, {targets.pps:.0f}/s more, "

    def on_report(self, host: str, record: FlowReports | None, append_ms: int) -> None:
        """Apply a record of the flow topic, which comes from the NIC's own host."""
        if record is not None:
            self.flows.update(record, time.monotonic())

    def refresh(self, now_s: float) -> bool:
        """Update the engine's flow probes; return whether `peers` changed."""
        routes = self.flows.routes(now_s)
        peers_changed = self._update_peers(routes, now_s)
        inputs = (routes, self.engine.all_ports, self._engine_peers(), self.schedule.is_active)
        if inputs == self._inputs and (not routes or now_s < self._refresh_at_s):
            return peers_changed
        self._inputs, self._refresh_at_s = inputs, now_s + REFRESH_S
        if not routes:
            self._apply(NO_FLOW_TARGETS)
            return peers_changed
        self._update_known_routes()
        regular_ports = set(self.engine.path_ports)
        regular = {path: links for path, links in self._known.items() if path[1] in regular_ports}
        self.tracer.ports.serve_routes(routes, regular, now_s)
        wanted_pps = MS_PER_S / self.settings.flow_gap_ms
        self._apply(
            plan_flow_targets(routes, self._known, self._base_rates_pps(), wanted_pps, self.settings.flow_pps)
        )
        return peers_changed

    def _engine_peers(self) -> tuple[str, ...]:
        return tuple(peer.nic for peer in self.engine.peers)

    def _update_peers(self, routes: tuple[PeerRoute, ...], now_s: float) -> bool:
        self._used_s.update(dict.fromkeys((route.peer for route in routes), now_s))
        peers = frozenset(name for name, last_s in self._used_s.items() if now_s - last_s <= PEER_KEEP_S)
        if peers == self.peers:
            return False
        self.peers, self._used_s = peers, {name: self._used_s[name] for name in peers}
        return True

    def _update_known_routes(self) -> None:
        """Merge the newest traces into the known routes.

        A path whose trace ends early, for example at a dead link, keeps its last known route. Otherwise the
        probes would stop crossing a link just when it dies.
        """
        peers = set(self._engine_peers())
        self._known = {
            path: links
            for path, links in (self._known | self.tracer.known_routes()).items()
            if path[0] in peers and path[1] in self.engine.all_ports
        }

    def _base_rates_pps(self) -> dict[PathKey, float]:
        """Return, by path, the rate of the regular probes alone, probes per second."""
        scheduled = self.schedule.rates_pps()
        if scheduled:
            return scheduled
        settings = self.settings
        per_pair = 2 if settings.spacing_ns else 1
        paths = [(name, port) for name in self._engine_peers() for port in self.engine.path_ports]
        total_pps = settings.rate_pps * (1 + settings.singles) / (per_pair + settings.singles)
        return dict.fromkeys(paths, total_pps / max(1, len(paths)))

    def _apply(self, targets: FlowTargets) -> None:
        inputs = (targets, self.engine.all_ports, self._engine_peers())
        if inputs != self._applied:
            self._applied, self.targets = inputs, targets
            self.engine.set_flow_probing(targets.slot_ns, targets.per_slot, targets.probes)
