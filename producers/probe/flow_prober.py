"""Has a NIC's probes cross the ways of its live flows as often as asked, beside what goes to all links.

In: the `FlowReports` of the NIC's own host, what is known of the probes' paths, the turns that are taken
anyway. Out: aims of the engine, ports for ways that no port in use goes, peers that flows go to. What is
aimed at stands in `aims.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from native.core.probe import Engine
from producers.probe.flow_targets import NO_FLOW_TARGETS, FlowTargets, PeerRoute, PathKey, plan_flow_targets
from producers.probe.schedule import ScheduleFollower
from producers.settings import ProbeSettings
from producers.trace.probe_routes import ProbeRouteTracer

__all__ = ["FlowProber", "LiveFlows"]

Record = dict[str, Any]

LIVE_S: Final = 10.0
"""A flow that has sent nothing for so long is not live: one that is stuck behind a dead link has time to be
moved."""
SILENT_S: Final = 5.0
"""Flows of a host that has not reported for so long are not known."""
MOST_WAYS: Final = 64
"""Of a NIC: those of the fastest flows."""
PEER_KEEP_S: Final = 60.0
"""How long a peer of flows stays a peer after the last of them."""
AGAIN_S: Final = 1.0
"""Between two looks at what did not change."""


@dataclass(slots=True)
class _Flow:
    peer: str
    port: int
    links: tuple[str, ...]
    rate_bps: float
    sent_s: float


class LiveFlows:
    """The live flows of one NIC, by its host's reports. Pure; times are the caller's."""

    def __init__(self, nic: str) -> None:
        self.nic = nic
        self._flows: dict[str, _Flow] = {}
        self._heard_s = float("-inf")

    def take(self, record: Record, now_s: float) -> None:
        """Take one `FlowReports` of the NIC's host."""
        self._heard_s = now_s
        flows = {
            flow["flow_id"]: flow
            for flow in record["flows"]
            if flow["nic"] == self.nic and flow["peer"] and flow["state"] == "OPEN"
        }
        for name in (
            [each["flow_id"] for each in record["flows"]] if not record["whole"] else list(self._flows)
        ):
            if name not in flows:
                self._flows.pop(name, None)
        for name, flow in flows.items():
            before, links = self._flows.get(name), tuple(flow["links"])
            same = before is not None and (before.peer, before.port) == (flow["peer"], flow["source_port"])
            if before is not None and same and not links:
                links = before.links  # a way that is broken just now is looked at all the more
            sent_s = now_s if before is None or flow["rate_bps"] > 0 else before.sent_s
            self._flows[name] = _Flow(flow["peer"], flow["source_port"], links, flow["rate_bps"], sent_s)

    def ways(self, now_s: float) -> tuple[PeerRoute, ...]:
        """Return the ways of the flows that are live, in order; of too many those of the fastest flows."""
        if now_s - self._heard_s > SILENT_S:
            return ()
        live = [flow for flow in self._flows.values() if flow.links and now_s - flow.sent_s <= LIVE_S]
        live.sort(key=lambda flow: -flow.rate_bps)
        ways = dict.fromkeys(PeerRoute(flow.peer, flow.links) for flow in live)
        return tuple(sorted(list(ways)[:MOST_WAYS]))


class FlowProber:
    """The aims of one engine. `keep` is to be called several times a second."""

    def __init__(
        self, engine: Engine, settings: ProbeSettings, paths: ProbeRouteTracer, turns: ScheduleFollower, nic: str
    ) -> None:
        self.engine, self.settings, self.paths, self.turns = engine, settings, paths, turns
        self.flows = LiveFlows(nic)
        self.aims: FlowTargets = NO_FLOW_TARGETS
        self.peers: frozenset[str] = frozenset()
        """Whom live flows go to, and went to until lately."""
        self._peers_s: dict[str, float] = {}
        self._known: dict[PathKey, tuple[str, ...]] = {}
        self._seen: tuple[Any, ...] = ()
        self._again_s = 0.0
        self._set: tuple[Any, ...] = ()
        """What the engine's aims were made of."""

    @property
    def says(self) -> str:
        """For the status line; empty where nothing is aimed at."""
        aims = self.aims
        if not aims.shots:
            return ""
        return f"{len(aims.rates_pps())} ways of flows by {aims.pps:.0f}/s, each {aims.pace_pps:.0f}/s, "

    def take(self, host: str, record: Record | None, append_ms: int) -> None:
        """Take a message of `fabric.flows` of the NIC's host."""
        if record is not None:
            self.flows.take(record, time.monotonic())

    def keep(self, now_s: float) -> bool:
        """Keep the engine's aims at the ways of the flows of now; return whether `peers` are others."""
        ways = self.flows.ways(now_s)
        peers = self._take_peers(ways, now_s)
        seen = (ways, self.engine.all_ports, tuple(peer.nic for peer in self.engine.peers), self.turns.taken)
        if (not ways and seen == self._seen) or (seen == self._seen and now_s < self._again_s):
            return peers
        self._seen, self._again_s = seen, now_s + AGAIN_S
        if not ways:
            self._aim(NO_FLOW_TARGETS)
            return peers
        self._know()
        ports = set(self.engine.path_ports)
        self.paths.serve(ways, {shot: way for shot, way in self._known.items() if shot[1] in ports}, now_s)
        pace_pps = 1e3 / self.settings.flow_gap_ms
        self._aim(plan_flow_targets(ways, self._known, self._anyway_pps(), pace_pps, self.settings.flow_pps))
        return peers

    def _take_peers(self, ways: tuple[PeerRoute, ...], now_s: float) -> bool:
        self._peers_s.update(dict.fromkeys((way.peer for way in ways), now_s))
        peers = frozenset(name for name, last_s in self._peers_s.items() if now_s - last_s <= PEER_KEEP_S)
        if peers == self.peers:
            return False
        self.peers, self._peers_s = peers, {name: self._peers_s[name] for name in peers}
        return True

    def _know(self) -> None:
        """Take what is known of paths by now. One whose trace ends early, as where a link died, is believed
        to go where it went, so that aims do not leave a link because it is dead."""
        asked = {peer.nic for peer in self.engine.peers}
        self._known = {
            shot: links
            for shot, links in (self._known | self.paths.known()).items()
            if shot[0] in asked and shot[1] in self.engine.all_ports
        }

    def _anyway_pps(self) -> dict[PathKey, float]:
        """Return (peer, port) to looks a second without aims."""
        planned = self.turns.rates_pps()
        if planned:
            return planned
        settings, names = self.settings, [peer.nic for peer in self.engine.peers]
        pair = 2 if settings.spacing_ns else 1
        shots = [(name, port) for name in names for port in self.engine.path_ports]
        looks_pps = settings.rate_pps * (1 + settings.singles) / (pair + settings.singles)
        return dict.fromkeys(shots, looks_pps / max(1, len(shots)))

    def _aim(self, aims: FlowTargets) -> None:
        of = (aims, self.engine.all_ports, tuple(peer.nic for peer in self.engine.peers))
        if of != self._set:
            self._set, self.aims = of, aims
            self.engine.set_flow_probing(aims.turn_ns, aims.per_turn, aims.shots)
