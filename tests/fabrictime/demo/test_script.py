"""The script of the tour: the fabric that it accepts, and its choice of hosts, links and transfers."""

from __future__ import annotations

import pytest

from fabrictime.demo.draw import Draw
from fabrictime.demo.script import (
    JOBS,
    STEPS,
    Fabric,
    FabricUnfit,
    Fault,
    crossed_links,
    incast_hosts,
    incast_spec,
    job_spec,
    meeting_transfers,
)
from fabrictime.testbed.jobs.jobs import JobSpec
from fabrictime.testbed.jobs.traffic import FlowSpec
from schemas.ids import cable_id
from schemas.records import LinkState
from tests.fabrictime.demo.fabrics import flow, shown

UP = "leaf1:swp3>spine1:swp1"
DOWN = "spine1:swp1>leaf1:swp3"
OTHER = "leaf1:swp4>spine2:swp1"
FABRIC = Fabric.of(shown())


def test_the_steps_are_the_five_faults_and_leave_time_for_pauses_within_ninety_seconds() -> None:
    assert [step.fault for step in STEPS] == list(Fault)
    assert sum(step.min_s for step in STEPS) <= 50


def test_a_fabric_is_its_hosts_its_links_between_switches_and_the_links_to_its_hosts() -> None:
    assert FABRIC.hosts["h1"] == FABRIC.hosts["h2"] == "leaf1"
    assert len(FABRIC.links) == 32
    assert not [link for link in FABRIC.links if "h1" in link]
    assert FABRIC.last_links["h3"] == "leaf2:swp1>h3:eth1"


@pytest.mark.parametrize(
    ("fabric", "reason"),
    [
        (shown(rate_bps=0), "not limited"),
        (shown(rate_bps=10_000_000_000), "10000 Mbit/s.*at most 200"),
        (shown(spines=1), "1 spine"),
        (shown(hosts=4), "4 hosts"),
        (shown(hosts=2, leaves=1), "2 hosts"),
    ],
)
def test_a_fabric_that_cannot_show_the_faults_is_refused_with_the_reason(
    fabric: dict[str, object], reason: str
) -> None:
    with pytest.raises(FabricUnfit, match=reason):
        Fabric.of(fabric)


def test_a_link_is_named_by_its_switches_unless_several_links_join_them() -> None:
    assert FABRIC.name(UP) == "leaf1 > spine1"
    assert FABRIC.name(cable_id(UP)) == "leaf1 <> spine1"
    assert FABRIC.name("h1/eth1") == "h1/eth1"
    assert Fabric.of(shown(parallel=2)).name(UP) == "leaf1:swp3 > spine1:swp1"


def test_the_jobs_share_no_host_and_have_one_rank_on_each_leaf() -> None:
    ranks = [FABRIC.ranks(job) for job in JOBS]
    assert ranks == [["h1", "h3", "h5", "h7"], ["h2", "h4", "h6", "h8"]]
    for job in JOBS:
        JobSpec(**job_spec(FABRIC, job, 60)).check_values(4)


def test_a_healthy_link_that_a_job_crosses_and_that_was_not_used_may_be_broken() -> None:
    flows = [flow("a", JOBS[0], UP), flow("b", JOBS[1], UP, OTHER), flow("c", JOBS[0], OTHER, DOWN, UP)]
    assert crossed_links(FABRIC, flows, {}, ()) == [UP, OTHER, DOWN]
    assert crossed_links(FABRIC, flows, {}, {cable_id(UP)}) == [OTHER]
    assert crossed_links(FABRIC, flows, {cable_id(UP): LinkState.FLAPPING}, ()) == [OTHER]
    assert crossed_links(FABRIC, flows, {}, (), ascending=True) == [UP, OTHER]
    assert crossed_links(FABRIC, [flow("e", "else", UP)], {}, ()) == [], "only the jobs' flows count"


@pytest.mark.parametrize("seed", range(8))
def test_transfers_meet_on_the_link_and_end_on_different_leaves(seed: int) -> None:
    def path_of(source: str, destination: str, sport: int, dport: int) -> list[str]:
        return ["first", UP if sport == 20_021 else OTHER]

    one, two = meeting_transfers(FABRIC, UP, path_of, Draw(seed))
    assert {one.source, two.source} == {"h1", "h2"}
    assert len({"leaf1", FABRIC.hosts[one.destination], FABRIC.hosts[two.destination]}) == 3
    assert one.sport == two.sport == 20_021
    assert one.dport != two.dport
    rates = [each.spec(FABRIC, 8)["rate_bps"] for each in (one, two)]
    assert max(rates) < FABRIC.rate_bps < sum(rates)
    FlowSpec(**one.spec(FABRIC, 8) | {"protocol": "tcp"}).check()


def test_a_link_that_no_source_port_leads_to_is_no_place_for_a_collision() -> None:
    with pytest.raises(FabricUnfit, match="none of 256 source ports"):
        meeting_transfers(FABRIC, UP, lambda *ends: [OTHER], Draw(1))


@pytest.mark.parametrize("seed", range(8))
def test_an_incast_comes_from_hosts_of_other_leaves(seed: int) -> None:
    draw = Draw(seed)
    receiver, senders = incast_hosts(FABRIC, draw)
    assert len(set(senders)) in (3, 4)
    assert FABRIC.hosts[receiver] not in {FABRIC.hosts[host] for host in senders}
    spec = incast_spec(FABRIC, receiver, senders, 10, draw.incast_batch_s())
    JobSpec(**spec).check_values(1 + len(senders))
