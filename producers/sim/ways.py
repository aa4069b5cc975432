"""The ways that the simulated fleet's flows take and could take, as its hosts' flow reporters would tell
them.

In: a `Fleet`, the open flows, which links have a carrier. Out: `FlowWays` of each pair of NICs with flows, in
both directions: what the sender traces, and what the receiver traces of its answers. Source ports are those
that a real reporter would try. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.topology import Fleet, Paths
from producers.sim.workload import FLOW_PORT, SimFlow, address_of
from producers.ways import ACK, DATA, candidate_ports

__all__ = ["SimWays"]

Record = dict[str, Any]
Pair = tuple[int, int]
Hops = tuple[str, ...]

_FIRST_PORT: Final = 61_000


class SimWays:
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

    def take(self, most: int, living: NDArray[np.bool_] | None, now_ns: int,
             dead: Collection[int]) -> Iterator[tuple[str, Record | None]]:  # fmt: skip
        """Yield key and record (None: taken back) of what is to be told now, at most so many. `dead` NICs say
        nothing."""
        names = self._fleet.nic_ids
        for pair in list(self._due)[:most]:
            del self._due[pair]
            nic, peer = pair
            if nic in dead:
                continue
            key, told = f"{names[nic]}>{names[peer]}", self._told.get(pair)
            found = self._find(pair, living, now_ns)
            if not found:
                if told is not None:
                    del self._told[pair]
                    yield key, None
            elif found != told:
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

    def _find(
        self, pair: Pair, living: NDArray[np.bool_] | None, now_ns: int
    ) -> dict[tuple[str, int], tuple[Hops, bool, int]]:
        nic, peer = pair
        told = self._told.get(pair, {})
        found = {}
        for leg, flows in ((DATA, pair), (ACK, pair[::-1])):
            ports = self._tried(flows)
            if not ports:
                continue
            if leg == DATA:
                paths = self._fleet.paths(nic, peer, ports, FLOW_PORT, living)
            else:
                paths = self._fleet.paths(nic, peer, FLOW_PORT, ports, living)
            for at, port in enumerate(ports):
                hops, whole = self._hops(paths, at), bool(paths.reached[at])
                before = told.get((leg, port))
                same = before is not None and before[:2] == (hops, whole)
                found[leg, port] = (hops, whole, before[2] if before is not None and same else now_ns)
        return found

    def _tried(self, pair: Pair) -> list[int]:
        ports = self._ports.get(pair)
        if ports is None:
            return []
        source, peer = pair
        tried = candidate_ports(address_of(source), address_of(peer), FLOW_PORT, self._count, _FIRST_PORT)
        return sorted({*ports, *tried})

    def _hops(self, paths: Paths, at: int) -> Hops:
        return tuple(self._fleet.link_ids[link] for link in paths.of(at).tolist())

    def _record(
        self, pair: Pair, found: dict[tuple[str, int], tuple[Hops, bool, int]], now_ns: int
    ) -> Record:
        nic, peer = (self._fleet.nic_ids[each] for each in pair)
        rows = [
            {"leg": leg, "port": port, "peer_port": FLOW_PORT, "hops": list(hops), "complete": whole,
             "since_ns": since_ns, "protocol": "UDP"}
            for (leg, port), (hops, whole, since_ns) in found.items()
        ]  # fmt: skip
        return {"nic": nic, "peer": peer, "shard": self._shard, "traced_ns": now_ns, "ways": rows}
