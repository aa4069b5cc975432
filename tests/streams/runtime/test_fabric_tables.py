"""The tables of a worker: their positions, and the order in which they were read."""

from __future__ import annotations

from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import FLOWS, INVENTORY
from schemas.topology import Topology, TopologyFile
from streams.runtime.fabric_tables import FabricTables
from tests.records import make, make_part


def nic(offset: int, name: str, speed_bps: int | None = None) -> Message:
    record = make("Nic", nic=name, host=name.split("/")[0], shard="fabric", speed_bps=speed_bps)
    return Message(offset, INVENTORY.name, 0, offset, name, codec.encode(INVENTORY.type, record))


def flows(offset: int, host: str) -> Message:
    flow = make_part(
        "FlowReports", "Flow", flow_id=f"{host}/b/qp:d:1:1", state="OPEN", nic=f"{host}/eth0", peer="h0/eth0"
    )
    record = make("FlowReports", host=host, shard="fabric", flows=[flow], whole=True)
    return Message(offset, FLOWS.name, 1, offset, host, codec.encode(FLOWS.type, record))


def open_flows(tables: FabricTables) -> int:
    view = tables.flows.of("fabric")
    view.advance(10)
    tables.flows.forget(view)
    return view.count()


def test_moves_keep_the_order_in_which_topics_were_read() -> None:
    """A report of a NIC that the inventory does not have is refused: the order matters."""
    tables = FabricTables()
    tables.take(nic(0, "h0/eth0"))
    moves = tables.moves([INVENTORY.name, FLOWS.name])
    of_flows = tables.moves([FLOWS.name])
    for message in (nic(1, "h1/eth0"), nic(2, "h2/eth0"), flows(0, "h1"), nic(3, "h3/eth0")):
        assert tables.take(message) is None
    assert moves == [((INVENTORY.name, 0), 3), ((FLOWS.name, 1), 1), ((INVENTORY.name, 0), 4)]
    assert of_flows == [((FLOWS.name, 1), 1)], "another topic is not followed"
    assert tables.positions == {(INVENTORY.name, 0): 4, (FLOWS.name, 1): 1}
    assert open_flows(tables) == 1
    moves.clear()
    tables.forget_moves(moves)
    tables.take(nic(4, "h4/eth0"))
    tables.take(flows(1, "h4"))
    assert moves == []
    assert of_flows == [((FLOWS.name, 1), 2)], "moves of one place are merged"
    other = FabricTables()
    for message in (nic(0, "h0/eth0"), flows(0, "h1"), nic(1, "h1/eth0")):
        other.take(message)
    assert open_flows(other) == 0


def test_a_message_that_is_refused_counts_for_the_position() -> None:
    tables = FabricTables()
    refused = tables.take(Message(0, INVENTORY.name, 0, 7, "h0/eth0", b"nonsense"))
    assert refused is not None
    assert tables.positions == {(INVENTORY.name, 0): 8}


def test_the_fastest_rate_is_that_of_the_topology_file_else_of_the_nics() -> None:
    tables = FabricTables()
    assert tables.fastest_bps() == 0
    tables.take(nic(0, "h0/eth0", 10**11))
    assert tables.fastest_bps() == 10**11
    cable = {"ends": ["leaf1:p1", "spine1:p1"], "rate_bps": 4 * 10**11}
    tables.topology = Topology(TopologyFile.model_validate({"links": [cable]}))
    assert tables.fastest_bps() == 4 * 10**11
