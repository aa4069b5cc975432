"""The global tables that every worker keeps in memory, in one object that runners pass to stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS, refusal
from streams.runtime.flow_table import FlowTable
from streams.runtime.live_config import LiveConfig
from streams.runtime.pipeline_constants import HOLDOVER_S, WINDOW_NS
from streams.runtime.route_table import RouteTable, link_rate_bps
from streams.runtime.tables import ClockTable, GlobalTable, Inventory


class FabricTables:
    """The topology, and the tables filled from whole topics: inventory, clocks, routes, configuration, flows.

    `positions` maps each topic and partition to the next offset that the tables will take. The tables depend
    on the order in which topics are read: a report of a NIC that the inventory lacks is refused. So a replay
    reads in the order that a list of `moves` recorded.
    """

    def __init__(
        self,
        default_shard: str = "fabric",
        topology: Topology | None = None,
        registry: codec.Registry | None = None,
        *,
        holdover_s: float = HOLDOVER_S,
        window_ns: int = WINDOW_NS,
    ) -> None:
        self.inventory = Inventory(default_shard)
        self.clocks = ClockTable(self.inventory, holdover_s, window_ns)
        self.routes = RouteTable()
        self.config = LiveConfig()
        self.flows = FlowTable(self.routes, self.inventory.members.__contains__)
        self.topology = topology if topology is not None else Topology()
        self.positions: dict[Place, int] = {}
        self._moves: dict[str, list[list[tuple[Place, int]]]] = {}
        """Maps topic to the lists to which changes of its positions are added."""
        self._fastest: tuple[Topology, int] = (Topology(), 0)
        """The topology, and the rate of its fastest link, bit/s."""
        self._registry = registry
        self._by_topic: dict[str, GlobalTable] = {table.topic.name: table for table in self.tables}

    @property
    def tables(self) -> Sequence[GlobalTable]:
        """The tables that are filled from topics."""
        return self.inventory, self.clocks, self.routes, self.config, self.flows

    def moves(self, topics: Iterable[str]) -> list[tuple[Place, int]]:
        """Return a list to which each later change of these topics' positions is added, with its partition.

        The caller empties the list. A topic without a table has no positions here.
        """
        moves: list[tuple[Place, int]] = []
        for topic in topics:
            self._moves.setdefault(topic, []).append(moves)
        return moves

    def forget_moves(self, moves: list[tuple[Place, int]]) -> None:
        """Stop adding changes of positions to a list that `moves` returned."""
        for topic, lists in self._moves.items():
            self._moves[topic] = [other_moves for other_moves in lists if other_moves is not moves]

    def take(self, message: Message) -> codec.BadRecord | None:
        """Apply one message; return the error if it was refused, else None."""
        place, position = message.place, message.offset + 1
        self.positions[place] = position
        move = (place, position)
        for moves in self._moves.get(message.topic, ()):
            if moves and moves[-1][0] == place:
                moves[-1] = move
            else:
                moves.append(move)
        table = self._by_topic[message.topic]
        try:
            table.take_message(message, self._registry)
        except DATA_ERRORS as error:
            return refusal(error)
        return None

    def link_rate_bps(self, link: str) -> int:
        """Return the rate of a directed link, bit/s; 0 if neither the topology file nor a NIC gives it."""
        return link_rate_bps(link, self.topology, self.inventory.speeds_bps)

    def fastest_bps(self) -> int:
        """Return the rate of the topology's fastest link, else of the fastest NIC, bit/s; 0 if unknown."""
        topology, rate_bps = self._fastest
        if topology is not self.topology:
            topology = self.topology
            rate_bps = max((topology.rate_bps(link) for link in topology.links()), default=0)
            self._fastest = (topology, rate_bps)
        return rate_bps or max(self.inventory.speeds_bps.values(), default=0)
