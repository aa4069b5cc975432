"""Losses that no known link explains: the stated set, its end, and blind tracing."""

from __future__ import annotations

import pytest

from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.networks.answers import Form, NamedFleet
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas import codec
from schemas.records import LinkHealth
from schemas.topics import LINK_HEALTH
from streams.links.health import ShardHealth
from streams.links.rules import BLIND_AFTER_NS

MS = 1_000_000
S = 1_000 * MS
WARM_NS = 1_500 * MS
FLEET = Fleet(Shape(hosts=4, hosts_per_rack=2, spines=2), 1)


class Hidden:
    """A fleet in which some links have no name, and the records of its shard."""

    def __init__(self, form: Form, with_file: bool) -> None:
        self.probes = ProbedFleet(FLEET, peers=3, paths=8, seed=3, rate_hz=400.0)
        names = NamedFleet(self.probes, form, with_file=with_file)
        self.book = names.book
        self.health = ShardHealth("fabric")
        self.health.topology = names.topology
        self.records: dict[str, list[LinkHealth]] = {}
        self.run(WARM_NS)

    def run(self, for_ns: int) -> None:
        for _ in range(for_ns // (5 * MS)):
            found = []
            for append_ns, event in self.probes.run(5 * MS):
                found += self.health.ingest(event, append_ns, self.book)
            for subject, record in [*found, *self.health.evaluate(self.probes.now_ns)]:
                assert record is not None
                codec.encode(LINK_HEALTH.record, record)
                self.records.setdefault(subject, []).append(record)

    def kill(self, near: str, far: str) -> int:
        links = FLEET.link_ids
        link = next(n for n, each in enumerate(links) if each.startswith(f"{near}:") and f">{far}:" in each)
        self.probes.down[link] = True
        return link


@pytest.mark.parametrize(
    ("form", "with_file", "candidates"),
    [
        (Form.SILENT, True, ["leaf1:swp3<>spine1:swp1", "leaf1:swp4<>spine2:swp1"]),
        (Form.SILENT, False, ["h1/eth1", "h2/eth1"]),
        (Form.TUNNEL, False, ["10.255.0.1", "10.255.0.2"]),
    ],
)
def test_a_hidden_dead_link_is_in_the_stated_set_until_it_lives(
    form: Form, with_file: bool, candidates: list[str]
) -> None:
    it = Hidden(form, with_file)
    link = it.kill("leaf1", "spine2")
    it.run(3 * S)
    (record,) = it.records["losses@fabric"][:1]
    assert (record["kind"], record["state"]) == ("PATHS", "GREY")
    assert "no known link explains" in record["text"]
    assert set(candidates) & set(record["candidates"])
    if with_file:  # with two leaves, the cables of the other one explain as much
        assert all("<>" in each for each in record["candidates"])
    assert [s for s, each in it.records.items() if each[-1]["state"] == "DOWN"] == []
    it.probes.down[link] = False
    it.run(2 * S)
    assert it.records["losses@fabric"][-1]["state"] == "UP"


def test_a_link_with_a_name_leaves_nothing_unexplained() -> None:
    it = Hidden(Form.LOOPBACK, with_file=False)
    it.kill("leaf1", "spine2")
    it.run(3 * S)
    assert [s for s, each in it.records.items() if each[-1]["state"] == "DOWN"] == [
        "10.255.0.12:ip<>10.255.0.1:ip"
    ]
    assert "losses@fabric" not in it.records


def test_blind_tracing_is_reported_once_all_paths_have_been_traced() -> None:
    it = Hidden(Form.SILENT, with_file=False)
    it.run(BLIND_AFTER_NS - WARM_NS - S)
    assert it.records == {}
    it.run(3 * S)
    (record,) = it.records["traces@fabric"]
    assert (record["kind"], record["state"]) == ("TRACES", "GREY")
    assert "96 of 96 paths are not known" in record["text"]
