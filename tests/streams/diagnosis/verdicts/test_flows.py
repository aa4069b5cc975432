"""Slow flows, contention and too few queue pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas.records import ContentionKind, FlowReports, LinkQueues, PathMaps, Verdict
from streams.diagnosis.model import fitted_weights
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import MS, Job, Pipeline, S, World, nic, route, slow, slow_world

CROSSED = route(1, 2, 1)[1]


def test_one_flow_of_94_us_among_flows_of_4() -> None:
    world = slow_world(pair=3)
    world.probe_us = lambda source, target: 90.0 if source == 3 else 5.0
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.SLOW_FLOW, True)
    assert found["nics"] == [nic(3), nic(4)]
    assert "h3/n0 to h4/n0 saw 94.0 µs, others 4.00 µs; path 50003 crosses" in found["text"]
    assert found["evidence"][0]["number"] == 94.0
    assert found["evidence"][0]["expected"] == 4.0


def other_job(world: World, rate_bps: float = 8.2e10, busy_share: float = 0.98, job: str = "other") -> None:
    """Let a flow of another job cross the link of rank 1, whose own flow sends 60 Gbit/s in bursts."""
    world.flow_fields = {1: {"rate_bps": 9e9, "busy_share": 0.15}}
    flow = world.job.flow(1, flow_id="h90/b/qp:n0:1:1", nic="h90/n0", peer="h91/n0", job=job)
    flow |= {"rate_bps": rate_bps, "busy_share": busy_share, "links": ["h90:n0>leaf0:d90", CROSSED]}
    report = make(FlowReports, host="h90", boot="b", system_ns=world.job.at_ns, whole=True, flows=[flow])
    world.network.take_flows(report)


def rate_known(world: World, rate_bps: int = 10**11) -> None:
    link = make_part("LinkQueues", "LinkQueue", link=CROSSED, rate_bps=rate_bps)
    world.network.take_queues(make(LinkQueues, links=[link]))


def test_rates_of_another_job_explain_a_slow_pair_without_a_queue() -> None:
    world = slow_world(pair=1)
    other_job(world)
    rate_known(world)
    found = world.step()
    assert (found["verdict"], found["subject"], found["jobs"]) == (Verdict.CONTENTION, CROSSED, ["other"])
    assert "job other: they send 83.7 Gbit/s in bursts and the pair 60.0 Gbit/s" in found["text"]
    assert Verdict.SLOW_FLOW in [each["verdict"] for each in found["alternatives"]]


@pytest.mark.parametrize(
    ("flow", "rate_bps"),
    [
        ({"rate_bps": 2e10}, 10**11),
        ({"busy_share": 0.1, "rate_bps": 8e9}, 10**11),
        ({"job": "train"}, 10**11),
        ({}, 4 * 10**11),
        ({}, 0),
    ],
    ids=["small", "seldom", "the same job", "a fast link", "rate not known"],
)
def test_rates_that_do_not_fill_the_link_explain_nothing(flow: dict[str, Any], rate_bps: int) -> None:
    world = slow_world(pair=1)
    other_job(world, **flow)
    rate_known(world, rate_bps)
    assert world.step()["verdict"] == Verdict.SLOW_FLOW


def test_a_short_queue_and_rates_are_one_contention() -> None:
    world = slow_world(pair=1)
    other_job(world)
    rate_known(world)
    opened_ns = world.job.at_ns + 100 * MS
    world.contend(CROSSED, opened_ns, own=1, closed_ns=opened_ns + 20 * MS, state="CLOSED")
    found = world.step()
    named = [found["subject"], *[each["subject"] for each in found["alternatives"]]]
    assert (found["verdict"], named.count(CROSSED)) == (Verdict.CONTENTION, 1)


def test_a_slow_flow_is_found_without_a_baseline() -> None:
    world = World(Job())
    slow(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 3 else 4.0
    assert world.step()["verdict"] == Verdict.SLOW_FLOW


def test_a_slow_pair_among_few_needs_a_baseline_first() -> None:
    """Connections that are being set up are slow, too."""
    world = World(Job(ranks=4))
    slow(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 3 else 4.0
    assert Verdict.SLOW_FLOW not in {world.step()["verdict"] for _ in range(3)}
    later = [world.step()["verdict"] for _ in range(6)]
    assert later[-1] == Verdict.SLOW_FLOW, "once it lasts: the baseline is as slow"


def test_a_drop_that_coincides_with_slow_queue_pairs() -> None:
    world = slow_world(ranks=12)
    world.job.pair_us = lambda rank, at: 60.0 if rank in (4, 9) else 4.0
    found = world.step()
    assert found["verdict"] == Verdict.SLOW_FLOW
    assert found["loss_share"] > 0.3


def test_a_slow_flow_that_costs_nothing_is_no_verdict() -> None:
    world = World(Job())
    world.job.network = lambda rank, at: 0.2 * MS
    world.job.pair_us = lambda rank, at: 94.0 if rank == 3 else 4.0
    assert world.learn()["verdict"] == Verdict.HEALTHY


def test_a_slow_flow_is_found_by_probes_where_nothing_else_is_measured() -> None:
    world = World(Job(queue_pairs=False))
    world.learn()
    slow(world)
    world.probe_us = lambda source, target: 200.0 if source == 3 else 5.0
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.SLOW_FLOW, "h3/n0 to h4/n0")


def test_contention_with_another_job_is_named() -> None:
    world = slow_world()
    world.contend(CROSSED, world.job.at_ns, own=1)
    found = world.step()
    assert (found["verdict"], found["subject"], found["jobs"]) == (Verdict.CONTENTION, CROSSED, ["other"])
    assert found["confidence"] >= 0.9
    assert f"path 50001 crosses {CROSSED}, contended by job other" in found["text"]


def test_an_empty_queue_of_a_former_job_is_no_contention() -> None:
    """Its window closes seconds after the queue has gone."""
    world = World(Job())
    world.contend(CROSSED, world.job.at_ns - 5 * S, own=1, delay_ns=0.0)
    assert world.step()["verdict"] != Verdict.CONTENTION


def test_contention_explains_a_slow_flow() -> None:
    world = slow_world(pair=1)
    world.contend(CROSSED, world.job.at_ns, own=1)
    found = world.step()
    assert found["verdict"] == Verdict.CONTENTION
    assert Verdict.SLOW_FLOW in [each["verdict"] for each in found["alternatives"]]


def test_contention_since_the_job_began_is_found_by_the_share_of_others() -> None:
    world = World(Job())
    slow(world)
    world.contend(CROSSED, world.job.at_ns, own=1)
    assert world.learn()["verdict"] == Verdict.CONTENTION


def test_contention_of_other_jobs_elsewhere_is_not_blamed() -> None:
    world = slow_world()
    world.contend("leaf9:u1>spine1:p9", world.job.at_ns, flows=[], jobs=["other", "third"])
    assert world.step()["blames_network"] is False


def test_contention_without_loss_is_no_verdict() -> None:
    world = World(Job())
    world.learn()
    world.contend(CROSSED, world.job.at_ns, own=1)
    assert world.step()["verdict"] == Verdict.HEALTHY


def test_a_short_queue_is_not_blamed() -> None:
    world = slow_world()
    at_ns = world.job.at_ns
    world.contend(CROSSED, at_ns, own=1, closed_ns=at_ns + 50 * MS, state="CLOSED")
    assert world.step()["verdict"] != Verdict.CONTENTION


def test_fewer_queue_pairs_than_uplinks_load_one_of_them() -> None:
    world = World(Job())
    world.trace_all_paths()
    slow(world)
    for source in (1, 3):
        world.contend(route(source, source + 1, 1)[1], world.job.at_ns, other=None, own=source)
    found = world.step()
    assert found["verdict"] == Verdict.FEW_QUEUE_PAIRS
    assert "for 8 uplinks" in found["text"]


def test_a_moment_of_a_queue_of_a_single_flow_is_no_lack_of_queue_pairs() -> None:
    world = World(Job())
    world.trace_all_paths()
    slow(world)
    at_ns = world.job.at_ns
    world.contend(route(1, 2, 1)[1], at_ns, other=None, own=1, closed_ns=at_ns + 40 * MS, state="CLOSED")
    assert world.step()["verdict"] != Verdict.FEW_QUEUE_PAIRS


def test_an_incast_by_the_job_itself_is_an_alternative() -> None:
    world = slow_world()
    world.contend(CROSSED, world.job.at_ns, own=1, other=None, kind=ContentionKind.INCAST)
    found = world.step()
    assert found["verdict"] in (Verdict.CONTENTION, Verdict.UNKNOWN)
    assert found["confidence"] < fitted_weights().calibrated(0.7)


def marked_world(marked: int = 30) -> World:
    """A slow pair whose probes of DSCP 26 are marked on the way."""
    world = World(Job())
    world.classes = (0, 26)
    world.learn()
    slow(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 3 else 4.0
    world.marked = lambda source, dscp: marked if (source, dscp) == (3, 26) else 0
    return world


def with_routes(world: World, spine: Callable[[int], int]) -> None:
    """Let the probes of each rank to the next one take these spines."""
    for source in range(8):
        target = (source + 1) % 8
        path = {
            "path": 50_000 + source,
            "leg": "REQUEST",
            "links": route(source, target, spine(source)),
            "complete": True,
        }
        world.network.take_paths(make(PathMaps, nic=nic(source), peer=nic(target), paths=[path]))


def test_a_slow_pair_with_marks_in_one_class_is_contention_with_the_class_named() -> None:
    world = marked_world()
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.CONTENTION, True)
    assert "30% of 100 probes with DSCP 26 arrive marked CE" in found["text"]
    evidence = {each["text"]: (each["number"], each["expected"]) for each in found["evidence"]}
    assert evidence["30% of 100 probes with DSCP 26 arrive marked CE"] == (0.3, 0.0)
    assert evidence["0% of 100 probes with DSCP 0 arrive marked CE"] == (0.0, None)
    assert Verdict.SLOW_FLOW in [each["verdict"] for each in found["alternatives"]]


def test_marks_name_the_link_that_no_unmarked_path_crosses() -> None:
    world = marked_world()
    with_routes(world, lambda source: 2 if source == 3 else 1)
    found = world.step()
    own, others = (
        route(3, 4, 2),
        {link for source in range(8) if source != 3 for link in route(source, (source + 1) % 8, 1)},
    )
    assert found["verdict"] == Verdict.CONTENTION
    assert found["subject"] in set(own) - others
    assert set(found["links"]) <= set(own) - others


def test_few_marks_are_no_contention() -> None:
    world = marked_world(marked=2)
    assert world.step()["verdict"] == Verdict.SLOW_FLOW


def test_marks_without_a_slow_pair_are_no_verdict() -> None:
    world = World(Job())
    world.marked = lambda source, dscp: 40
    assert world.learn()["verdict"] == Verdict.HEALTHY


def test_a_window_that_marks_found_states_them() -> None:
    world = slow_world()
    world.contend(CROSSED, world.job.at_ns, own=1, ce_share=0.4, dscp=26)
    found = world.step()
    assert found["verdict"] == Verdict.CONTENTION
    assert f"{CROSSED} marked 40% of the probes with DSCP 26" in [each["text"] for each in found["evidence"]]


def test_a_window_on_the_link_of_the_pair_is_not_named_twice() -> None:
    world = marked_world()
    world.contend(route(3, 4, 1)[1], world.job.at_ns, own=3)
    found = world.step()
    names = [found["verdict"], *(each["verdict"] for each in found["alternatives"])]
    assert names.count(Verdict.CONTENTION) == 1


def test_contention_with_a_queue_that_comes_and_goes_is_named_as_long_as_it_lasts() -> None:
    world = slow_world()
    found = []
    for at in range(24):
        if at % 6 == 0:  # each window but the first opens in a job that is slow already
            window = f"w{at}"
            world.contend(CROSSED, world.job.at_ns, own=1, window_id=window)
            opened_ns = world.job.at_ns
        if at % 6 == 5:
            closed_ns = world.job.at_ns + 500 * MS
            world.contend(CROSSED, opened_ns, own=1, window_id=window, closed_ns=closed_ns, state="CLOSED")
        found.append(world.step()["verdict"])
    assert set(found) == {Verdict.CONTENTION}


def spread(world: World, spines: list[int]) -> None:
    """Route the flow of each rank over a spine, also those between hosts of one leaf."""
    routes = {}
    for rank, spine in enumerate(spines):
        peer = (rank + 1) % world.job.ranks
        up = route(rank, (rank + 2) % world.job.ranks, spine)[:2]
        routes[rank] = {"links": up + route((peer + 2) % world.job.ranks, peer, spine)[2:]}
    world.flow_fields = routes


def spread_world(spines: list[int]) -> World:
    """A job that was fast and is slow, whose flows were spread over these spines."""
    world = World(Job())
    world.trace_all_paths(4)
    spread(world, spines)
    world.learn()
    slow(world)
    return world


def test_flows_that_meet_on_one_uplink_are_too_few_for_as_long_as_the_job_is_slow() -> None:
    world = spread_world([0, 1, 2, 3, 0, 1, 2, 3])
    spread(world, [0, 0, 2, 3, 0, 1, 2, 3])
    found = [world.step() for _ in range(20)]
    assert {each["verdict"] for each in found} == {Verdict.FEW_QUEUE_PAIRS}
    assert {each["subject"] for each in found} == {"leaf0:u0>spine0:p0"}


def test_flows_that_met_before_are_no_cause() -> None:
    world = spread_world([0, 0, 2, 3, 0, 1, 2, 3])
    assert world.step()["verdict"] != Verdict.FEW_QUEUE_PAIRS


def test_flows_that_meet_on_a_link_down_to_a_leaf_are_too_few() -> None:
    world = spread_world([0, 1, 2, 3, 0, 1, 2, 3])
    spread(world, [0, 1, 1, 3, 0, 1, 2, 3])
    found = world.step()
    assert found["verdict"] == Verdict.FEW_QUEUE_PAIRS
    assert "links from spines to leaf1" in found["text"]


def test_contention_seen_late_explains_the_slowest_pair() -> None:
    world = slow_world(pair=1)
    assert [world.step()["verdict"] for _ in range(4)] == [Verdict.SLOW_FLOW] * 4
    world.contend(CROSSED, world.job.at_ns, own=1)
    found = world.step()
    assert (found["verdict"], found["jobs"]) == (Verdict.CONTENTION, ["other"])


def test_contention_that_begins_later_elsewhere_is_no_cause() -> None:
    world = slow_world(pair=3)
    world.learn(4)
    world.contend(CROSSED, world.job.at_ns, own=1)
    assert world.step()["verdict"] == Verdict.SLOW_FLOW


def test_a_queue_on_a_link_as_full_as_before_is_no_lack_of_queue_pairs() -> None:
    world = spread_world([0, 0, 2, 3, 0, 1, 2, 3])
    world.contend("leaf0:u0>spine0:p0", world.job.at_ns, other=None, own=1)
    assert world.step()["verdict"] != Verdict.FEW_QUEUE_PAIRS


def test_contention_in_bursts_is_named_in_each() -> None:
    world = World(Job())
    world.learn()
    for burst in range(4):
        slow(world)
        begin_ns, window = world.job.at_ns, f"w{burst}"
        world.contend(CROSSED, begin_ns, own=1, window_id=window)
        assert {world.step()["verdict"] for _ in range(5)} == {Verdict.CONTENTION}
        end_ns = world.job.at_ns
        world.contend(CROSSED, begin_ns, own=1, window_id=window, closed_ns=end_ns, state="CLOSED")
        world.job.network = lambda rank, at: 4.0 * MS
        assert [world.step()["verdict"] for _ in range(5)][-2:] == [Verdict.HEALTHY] * 2


def test_contention_that_cost_nothing_for_long_is_no_cause_of_a_slow_pair() -> None:
    world = World(Job())
    world.learn()
    world.contend(CROSSED, world.job.at_ns, own=1)
    world.learn(20)
    slow(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 1 else 4.0
    assert {world.step()["verdict"] for _ in range(5)} == {Verdict.SLOW_FLOW}


def test_contention_seen_late_may_slow_one_of_two_slow_pairs() -> None:
    world = slow_world(ranks=12)
    world.job.pair_us = lambda rank, at: {1: 94.0, 7: 90.0 + 8 * (at % 2)}.get(rank, 4.0)
    world.learn(3)
    world.contend(CROSSED, world.job.at_ns, own=1)
    assert {world.step()["verdict"] for _ in range(6)} == {Verdict.CONTENTION}


def test_contention_is_named_where_operations_were_too_short_for_the_clocks_before() -> None:
    """Whole operations are first known in the slow time, which then is their baseline."""
    world = World(Job(bound_ns=60_000.0))
    world.job.network = lambda rank, at: 2.0 * MS
    world.learn(8)
    world.job.network = lambda rank, at: 10.0 * MS
    world.contend(CROSSED, world.job.at_ns, own=1)
    assert {world.step()["verdict"] for _ in range(10)} == {Verdict.CONTENTION}


def test_routes_that_become_known_later_are_no_lack_of_queue_pairs() -> None:
    world = World(Job())
    world.trace_all_paths(4)
    world.flow_fields = {rank: {"links": []} for rank in range(8)}
    world.learn(4)
    spread(world, [0, 0, 2, 3, 0, 1, 2, 3])
    world.learn(6)
    slow(world)
    assert world.step()["verdict"] != Verdict.FEW_QUEUE_PAIRS


def test_a_route_with_names_of_no_links_is_left_out() -> None:
    world = World(Job())
    world.flow_fields = {1: {"links": ["a", "b", "c", "d"]}}
    assert world.learn()["verdict"] == Verdict.HEALTHY


def test_sends_of_messages_that_take_longer_are_a_slow_flow_only_with_slow_probes() -> None:
    """MPI returns from a send when it likes: the time alone says nothing about the network."""
    is_named = {5.0: False, 105.0: False, 3_005.0: True}
    for probe_us, blames in is_named.items():
        world = World(Pipeline(queue_pairs=False))
        world.learn()
        world.job.send = lambda rank, at: 9.0 * MS if rank == 2 else 0.01 * MS
        world.probe_us = lambda source, target, us=probe_us: us if source == 2 else 5.0
        diagnosis = [world.step() for _ in range(7)][-1]
        assert (diagnosis["verdict"] == Verdict.SLOW_FLOW, diagnosis["blames_network"]) == (blames, blames)


def test_sends_of_a_pair_that_took_longer_since_the_begin_cost_nothing() -> None:
    world = World(Pipeline(queue_pairs=False, send=lambda rank, at: (9.0 if rank == 2 else 0.01) * MS))
    world.probe_us = lambda source, target: 105.0 if source == 2 else 5.0
    assert {world.step()["verdict"] for _ in range(8)} == {Verdict.HEALTHY}
