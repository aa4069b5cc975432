"""Peers that a NIC can reach: by routes of both ends, and by answers of whole rails."""

from __future__ import annotations

from typing import Any

import pytest

from native.core.probe import PathEvidence
from producers.probe.reachability import RETRY_S, SILENT_S, RailReach, group_of, reachable, reaches
from tests.records import make


def nic(host: str, device: str, address: str, networks: list[str], rail: int | None = None) -> Any:
    return make(
        "Nic",
        nic=f"{host}/{device}",
        host=host,
        device=device,
        rail=rail,
        addresses=[address],
        networks=networks,
    )


def fleet(hosts: int, rails: int, **settings: Any) -> dict[str, Any]:
    """Return rails with subnets of their own."""
    found = [
        nic(f"h{h}", f"eth{r}", f"10.9.{r}.{h}", [f"10.9.{r}.0/24"], **settings)
        for h in range(1, hosts + 1)
        for r in range(rails)
    ]
    return {each["nic"]: each for each in found}


@pytest.mark.parametrize(
    ("networks", "address", "expected"),
    [
        ([], "10.0.0.1", True),
        (["10.0.0.0/24"], "10.0.0.1", True),
        (["10.0.0.0/24"], "10.0.1.1", False),
        (["0.0.0.0/0"], "10.0.1.1", True),
        (["0.0.0.0/0"], "fd00::1", False),
        (["fd00::/64", "10.0.0.0/8"], "fd00::1", True),
    ],
)
def test_routes_lead_to_their_networks(networks, address, expected):
    assert reaches(networks, address) is expected


@pytest.mark.parametrize("rails", [2, 8])
def test_rails_with_subnets_of_their_own_reach_only_themselves(rails):
    everyone = fleet(3, rails)
    for own in everyone.values():
        found = reachable(own, everyone, frozenset())
        assert {each["device"] for each in found.values()} == {own["device"]}
        assert len(found) == 3


def test_both_ends_need_a_route():
    one = nic("h1", "eth0", "10.0.0.1", ["0.0.0.0/0"])
    other = nic("h2", "eth0", "10.1.0.1", ["10.1.0.0/24"])
    assert reachable(one, {"h2/eth0": other}, frozenset()) == {}
    assert reachable(other, {"h1/eth0": one}, frozenset()) == {}


def test_nics_of_the_own_host_are_no_peers_but_those_in_other_namespaces_are():
    own = nic("h1", "eth0", "10.9.0.20", ["10.9.0.0/24"])
    beside, apart = (nic("h1", f"eth{n}", f"10.9.0.2{n}", ["10.9.0.0/24"]) for n in (1, 2))
    others = {"h1/eth1": beside, "h1/eth2": apart}
    assert reachable(own, others, frozenset({"10.9.0.20", "10.9.0.21"})) == {"h1/eth2": apart}


def test_a_rail_is_its_number_or_else_its_device_on_hosts_of_the_same_kind():
    everyone = fleet(2, 2)
    assert group_of(everyone["h1/eth0"], everyone) == {"h1/eth1": "eth1", "h2/eth1": "eth1"}
    other = nic("h9", "ens1", "10.9.0.9", [])
    assert "h9/ens1" not in group_of(everyone["h1/eth0"], {**everyone, "h9/ens1": other})
    numbered = {name: {**each, "rail": int(each["device"][-1])} for name, each in everyone.items()}
    assert set(group_of(numbered["h1/eth0"], numbered).values()) == {"rail 1"}


def evidence(peer: str, answered: int) -> PathEvidence:
    return PathEvidence(peer, 0, 0 if answered else 9, answered, 0, 0, 0, -1, -1, -1, -1, 1)


def silent_after(reach: RailReach, everyone: dict[str, Any], answering: set[str], now_s: float) -> Any:
    own = everyone["h1/eth0"]
    groups = group_of(own, everyone)
    hosts = {name: each["host"] for name, each in everyone.items()}
    others = [name for name in everyone if name != "h1/eth0"]
    silent = reach.silent(groups, hosts, now_s)
    probed = [name for name in others if groups.get(name) not in silent]
    reach.set_peers(probed, now_s)
    reach.update([evidence(name, int(name in answering)) for name in probed])
    return silent


def test_a_rail_that_never_answers_is_silent_until_it_is_tried_again():
    everyone, reach = fleet(3, 2), RailReach()
    own_rail = {"h2/eth0", "h3/eth0"}
    assert silent_after(reach, everyone, own_rail, 100.0) == frozenset()
    assert silent_after(reach, everyone, own_rail, 100.0 + SILENT_S - 0.1) == frozenset()
    assert silent_after(reach, everyone, own_rail, 100.0 + SILENT_S) == {"eth1"}
    found = reachable(everyone["h1/eth0"], fleet(3, 2), frozenset(), frozenset({"eth1"}))
    assert {each["device"] for each in found.values()} == {"eth0"}
    again_s = 100.0 + SILENT_S + RETRY_S
    assert silent_after(reach, everyone, own_rail, again_s) == frozenset()
    assert silent_after(reach, everyone, own_rail, again_s + SILENT_S) == {"eth1"}


@pytest.mark.parametrize(
    ("hosts", "answering"),
    [
        pytest.param(3, {"h2/eth0", "h3/eth1"}, id="one NIC of the rail answers"),
        pytest.param(3, set(), id="nothing answers: the NIC's own link may be dead"),
        pytest.param(2, {"h2/eth0"}, id="one NIC alone may be dead"),
    ],
)
def test_a_dead_nic_is_no_silent_rail(hosts, answering):
    everyone, reach = fleet(hosts, 2), RailReach()
    everyone.pop("h1/eth1")
    silent_after(reach, everyone, answering, 100.0)
    assert silent_after(reach, everyone, answering, 200.0) == frozenset()


def test_rails_apart_are_silent_together_though_few_nics_of_each_are_probed():
    everyone, reach = fleet(8, 8), RailReach()
    groups = group_of(everyone["h1/eth0"], everyone)
    hosts = {name: each["host"] for name, each in everyone.items()}
    probed = ["h2/eth0", *(f"h{number + 1}/eth{number}" for number in range(1, 8))]
    reach.set_peers(probed, 0.0)
    reach.update([evidence(name, int(name == "h2/eth0")) for name in probed])
    assert reach.silent(groups, hosts, SILENT_S - 0.1) == frozenset()
    assert reach.silent(groups, hosts, SILENT_S) == {f"eth{number}" for number in range(1, 8)}


def test_losses_to_rails_that_never_answered_show_no_fault():
    everyone, reach = fleet(3, 2), RailReach()
    groups = group_of(everyone["h1/eth0"], everyone)
    reach.set_peers(["h2/eth0", "h3/eth0", "h2/eth1", "h3/eth1"], 0.0)
    assert reach.unproven(groups) == {"h2/eth1", "h3/eth1"}
    reach.update([evidence("h3/eth1", 1)])
    assert reach.unproven(groups) == frozenset()
