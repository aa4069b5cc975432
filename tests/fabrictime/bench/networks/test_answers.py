"""Names of links in each form of answers, against the cables that they stand for."""

from __future__ import annotations

import pytest

from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.networks.answers import Form, NamedFleet
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from producers.trace.addressing import LinkPrefix
from schemas.ids import cable_id
from streams.runtime.switch_names import Groups, SwitchNames, leaf_name, names_of

FLEET = Fleet(Shape(hosts=6, hosts_per_rack=2, spines=3), 1)
WHOLE = [form for form in Form if form not in (Form.SILENT, Form.SILENT_SPINES, Form.TUNNEL, Form.FLAT)]


def named(form: Form, with_file: bool = False, prefix: LinkPrefix = "auto") -> NamedFleet:
    return NamedFleet(ProbedFleet(FLEET, peers=5), form, with_file=with_file, prefix=prefix)


def complete_share(fleet: NamedFleet) -> float:
    routes = [route for pair in fleet.book.pairs() for route in fleet.book.paths(*pair).values()]
    return sum(route.complete for route in routes) / len(routes)


@pytest.mark.parametrize("form", WHOLE)
def test_every_name_stands_for_one_cable(form: Form) -> None:
    fleet = named(form)
    assert complete_share(fleet) == 1.0 if form is not Form.RATE_LIMITED else complete_share(fleet) > 0.95
    assert fleet.names.merged() == {}
    cables = {cable_id(link) for link in FLEET.link_ids}
    assert set().union(*fleet.names.stands_for.values()) == cables


def test_loopbacks_taken_for_ports_merge_cables() -> None:
    assert named(Form.LOOPBACK, prefix=31).names.merged(), (
        "as it was before agents learned whose addresses answer"
    )


@pytest.mark.parametrize("form", [form for form in Form if form not in (Form.SILENT, Form.FLAT, Form.TUNNEL)])
def test_a_file_with_the_addresses_gives_the_true_names(form: Form) -> None:
    fleet = named(form, with_file=True)
    assert complete_share(fleet) > 0.9
    assert all(true == {cable_id(name)} for name, true in fleet.names.stands_for.items())


def test_nothing_is_named_where_nothing_answers() -> None:
    assert complete_share(named(Form.SILENT)) == 0.0
    spines = named(Form.SILENT_SPINES)
    assert spines.names.merged() == {}
    assert complete_share(spines) < 0.3, "only paths within a leaf"
    flat = named(Form.FLAT)
    assert flat.names.merged() == {}
    assert all("layer-2" in name for name in flat.names.stands_for)


@pytest.mark.parametrize("form", [Form.ANYCAST, Form.PORTS, Form.LOOPBACK])
def test_the_nics_of_each_leaf_are_distinct(form: Form) -> None:
    fleet, names, groups = named(form), SwitchNames(), Groups()
    first_hop = {}
    for nic, peer in fleet.book.pairs():
        for (leg, _), route in fleet.book.paths(nic, peer).items():
            names = names.union(names_of(nic, peer, route.links, route.complete))
            first_hop[nic] = route.links[0].partition(">")[2].rpartition(":")[0]
            assert leg in ("REQUEST", "ANSWER")
    groups.add(*names)
    leaves = {nic: groups.find(leaf_name(node, nic)) for nic, node in first_hop.items()}
    assert len(set(leaves.values())) == 3
    assert leaves["h1/eth1"] == leaves["h2/eth1"] != leaves["h3/eth1"]
