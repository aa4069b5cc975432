"""The ways that the simulated fleet's flows take and could take, as its hosts' flow reporters would tell
them.

In: a `Fleet`, the open flows, which links have a carrier. Out: `FlowRoutes` of each pair of NICs with flows, in
both directions: what the sender traces, and what the receiver traces of its answers. Source ports are those
that a real reporter would try. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.topology import Fleet
from producers.sim.workload import FLOW_PORT, SimFlow, address_of
from producers.trace.flow_routes import ACK, DATA, flow_candidate_ports

__all__ = ["SimFlowRoutes"]

Record = dict[str, Any]
Pair = tuple[int, int]
Hops = tuple[str, ...]

_FIRST_PORT: Final = 61_000


class SimFlowRoutes:
    """Every pair's ways. `count`: source ports tried for each; `most`: pairs that are told of."""

    def __init__(self, fleet: Fleet, shard: str, count: int, most: int) -> None:
        self._fleet, self._shard, self._count, self._most = fleet, shard, count, most
        self._ports: dict[Pair, set[int]] = {}
        """Pair with flows, the one that was first the first, to their ports."""
        self._due: dict[Pair, None] = {}
        """Directed pairs whose record may be another than was told."""
        self._told: dict[Pair, dict[tuple[str, int], tuple[Hops, bool, int]]] = {}
        """Directed pair to leg and port to links, whether they are all, since when (ns)."""

    def follow(self, flows: Iterable[SimFlow]) -> None:
        """Take the flows that are open now. Where there are more pairs than are told of, those without a flow
        go; where all have one, new ones are left out."""
        now: dict[Pair, set[int]] = {}
        for flow in flows:
            now.setdefault((flow.source, flow.destination), set()).add(flow.port)
        gone = iter([pair for pair in self._ports if pair not in now])
        for pair, ports in now.items():
            known = self._ports.get(pair)
            if known is None:
                if len(self._ports) >= self._most and not self._make_room(gone):
                    continue
                known = self._ports[pair] = set()
            if not ports <= known:
                self._ports[pair] = ports
                self._ask(pair)

    def retrace(self) -> None:
        """Take that links came or went: everything is traced again."""
        for pair in self._ports:
            self._ask(pair)

    def take(
        self, most: int, living: NDArray[np.bool_] | None, now_ns: int, dead: Collection[int]
    ) -> Iterator[tuple[str, Record | None]]:
        """Yield key and record (None: taken back) of what is to be told now, at most so many. `dead` NICs say
        nothing."""
        names = self._fleet.nic_ids
        due = list(islice(self._due, most))
        for pair in due:
            del self._due[pair]
        pairs = [pair for pair in due if pair[0] not in dead]
        for pair, traced in zip(pairs, self._traced(pairs, living), strict=True):
            key, told = f"{names[pair[0]]}>{names[pair[1]]}", self._told.get(pair)
            if not traced:
                if told is not None:
                    del self._told[pair]
                    yield key, None
                continue
            found = {
                way: (*now, told[way][2] if told is not None and told.get(way, ())[:2] == now else now_ns)
                for way, now in traced.items()
            }
            if found != told:
                self._told[pair] = found
                yield key, self._record(pair, found, now_ns)

    def _ask(self, pair: Pair) -> None:
        self._due[pair] = self._due[pair[::-1]] = None

    def _make_room(self, without_flow: Iterator[Pair]) -> bool:
        gone = next(without_flow, None)
        if gone is None:
            return False
        del self._ports[gone]
        self._ask(gone)
        return True

    def _traced(
        self, pairs: Sequence[Pair], living: NDArray[np.bool_] | None
    ) -> list[dict[tuple[str, int], tuple[Hops, bool]]]:
        """Return of each directed pair: leg and port to links and whether they are all."""
        found: list[dict[tuple[str, int], tuple[Hops, bool]]] = [{} for _ in pairs]
        ways = [
            (at, leg, port)
            for at, pair in enumerate(pairs)
            for leg, flows in ((DATA, pair), (ACK, pair[::-1]))
            for port in self._tried(flows)
        ]
        if not ways:
            return found
        ends = np.array(
            [
                (*pairs[at], port, FLOW_PORT) if leg == DATA else (*pairs[at], FLOW_PORT, port)
                for at, leg, port in ways
            ],
            np.int64,
        )
        nics, peers, ports, peer_ports = ends.T
        paths = self._fleet.paths(nics, peers, ports, peer_ports, living)
        names = self._fleet.link_ids
        links, start = [names[link] for link in paths.link.tolist()], paths.start.tolist()
        for (at, leg, port), begin, end, whole in zip(
            ways, start[:-1], start[1:], paths.reached.tolist(), strict=True
        ):
            found[at][leg, port] = (tuple(links[begin:end]), whole)
        return found

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
        self, pair: Pair, found: dict[tuple[str, int], tuple[Hops, bool, int]], now_ns: int
    ) -> Record:
        nic, peer = (self._fleet.nic_ids[each] for each in pair)
        rows = [
            {
                "leg": leg,
                "path": port,
                "peer_port": FLOW_PORT,
                "links": list(hops),
                "complete": whole,
                "since_ns": since_ns,
                "protocol": "UDP",
            }
            for (leg, port), (hops, whole, since_ns) in found.items()
        ]
        return {"nic": nic, "peer": peer, "shard": self._shard, "traced_ns": now_ns, "routes": rows}
