"""Slow flows, contention and too few queue pairs."""

from __future__ import annotations

from schemas.records import ContentionKind, Verdict
from tests.streams.diagnosis.scenario import MS, Job, World, nic, route

CROSSED = route(1, 2, 1)[1]


def slow(world: World) -> None:
    world.job.network = lambda rank, at: 12.0 * MS


def test_one_flow_of_94_us_among_flows_of_4() -> None:
    world = World(Job())
    world.learn()
    slow(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 3 else 4.0
    world.probe_us = lambda source, target: 90.0 if source == 3 else 5.0
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.SLOW_FLOW, True)
    assert found["nics"] == [nic(3), nic(4)]
    assert "h3/n0 to h4/n0 saw 94 us, others 4 us; path 50003 crosses" in found["text"]
    assert found["evidence"][0]["number"] == 94.0
    assert found["evidence"][0]["expected"] == 4.0


def test_a_slow_flow_is_found_without_a_good_time() -> None:
    world = World(Job())
    slow(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 3 else 4.0
    assert world.step()["verdict"] == Verdict.SLOW_FLOW


def test_a_drop_that_coincides_with_slow_queue_pairs() -> None:
    world = World(Job(ranks=12))
    world.learn()
    slow(world)
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
    world = World(Job())
    world.learn()
    slow(world)
    world.contend(CROSSED, world.job.at_ns, own=1)
    found = world.step()
    assert (found["verdict"], found["subject"], found["jobs"]) == (Verdict.CONTENTION, CROSSED, ["other"])
    assert found["confidence"] >= 0.9
    assert f"path 50001 crosses {CROSSED}, contended by job other" in found["text"]


def test_contention_explains_a_slow_flow() -> None:
    world = World(Job())
    world.learn()
    slow(world)
    world.job.pair_us = lambda rank, at: 94.0 if rank == 1 else 4.0
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
    world = World(Job())
    world.learn()
    slow(world)
    world.contend("leaf9:u1>spine1:p9", world.job.at_ns, flows=[], jobs=["other", "third"])
    assert world.step()["blames_network"] is False


def test_contention_without_loss_is_no_verdict() -> None:
    world = World(Job())
    world.learn()
    world.contend(CROSSED, world.job.at_ns, own=1)
    assert world.step()["verdict"] == Verdict.HEALTHY


def test_a_short_queue_is_not_blamed() -> None:
    world = World(Job())
    world.learn()
    slow(world)
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
    world = World(Job())
    world.learn()
    slow(world)
    world.contend(CROSSED, world.job.at_ns, own=1, other=None, kind=ContentionKind.INCAST)
    found = world.step()
    assert found["verdict"] in (Verdict.CONTENTION, Verdict.UNKNOWN)
    assert found["confidence"] < 0.7
