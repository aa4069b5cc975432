"""Keeps the routes of the answers that this NIC sends to peers' flows, from the peers' records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from producers.trace.flow_pair import FlowRouteKey, shape_of
from producers.trace.published_rows import REPUBLISH_S
from schemas.records import FlowLeg, FlowProtocol, FlowRoutes

ROCE_PORT: Final = 4791
"""Destination port of RoCEv2 data and acknowledgements. The source port is chosen by each end."""
SILENT_PEER_S: Final = 3 * REPUBLISH_S
"""Answers to a peer are no longer traced after this time without a record from its reporter."""


class RequestedAcks:
    """Routes of one NIC's answers to flows, by peer, each with the protocol that switches see."""

    def __init__(self, max_routes: int) -> None:
        self._max_routes = max_routes
        self._by_peer: dict[str, tuple[float, dict[FlowRouteKey, FlowProtocol]]] = {}

    def take(self, peer: str, record: FlowRoutes | None, now_s: float) -> Mapping[FlowRouteKey, FlowProtocol]:
        """Read a peer's record of its flows to this NIC; return the routes of the answers to these flows.

        RoCE is left out, because its acknowledgements use the responder queue pair's own source port.
        """
        needed: dict[FlowRouteKey, FlowProtocol] = {}
        for row in () if record is None else record["routes"]:
            shape = shape_of(row["protocol"])
            is_roce = row["peer_port"] == ROCE_PORT and shape == FlowProtocol.UDP
            if row["leg"] == FlowLeg.DATA and not is_roce and len(needed) < self._max_routes:
                needed[FlowRouteKey(FlowLeg.ACK, peer, row["path"], row["peer_port"])] = shape
        self._by_peer.pop(peer, None)
        if needed:
            self._by_peer[peer] = (now_s, needed)
        return needed

    def by_peer(self, now_s: float) -> dict[str, Mapping[FlowRouteKey, FlowProtocol]]:
        """Return, by peer, the routes of the answers; drop the peers that have not published recently."""
        self._by_peer = {
            peer: entry for peer, entry in self._by_peer.items() if now_s - entry[0] <= SILENT_PEER_S
        }
        return {peer: needed for peer, (_, needed) in self._by_peer.items()}
