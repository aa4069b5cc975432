"""Wiring against rails and the topology file: one alert a cause, over once it is mended."""

from __future__ import annotations

from typing import Any

import pytest

from producers.sim.setup import topology_file
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from producers.trace.route_names import NamedPath, name_path
from schemas import codec
from schemas.kafka.message import Message
from schemas.records import Leg, PathSource
from schemas.topics import ALERTS, INVENTORY, PATHS
from schemas.topology import Topology, TopologyFile, split_end
from streams.alerts.ordered_inputs import AlertInputs
from streams.alerts.wiring import Wiring
from streams.runtime.route_table import pair_key

S = 1_000_000_000
T0 = 1_760_000_000 * S
FLEET = Fleet(Shape(hosts=4, hosts_per_rack=4, spines=2, nics_per_host=4, rails=4), 1)


class Traced:
    """A railed fleet, traced by its hosts. `swap`: two NICs with swapped cables."""

    def __init__(self, file: TopologyFile | None = None) -> None:
        self.topology = Topology(file) if file is not None else Topology()
        self.inputs = AlertInputs(topology=self.topology)
        self.at_ns = T0
        self.offset = 0
        self.swaps: dict[str, str] = {}
        self.out: list[dict[str, Any]] = []
        self.messages: list[Message] = []
        for nic, name in enumerate(FLEET.nic_ids):
            host, device = name.split("/")
            self.put(INVENTORY, name, {
                "nic": name, "host": host, "device": device, "shard": "fabric",
                "rail": int(FLEET.nic_rail[nic]), "rack": None, "addresses": ["10.0.0.1"], "probe_port": 9319,
                "clock": f"{host}/system", "stamp": "KERNEL", "speed_bps": None, "mtu_bytes": None, "run": 1,
                "since_ns": 0, "announced_ns": 0, "capabilities": [], "path_ports": [], "first_hop": None,
            })  # fmt: skip

    def put(self, topic: Any, key: str, record: dict[str, Any] | None) -> None:
        value = None if record is None else codec.encode(topic.record, record)
        self.offset += 1
        self.messages.append(Message(self.at_ns, topic.name, 0, self.offset, key, value))
        self.inputs.add(self.messages[-1])

    def wait(self, seconds: float) -> Traced:
        self.at_ns += round(seconds * S)
        self.out += [record for _, record in self.inputs.evaluate(self.at_ns)]
        for record in self.out:
            codec.encode(ALERTS.record, record)
        return self

    def trace(self, *nics: str) -> Traced:
        """Let NICs, or all, trace their ways to two peers."""
        for name in nics or FLEET.nic_ids:
            at = FLEET.nic_index[name]
            for peer in ((at + 4) % FLEET.nics, (at + 5) % FLEET.nics):
                self.put(PATHS, pair_key(name, FLEET.nic_ids[peer]), self.maps(name, FLEET.nic_ids[peer]))
        return self

    def maps(self, nic: str, peer: str) -> dict[str, Any]:
        wired = {n: self.swaps.get(n, n) for n in (nic, peer)}
        routes = FLEET.round_trips(*([FLEET.nic_index[wired[n]]] for n in (nic, peer)), [9320])[0]
        hops = [FLEET.link_ids[link] for link in routes.of(0).tolist()]
        # what is cabled to the other's port keeps its own name
        ends = [[split_end(end) for end in link.split(">")] for link in hops]
        ends[0][0], ends[-1][1] = (split_end(n.replace("/", ":")) for n in (nic, peer))
        named = ["{}:{}>{}:{}".format(*a, *b) for a, b in ends]
        contradiction = None
        if self.topology:
            far = self.topology.far(ends[0][0])
            if far is not None and far.node != ends[0][1].node:
                where = f"{far.node}:{far.port}"
                contradiction = (
                    f"hop 1 is {ends[0][1].node}, and the file wires {nic.replace('/', ':')} to {where}"
                )
        return {
            "nic": nic, "peer": peer, "shard": "fabric", "run": 1, "traced_ns": self.at_ns,
            "paths": [NamedPath(tuple(named), True, PathSource.TRACED, contradiction).row(9320, Leg.REQUEST)],
        }  # fmt: skip

    def swap(self, a: str, b: str) -> Traced:
        self.swaps = {a: b, b: a}
        return self

    def lines(self) -> list[tuple[str, str, str]]:
        return [(r["kind"], r["subject"], r["state"]) for r in self.out]


def test_a_fabric_that_is_wired_right_raises_nothing() -> None:
    assert Traced(topology_file(FLEET)).trace().wait(100).trace().wait(100).out == []


@pytest.mark.parametrize("file", [None, topology_file(FLEET)], ids=["by rails", "by the file"])
def test_two_nics_with_swapped_cables_are_one_alert_until_they_are_mended(file: TopologyFile | None) -> None:
    fabric = Traced(file)
    a, b = FLEET.nic_ids[4], FLEET.nic_ids[6]
    fabric.trace().wait(60).swap(a, b).trace(a).wait(0.5).trace(b).wait(20)
    assert fabric.out == []
    fabric.wait(20)
    assert fabric.lines() == [("MISWIRED", a, "RAISED")]
    raised = fabric.out[0]
    assert raised["nics"] == [a, b]
    assert raised["grouped"] == [b]
    assert f"{a} and {b} look swapped: " in raised["text"]
    assert {e["topic"] for e in raised["evidence"]} == {PATHS.name}
    assert {e["key"].partition(">")[0] for e in raised["evidence"]} == {a, b}
    fabric.trace().wait(60)
    fabric.swaps = {}
    fabric.trace().wait(20)
    assert fabric.lines()[1:] == [("MISWIRED", a, "CLEARED")]
    assert fabric.out[1]["text"].endswith("over: traces contradict it no more")


def test_a_path_that_moves_for_a_moment_or_loops_while_it_moves_is_no_alert() -> None:
    a, b = FLEET.nic_ids[4], FLEET.nic_ids[6]
    fabric = Traced(topology_file(FLEET)).trace().wait(60).swap(a, b).trace(a, b).wait(20)
    fabric.swaps = {}
    fabric.trace().wait(100)
    looped = fabric.maps(a, b)
    looped["paths"][0] |= {"contradiction": "a link is crossed twice", "complete": False}
    fabric.put(PATHS, pair_key(a, b), looped)
    assert fabric.wait(100).out == []


def test_a_nic_on_another_rails_leaf_is_an_alert_with_evidence() -> None:
    fabric = Traced()
    a, b = FLEET.nic_ids[4], FLEET.nic_ids[6]
    fabric.trace().wait(60).swap(a, b).trace(a).wait(60)
    assert fabric.lines() == [("MISWIRED", a, "RAISED")]
    assert f"{a} of rail 0 is on leaf3: 4 of 5 NICs there are of rail 2" in fabric.out[0]["text"]
    fabric.put(INVENTORY, a, None)
    assert fabric.wait(20).lines()[1:] == [("MISWIRED", a, "CLEARED")]  # it left the fabric


def test_cables_swapped_at_a_spine_are_one_alert_for_all_paths() -> None:
    file = TopologyFile.model_validate({
        "nodes": [
            {"name": "leaf1", "kind": "leaf", "ports": {
                "up1": ["10.1.1.1"], "up2": ["10.1.2.1"], "h1": ["10.2.1.1"]}},
            {"name": "leaf2", "kind": "leaf", "ports": {
                "up1": ["10.1.3.1"], "up2": ["10.1.4.1"], "h2": ["10.2.2.1"]}},
            {"name": "spine1", "kind": "spine", "ports": {"d1": ["10.1.1.0"], "d2": ["10.1.3.0"]}},
            {"name": "spine2", "kind": "spine", "ports": {"d1": ["10.1.2.0"], "d2": ["10.1.4.0"]}},
        ],
        "links": [
            {"ends": ["h1:e", "leaf1:h1"]}, {"ends": ["h2:e", "leaf2:h2"]},
            {"ends": ["leaf1:up1", "spine1:d1"]}, {"ends": ["leaf1:up2", "spine2:d1"]},
            {"ends": ["leaf2:up1", "spine1:d2"]}, {"ends": ["leaf2:up2", "spine2:d2"]},
        ],
    })  # fmt: skip
    topology = Topology(file)
    # the cables of leaf1:up1 and leaf2:up1 changed places at spine1
    routes = {
        ("h1/e", "h2/e"): [["10.2.1.1", "10.1.3.0", "10.1.3.1"], ["10.2.1.1", "10.1.2.0", "10.1.4.1"]],
        ("h2/e", "h1/e"): [["10.2.2.1", "10.1.1.0", "10.1.1.1"]],
    }
    inputs = AlertInputs(topology=topology)
    for number, ((nic, peer), traces) in enumerate(routes.items()):
        rows = []
        for port, hops in enumerate(traces, 9320):
            named = name_path(nic, peer, hops, True, path=port, topology=topology)
            rows.append(named.row(port, Leg.REQUEST))
        assert any(row["contradiction"] for row in rows)
        record = {"nic": nic, "peer": peer, "shard": "fabric", "run": 1, "traced_ns": 0, "paths": rows}
        value = codec.encode(PATHS.record, record)
        inputs.add(Message(T0, PATHS.name, 0, number, f"{nic}>{peer}", value))
    out = [record for _, record in inputs.evaluate(T0 + 60 * S)]
    assert [(r["kind"], r["state"]) for r in out] == [("MISWIRED", "RAISED")]
    assert "the file wires spine1:d1 to leaf1:up1, and traces have leaf2 there" in out[0]["text"]
    assert sorted(out[0]["links"]) == ["leaf1:up1<>spine1:d1", "leaf2:up1<>spine1:d2"]


def test_a_wrong_cable_is_raised_once_over_all_owners_of_the_shard() -> None:
    a, b = FLEET.nic_ids[4], FLEET.nic_ids[6]
    fabric = Traced().trace().wait(60).swap(a, b).trace().wait(60)
    again = AlertInputs(fabric.out)
    for message in fabric.messages:
        again.add(message)
    assert again.evaluate(T0 + 300 * S) == []
    assert again.open_ids() == [fabric.out[0]["alert_id"]]
    # and where the cables were mended while nobody looked
    mended = AlertInputs(fabric.out)
    assert [r["state"] for _, r in mended.evaluate(T0 + 300 * S)] == ["CLEARED"]


def test_a_wrong_name_in_one_record_adds_no_cable_to_a_switch() -> None:
    """The alert about a dead switch needs the share of its cables that are dead."""
    wiring = Wiring()
    it = Traced()

    def trace(nic: str, uplink: str) -> None:
        record: Any = it.maps("h1/eth1", "h2/eth1")
        record["nic"] = nic
        record["paths"][0]["links"] = [f"{nic.replace('/', ':')}>leaf1:{nic[1]}", uplink]
        wiring.ingest_paths(pair_key(nic, "h2/eth1"), record, T0)

    right = "leaf1:9>spine1:1"
    for nic in ("h1/eth1", "h3/eth1", "h4/eth1"):
        trace(nic, right)
    assert (wiring.cables_at("leaf1"), wiring.cables_at("spine1")) == (4, 1)
    for wrong in ("leaf1:9>spine1:2", "leaf1:8>spine1:1", "@eaf1:9>spine1:1"):
        trace("h1/eth1", wrong)
        assert (wiring.cables_at("leaf1"), wiring.cables_at("spine1")) == (4, 1)
    trace("h3/eth1", "@eaf1:9>spine1:1")
    assert wiring.cables_at("@eaf1") == 1, "two NICs agree on it"
    wiring.ingest_paths("absent", None, T0)
    for nic in ("h1/eth1", "h3/eth1", "h4/eth1"):
        wiring.ingest_paths(pair_key(nic, "h2/eth1"), None, T0)
    assert (wiring.cables_at("leaf1"), wiring.cables_at("spine1")) == (0, 0)
