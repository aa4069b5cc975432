"""Publishes the routes that the simulated fleet's flows take and could take, like flow reporters. Pure.

The `FlowRoutes` of each pair of NICs with flows contain both directions: the sender's traces and the
receiver's traces of its answers. Source ports are those that a real reporter would try.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.topology import Fleet
from producers.sim.workload import FLOW_PORT, SimFlow, address_of
from producers.trace.candidate_ports import flow_candidate_ports
from schemas.records import FlowLeg, FlowProtocol, FlowRoute, FlowRoutes

Pair = tuple[int, int]
Links = tuple[str, ...]

_FIRST_PORT: Final = 61_000
_MAX_FORMER_PORTS: Final = 32
"""Ports that a pair's flows used before and that are traced further, as real reporters do."""


class SimFlowRoutes:
    """The possible routes between NICs with flows. `count`: candidate ports; `limit`: published pairs."""

    def __init__(self, fleet: Fleet, shard: str, count: int, limit: int) -> None:
        self._fleet, self._shard, self._count, self._max_pairs = fleet, shard, count, limit
        self._ports: dict[Pair, dict[int, None]] = {}
        """Pairs with flows, oldest first, to the ports that these have used and use, the last used last."""
        self._due: dict[Pair, None] = {}
        """Directed pairs whose record may have changed."""
        self._published: dict[Pair, dict[tuple[FlowLeg, int], tuple[Links, bool, int]]] = {}
        """By directed pair: links, completeness and time of the last change (ns) by leg and port."""

    def follow(self, flows: Iterable[SimFlow]) -> None:
        """Update the pairs and ports from the open flows.

        Beyond the limit, pairs without flows are dropped first; then new pairs are left out.
        """
        now: dict[Pair, set[int]] = {}
        for flow in flows:
            now.setdefault((flow.source, flow.destination), set()).add(flow.port)
        idle_pairs = iter([pair for pair in self._ports if pair not in now])
        for pair, ports in now.items():
            pair_ports = self._ports.get(pair)
            if pair_ports is None:
                if len(self._ports) >= self._max_pairs and not self._evict_pair(idle_pairs):
                    continue
                pair_ports = self._ports[pair] = {}
            if not ports <= pair_ports.keys():
                former_ports = [port for port in pair_ports if port not in ports]
                self._ports[pair] = dict.fromkeys([*former_ports[-_MAX_FORMER_PORTS:], *sorted(ports)])
                self._mark_due(pair)

    def retrace(self) -> None:
        """Trace the routes of all pairs again after links came up or went down."""
        for pair in self._ports:
            self._mark_due(pair)

    def take(
        self, limit: int, living: NDArray[np.bool_] | None, now_ns: int, dead: Collection[int]
    ) -> Iterator[tuple[str, FlowRoutes | None]]:
        """Yield key and record (None: a tombstone) of up to `limit` due pairs; none for NICs in `dead`."""
        names = self._fleet.nic_ids
        due = list(islice(self._due, limit))
        for pair in due:
            del self._due[pair]
        pairs = [pair for pair in due if pair[0] not in dead]
        for pair, traced in zip(pairs, self._traced(pairs, living), strict=True):
            key, published = f"{names[pair[0]]}>{names[pair[1]]}", self._published.get(pair)
            if not traced:
                if published is not None:
                    del self._published[pair]
                    yield key, None
                continue
            routes = {
                key: (
                    *now,
                    published[key][2]
                    if published is not None and published.get(key, ())[:2] == now
                    else now_ns,
                )
                for key, now in traced.items()
            }
            if routes != published:
                self._published[pair] = routes
                yield key, self._record(pair, routes, now_ns)

    def _mark_due(self, pair: Pair) -> None:
        self._due[pair] = self._due[pair[::-1]] = None

    def _evict_pair(self, without_flow: Iterator[Pair]) -> bool:
        idle_pair = next(without_flow, None)
        if idle_pair is None:
            return False
        del self._ports[idle_pair]
        self._mark_due(idle_pair)
        return True

    def _traced(
        self, pairs: Sequence[Pair], living: NDArray[np.bool_] | None
    ) -> list[dict[tuple[FlowLeg, int], tuple[Links, bool]]]:
        """Return the links and the completeness of each directed pair's routes, by leg and port."""
        routes_of_pairs: list[dict[tuple[FlowLeg, int], tuple[Links, bool]]] = [{} for _ in pairs]
        keys = [
            (at, leg, port)
            for at, pair in enumerate(pairs)
            for leg, flows in ((FlowLeg.DATA, pair), (FlowLeg.ACK, pair[::-1]))
            for port in self._tried(flows)
        ]
        if not keys:
            return routes_of_pairs
        ends = np.array(
            [
                (*pairs[at], port, FLOW_PORT) if leg == FlowLeg.DATA else (*pairs[at], FLOW_PORT, port)
                for at, leg, port in keys
            ],
            np.int64,
        )
        nics, peers, ports, peer_ports = ends.T
        paths = self._fleet.paths(nics, peers, ports, peer_ports, living)
        names = self._fleet.link_ids
        links, start = [names[link] for link in paths.link.tolist()], paths.start.tolist()
        for (at, leg, port), begin, end, is_complete in zip(
            keys, start[:-1], start[1:], paths.reached.tolist(), strict=True
        ):
            routes_of_pairs[at][leg, port] = (tuple(links[begin:end]), is_complete)
        return routes_of_pairs

    def _tried(self, pair: Pair) -> list[int]:
        ports = self._ports.get(pair)
        if ports is None:
            return []
        source, peer = pair
        tried = flow_candidate_ports(
            address_of(source), address_of(peer), FLOW_PORT, self._count, _FIRST_PORT
        )
        return sorted({*ports, *tried})

    def _record(
        self, pair: Pair, routes: dict[tuple[FlowLeg, int], tuple[Links, bool, int]], now_ns: int
    ) -> FlowRoutes:
        nic, peer = (self._fleet.nic_ids[number] for number in pair)
        rows: list[FlowRoute] = [
            {
                "leg": leg,
                "path": port,
                "peer_port": FLOW_PORT,
                "links": list(links),
                "complete": is_complete,
                "since_ns": since_ns,
                "protocol": FlowProtocol.UDP,
            }
            for (leg, port), (links, is_complete, since_ns) in routes.items()
        ]
        return {"nic": nic, "peer": peer, "shard": self._shard, "traced_ns": now_ns, "routes": rows}
