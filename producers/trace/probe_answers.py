"""Keeps the source ports of the probers that probe this NIC, so that this NIC's answers to them are traced.

A peer that stopped probing may be cut off, so the answers to it are traced for some time longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from native.core.probe import Engine, Prober
from producers.trace.probe_pair import LegPort
from producers.trace.tracer import TracedFlow
from schemas.records import Leg, Nic

Wanted = dict[str, dict[LegPort, TracedFlow]]
"""The paths to trace to each peer."""

RESPONDER: Final = -1
"""Number that stands for the socket that answers probes."""
PROBER_TIMEOUT_S: Final = 600.0
UNANNOUNCED_KEEP_S: Final = 60.0
"""Answers to an unannounced port are traced for this long after its last probe."""


@dataclass(slots=True)
class _Peer:
    probed_s: float
    """Time of the peer's last probe to us."""
    unannounced: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Unannounced ports from which the peer probes: address and time of the last probe of each."""


class ProbeAnswers:
    """The paths of the answers that one engine's responder sends, which must be traced."""

    def __init__(self, engine: Engine) -> None:
        self.traced_s: dict[tuple[str, int], float] = {}
        """Time at which a peer last traced us, by its name and port."""
        self._engine = engine
        self._peers: dict[str, _Peer] = {}
        self._flows: Wanted = {}

    def refresh(self, alive: Mapping[str, Nic], nic_of: Mapping[str, str], now_s: float) -> Wanted:
        """Return, by peer, the answers to trace. `nic_of` maps addresses to names of peers in `alive`."""
        former, self._flows = self._flows, {}
        self.traced_s = {}
        for prober in self._engine.probers():
            name = nic_of.get(prober.address)
            if name is not None:
                self._add_prober(name, prober, alive[name], now_s)
        for name, peer in self._peers.items():
            record = alive.get(name)
            if record is not None and now_s - peer.probed_s <= PROBER_TIMEOUT_S:
                self._add_former(name, peer, record, former.get(name, {}), now_s)
        return self._flows

    def forget(self, name: str) -> None:
        """Drop the peer `name` when neither NIC probes the other any more."""
        self._peers.pop(name, None)

    def _add_prober(self, name: str, prober: Prober, record: Nic, now_s: float) -> None:
        """Add the announced ports of a NIC that probes this one, and any unannounced port that it uses.

        A port that is neither announced nor used for probes only carries the peer's traces.
        """
        peer = self._peers.setdefault(name, _Peer(now_s))
        peer.probed_s = now_s
        announced: Sequence[int] = record["path_ports"] or [prober.port]
        if prober.probed_s is not None and prober.port not in announced:
            peer.unannounced[prober.port] = (prober.address, now_s - prober.probed_s)
        flows = self._flows.setdefault(name, {})
        last = flows.get((Leg.ANSWER, announced[-1]))
        if last is None or last.target[0] != prober.address:
            for port in announced:
                flows[Leg.ANSWER, port] = _answer(name, prober.address, port)
        if prober.traced_s is not None:
            self.traced_s[name, prober.port] = now_s - prober.traced_s

    def _add_former(
        self, name: str, peer: _Peer, record: Nic, former: Mapping[LegPort, TracedFlow], now_s: float
    ) -> None:
        """Add the answers to a peer that probed this NIC until recently."""
        ports = record["path_ports"] or [port for _, port in former]
        flows = self._flows.setdefault(name, {})
        for port, (address, last_s) in list(peer.unannounced.items()):
            if now_s - last_s > UNANNOUNCED_KEEP_S or port in ports:
                del peer.unannounced[port]
            else:
                flows[Leg.ANSWER, port] = _answer(name, address, port)
        for key, flow in former.items():
            if key[1] in ports:
                flows.setdefault(key, flow)
        if not flows:
            del self._flows[name]


def _answer(peer: str, address: str, port: int) -> TracedFlow:
    return TracedFlow(Leg.ANSWER, peer, port, (address, port), RESPONDER)
