"""Links with a fault: those that the job crosses while it is slow, and near misses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from producers.trace.route_names import NamedPath
from schemas.records import (
    Decision,
    Diagnosis,
    FlowAction,
    HealthKind,
    Leg,
    LinkState,
    PathSource,
    Reason,
    ReasonKind,
    Verdict,
)
from streams.diagnosis.job.view import JobView, LastVerdict
from streams.diagnosis.model import fitted_weights
from tests.records import make
from tests.streams.diagnosis.probed import probe, trace
from tests.streams.diagnosis.scenario import MS, Job, S, World, nic, route, slow, slow_world

CROSSED = route(1, 2, 1)[1]
CABLE = "<>".join(sorted(CROSSED.split(">")))
ELSEWHERE = "leaf0:u5>spine5:p0"


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (LinkState.GREY, Verdict.GREY_LINK),
        (LinkState.DOWN, Verdict.DEAD_LINK),
        (LinkState.FLAPPING, Verdict.FLAPPING_LINK),
    ],
)
def test_a_fault_of_a_link_that_the_job_crosses_explains_slow_transfers(
    state: LinkState, verdict: Verdict
) -> None:
    world = slow_world()
    world.health(CROSSED, state, world.job.at_ns, loss_rate=0.01 if state == LinkState.GREY else None)
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (verdict, True)
    assert found["links"] == [CROSSED]
    assert found["confidence"] >= 0.9
    assert found["loss_share"] == pytest.approx(0.4, abs=0.05)


def test_a_fault_elsewhere_is_not_blamed() -> None:
    world = slow_world()
    world.health(ELSEWHERE, LinkState.DOWN, world.job.at_ns)
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.UNKNOWN, False)


def test_a_fault_while_the_job_was_fast_is_not_blamed_later() -> None:
    world = World(Job())
    world.learn()
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.01)
    for _ in range(20):
        assert world.step()["verdict"] == Verdict.HEALTHY
    slow(world)
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.UNKNOWN, False)


def test_a_fault_after_the_job_became_slow_is_not_blamed() -> None:
    world = slow_world()
    for _ in range(4):
        world.step()
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.01)
    assert world.step()["blames_network"] is False


def test_a_fault_is_not_blamed_while_the_job_computes_longer() -> None:
    world = World(Job())
    world.learn()
    world.job.compute = lambda rank, at: 14.0 * MS
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.01)
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.HEALTHY, False)


def test_outages_that_repeat_are_a_flapping_link() -> None:
    world = slow_world()
    at_ns = world.job.at_ns
    for number in range(4):
        world.health(CROSSED, LinkState.DOWN, at_ns + number * 200 * MS, seq=2 * number + 1)
        world.health(CROSSED, LinkState.UP, at_ns + (number * 200 + 100) * MS, seq=2 * number + 2)
    assert world.step()["verdict"] == Verdict.FLAPPING_LINK


def test_outages_before_the_interval_belong_to_the_same_fault() -> None:
    world = slow_world()
    at_ns = world.job.at_ns
    for number in range(2):
        world.health(CROSSED, LinkState.DOWN, at_ns + number * 800 * MS, seq=2 * number + 1)
        world.health(CROSSED, LinkState.UP, at_ns + (number * 800 + 100) * MS, seq=2 * number + 2)
    assert world.step()["verdict"] == Verdict.DEAD_LINK
    world.health(CROSSED, LinkState.DOWN, world.job.at_ns + 100 * MS, seq=5)
    world.health(CROSSED, LinkState.GREY, world.job.at_ns + 300 * MS, seq=6, loss_rate=0.3)
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.FLAPPING_LINK, True)
    assert "went down 3 times" in found["text"]


@pytest.mark.parametrize(
    ("outages", "verdict"), [(2, Verdict.FLAPPING_LINK), (1, Verdict.GREY_LINK), (0, Verdict.GREY_LINK)]
)
def test_a_link_that_came_up_twice_and_loses_packets_flaps(outages: int, verdict: Verdict) -> None:
    """As the bench's link that is down half of each second, while traces lag by half a second."""
    world = slow_world()
    at_ns = world.job.at_ns
    seq = 0
    for number in range(outages):
        for state, offset_ms in ((LinkState.GREY, 250), (LinkState.DOWN, 300), (LinkState.UP, 500)):
            seq += 1
            loss = 0.2 if state == LinkState.GREY else None
            since_ns = at_ns + (number * 1000 + offset_ms) * MS
            world.health(CROSSED, state, since_ns, seq=seq, loss_rate=loss)
    for _ in range(2):
        world.step()
    grey_ns = at_ns + (outages * 1000 + 600) * MS
    world.health(CROSSED, LinkState.GREY, grey_ns, seq=seq + 1, loss_rate=0.45)
    for _ in range(6):
        found = world.step()
    assert (found["verdict"], found["subject"]) == (verdict, CABLE)


def test_flows_that_were_moved_off_a_dead_link_show_that_they_crossed_it() -> None:
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    world.job.network = lambda rank, at: (
        400.0 * MS if at == world.job.iteration and at % 40 == 0 else 4.0 * MS
    )
    near, far = ELSEWHERE.split(">")
    subject = "<>".join(sorted((near, far)))
    world.health(ELSEWHERE, LinkState.DOWN, begin_ns)
    reason: Reason = {"kind": ReasonKind.DOWN, "subject": subject, "seq": 1, "window_id": None}
    world.network.take_decision(
        make(
            Decision,
            shard="fabric",
            at_ns=begin_ns + 10 * MS,
            host="h1",
            action=FlowAction.REROUTE,
            flow_id=world.job.flow_id(1),
            expires_at_ns=begin_ns + S,
            reason=reason,
            text="moved",
        )
    )
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.DEAD_LINK, subject)


def moved_off(world: World, state: LinkState = LinkState.DOWN, link: str = CROSSED) -> str:
    """Let a link fail and its flows take another one, where one is slow. Return the cable."""
    world.flow_fields = {1: {"links": route(1, 2, 2)}, 7: {"links": route(7, 0, 2)}}
    world.job.pair_us = lambda rank, at: 94.0 if rank == 1 else 4.0
    slow(world)
    world.health(link, state, world.job.at_ns, loss_rate=0.01 if state == LinkState.GREY else None)
    return "<>".join(sorted(link.split(">")))


@pytest.mark.parametrize("link", [CROSSED, ">".join(reversed(CROSSED.split(">")))])
def test_a_dead_link_is_named_after_its_flows_moved_beside_others(link: str) -> None:
    world = World(Job())
    world.learn()
    subject = moved_off(world, link=link)
    for _ in range(12):
        found = world.step()
        assert (found["verdict"], found["subject"]) == (Verdict.DEAD_LINK, subject)
    assert "h1/n0 to h2/n0 crossed it, 1 more pairs too; their flows take other links now" in found["text"]


def test_a_dead_link_that_flows_left_is_named_after_a_restart_while_the_job_is_slow() -> None:
    world = World(Job())
    world.learn()
    subject = moved_off(world)
    past = [world.step() for _ in range(8)][-1]
    view = world.view = JobView(world.job.name)
    view.last = LastVerdict(past["verdict"], past["subject"], past["since_ns"])
    view.moved.restore(past["links"], past["nics"], past["end_ns"])
    assert past["expected_iteration_ns"] is not None
    view.baselines.restore("iteration", past["expected_iteration_ns"])
    for _ in range(8):
        found = world.step()
        assert (found["verdict"], found["subject"]) == (Verdict.DEAD_LINK, subject)
    slow(world, 1.0)
    world.job.pair_us = lambda rank, at: 4.0
    assert [world.step()["verdict"] for _ in range(4)][-1] == Verdict.HEALTHY


def test_a_grey_link_that_flows_left_is_not_blamed() -> None:
    world = World(Job())
    world.learn()
    moved_off(world, LinkState.GREY)
    assert world.step()["verdict"] == Verdict.SLOW_FLOW


def test_a_link_that_flows_left_before_its_fault_is_not_blamed() -> None:
    world = World(Job())
    world.learn()
    world.flow_fields = {1: {"links": route(1, 2, 2)}, 7: {"links": route(7, 0, 2)}}
    world.learn(7)
    moved_off(world)
    assert world.step()["verdict"] == Verdict.SLOW_FLOW


def test_a_dead_link_without_harm_is_not_blamed_even_without_a_baseline() -> None:
    world = World(Job())
    world.learn(1)
    moved_off(world)
    slow(world, 1.0)
    world.job.pair_us = lambda rank, at: 4.0
    for _ in range(6):
        assert world.step()["verdict"] == Verdict.HEALTHY


def test_slow_pairs_beside_no_flow_that_left_a_dead_link_speak_against_it() -> None:
    world = World(Job())
    world.learn()
    moved_off(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 5 else 4.0
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.SLOW_FLOW, "h5/n0 to h6/n0")


def test_contention_with_another_job_outranks_a_dead_link_that_flows_left() -> None:
    world = World(Job())
    world.learn()
    subject = moved_off(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank in (1, 7) else 4.0
    world.contend(route(1, 2, 2)[1], world.job.at_ns, own=1, share=0.7)
    found = world.step()
    assert found["verdict"] == Verdict.CONTENTION
    assert (Verdict.DEAD_LINK, subject) in [(a["verdict"], a["subject"]) for a in found["alternatives"]]


def test_a_fault_of_the_other_direction_is_not_blamed_for_flows_that_stayed() -> None:
    world = slow_world(pair=1)
    reverse = ">".join(reversed(CROSSED.split(">")))
    world.health(reverse, LinkState.GREY, world.job.at_ns, loss_rate=0.0002)
    world.contend(CROSSED, world.job.at_ns, own=1, share=0.7)
    assert world.step()["verdict"] == Verdict.CONTENTION


def test_a_dead_nic_is_named() -> None:
    world = slow_world()
    world.network.take_health(
        make(
            "LinkHealth",
            subject=nic(4),
            kind=HealthKind.NIC,
            shard="fabric",
            seq=1,
            state=LinkState.DOWN,
            before="UP",
            since_ns=world.job.at_ns,
            text="h4/n0 is down",
        )
    )
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.DEAD_LINK, nic(4))


def test_slow_pairs_elsewhere_speak_against_a_faulty_link() -> None:
    world = slow_world(pair=5)
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.01)
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.SLOW_FLOW, "h5/n0 to h6/n0")


def test_possible_routes_make_a_fault_less_certain() -> None:
    world = World(Job(), flows=False)
    world.learn()
    slow(world)
    world.network.take_paths(
        make(
            "PathMaps",
            nic=nic(1),
            peer=nic(2),
            shard="fabric",
            paths=[NamedPath(tuple(route(1, 2, 1)), True, PathSource.TRACED).row(1, Leg.REQUEST)],
        )
    )
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.01)
    found = world.step()
    assert found["verdict"] == Verdict.GREY_LINK
    assert found["confidence"] < fitted_weights().calibrated(0.8)


def probed(world: World, share: float, seconds: int = 6) -> Diagnosis:
    """Run a slow job while the probes over a link are lost, of which the links service says nothing."""
    hosts = range(world.job.ranks)
    for second in range(seconds):
        at_ns = world.job.at_ns
        probe(world.network, hosts, at_ns, 1, lambda s, t, links, _: share * (CROSSED in links), seed=second)
        found = world.step()
    return found


def test_lost_probes_name_a_link_where_the_links_service_names_none() -> None:
    world = World(Job(), probes=False)
    trace(world.network, range(world.job.ranks))
    world.learn()
    slow(world)
    begin_ns = world.job.at_ns
    found = probed(world, 0.1)
    assert (found["verdict"], found["subject"]) == (Verdict.GREY_LINK, CABLE)
    assert found["blames_network"]
    assert CROSSED in found["links"]
    [loss] = [each for each in found["evidence"] if each["quantity"] == "loss_rate"]
    assert loss["number"] == pytest.approx(0.1, abs=0.05)
    assert abs(found["evidence"][0]["at_ns"] - begin_ns) <= 2 * S
    world.health(CROSSED, LinkState.GREY, begin_ns, loss_rate=0.1)
    found = world.step()
    assert found["verdict"] == Verdict.GREY_LINK
    assert found["evidence"][0]["topic"] == "fabric.link-health", "the links service knows it now"
    assert [each["verdict"] for each in found["alternatives"]].count(Verdict.GREY_LINK) == 0


@pytest.mark.parametrize("resending", [(), (1, 2), range(8)])
def test_a_nic_that_loses_probes_is_named_if_its_flows_alone_send_again(resending: Sequence[int]) -> None:
    """A host that is short of CPU loses probes, too, but then its flows need not send anything again."""
    world = World(Job(), probes=False)
    trace(world.network, range(world.job.ranks))
    world.learn()
    slow(world)
    world.flow_fields = {rank: {"retransmits": 20} for rank in resending}
    for second in range(6):
        probe(world.network, range(8), world.job.at_ns, 1, lambda s, t, *_: 0.06 * (2 in (s, t)), seed=second)
        diagnosis = world.step()
    is_named = diagnosis["verdict"] == Verdict.GREY_LINK and nic(2).replace("/", ":") in diagnosis["subject"]
    assert is_named == (resending == (1, 2)), diagnosis["text"]


def test_lost_probes_are_not_blamed_while_the_job_is_fast_or_elsewhere() -> None:
    world = World(Job(), probes=False)
    trace(world.network, range(world.job.ranks))
    world.learn()
    assert probed(world, 0.1)["verdict"] == Verdict.HEALTHY
    world = World(Job(ranks=4), probes=False)
    trace(world.network, range(world.job.ranks))
    world.learn()
    world.flow_fields = {rank: {"links": route(rank, (rank + 1) % 4, 0)} for rank in range(4)}
    slow(world)
    assert probed(world, 0.1)["verdict"] == Verdict.UNKNOWN, "its flows take another spine"
