"""Settings: rails, traffic classes, own pacing."""

from __future__ import annotations

from schemas.records import (
    ActionOutcome,
    ActionReport,
    AuditCategory,
    AuditResult,
    AuditStatus,
    Decision,
    FlowAction,
    Nic,
    Reason,
    ReasonKind,
    Verdict,
)
from tests.records import make
from tests.streams.diagnosis.scenario import MS, Job, S, World, nic, route, slow, slow_world

REASON: Reason = {"kind": ReasonKind.INCAST, "subject": "x", "seq": None, "window_id": None}


def pace(
    world: World, rank: int, outcome: ActionOutcome = ActionOutcome.APPLIED, rate_bps: int = 4 * 10**10
) -> None:
    at_ns = world.job.at_ns
    decision = make(
        Decision,
        shard="fabric",
        epoch=1,
        seq=7,
        at_ns=at_ns,
        host=f"h{rank}",
        action=FlowAction.PACE,
        flow_id=world.job.flow_id(rank),
        rate_bps=rate_bps,
        expires_at_ns=at_ns + 60 * S,
        reason=REASON,
        text="paced",
    )
    world.network.take_decision(decision)
    world.network.take_action(
        make(
            ActionReport,
            host=f"h{rank}",
            decision_id=decision["decision_id"],
            shard="fabric",
            epoch=1,
            seq=7,
            at_ns=at_ns,
            flow_id=world.job.flow_id(rank),
            action=FlowAction.PACE,
            outcome=outcome,
        )
    )


def test_a_decision_to_pace_that_is_in_force_explains_slow_transfers() -> None:
    world = slow_world()
    pace(world, 3)
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.OWN_PACING, False)
    assert found["confidence"] >= 0.9
    assert "limited to 40.0 Gbit/s by decision fabric/1/7" in found["text"]


def test_a_decision_that_was_not_applied_is_not_blamed() -> None:
    world = slow_world()
    pace(world, 3, ActionOutcome.OBSERVED)
    assert world.step()["verdict"] == Verdict.UNKNOWN


def test_a_limit_far_above_the_flow_is_not_blamed() -> None:
    world = slow_world()
    pace(world, 3, rate_bps=9 * 10**11)
    assert world.step()["verdict"] == Verdict.UNKNOWN


def test_a_limit_of_the_kernel_is_pacing_too() -> None:
    world = slow_world()
    world.flow_fields = {3: {"rate_limit_bps": 4 * 10**10}}
    assert world.step()["verdict"] == Verdict.OWN_PACING


def test_a_pair_between_rails_that_is_slower_is_a_mismatch() -> None:
    world = World(Job())
    for host in range(8):
        world.network.take_nic(
            make(Nic, nic=nic(host), shard="fabric", rail=1 if host == 3 else 0, clock=f"h{host}/ptp0")
        )
    slow(world)
    world.job.pair_us = lambda rank, at: 70.0 if rank in (2, 3) else 4.0
    found = world.step()
    assert (found["verdict"], found["subject"], found["blames_network"]) == (
        Verdict.RAIL_MISMATCH,
        nic(3),
        False,
    )


def test_a_wrong_rail_explains_the_queue_that_its_flows_meet_others_in() -> None:
    world = World(Job())
    world.trace_all_paths()
    for host in range(8):
        world.network.take_nic(
            make(Nic, nic=nic(host), shard="fabric", rail=1 if host == 1 else 0, clock=f"h{host}/ptp0")
        )
    slow(world)
    world.job.pair_us = lambda rank, at: 6.0 if rank in (0, 1) else 4.0
    world.contend(route(1, 2, 1)[1], world.job.at_ns, other=None, own=1)
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.RAIL_MISMATCH, nic(1))
    assert Verdict.FEW_QUEUE_PAIRS in [each["verdict"] for each in found["alternatives"]]


def test_a_job_across_all_rails_is_no_mismatch() -> None:
    world = World(Job())
    for host in range(8):
        world.network.take_nic(make(Nic, nic=nic(host), shard="fabric", rail=host % 2, clock=f"h{host}/ptp0"))
    assert world.learn()["verdict"] == Verdict.HEALTHY


def test_in_band_250_us_against_10_out_of_band() -> None:
    world = World(Job())
    slow(world)
    world.job.pair_us = lambda rank, at: 250.0
    found = world.step()
    assert (found["verdict"], found["blames_network"]) == (Verdict.DELAY_MISMATCH, False)
    assert "probes 10.0 µs without a queue" in found["text"]


def test_a_failed_check_of_the_traffic_class_names_the_host() -> None:
    world = World(Job())
    world.network.take_audit(
        make(
            AuditResult,
            run="r",
            host="h3",
            check="backend.roce-version",
            category=AuditCategory.BACKEND,
            status=AuditStatus.FAILED,
            text="mlx5_0: RoCE v1, expected v2",
            checked_ns=1,
        )
    )
    slow(world)
    world.job.pair_us = lambda rank, at: 250.0 if rank in (2, 3) else 4.0
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.DELAY_MISMATCH, nic(3))


def test_probes_that_see_the_queue_too_are_no_mismatch() -> None:
    world = World(Job())
    slow(world)
    world.job.pair_us = lambda rank, at: 250.0
    world.probe_us = lambda source, target: 110.0
    assert world.step()["verdict"] != Verdict.DELAY_MISMATCH


def states_class(world: World, host: int, dscp: int) -> None:
    """Let the audit of a host state the DSCP of its RDMA data."""
    fact = {"name": "roce_dscp", "subject": "mlx5_0/1", "text": str(dscp), "number": float(dscp)}
    world.network.take_audit(
        make(
            AuditResult,
            run="r",
            host=f"h{host}",
            check="backend.lossless-class",
            category=AuditCategory.BACKEND,
            status=AuditStatus.PASSED,
            facts=[fact],
        )
    )


def test_data_in_a_class_that_no_probe_measures_is_named() -> None:
    world = World(Job())
    for host in range(8):
        states_class(world, host, 26)
    slow(world)
    world.job.pair_us = lambda rank, at: 250.0
    found = world.step()
    assert found["verdict"] == Verdict.DELAY_MISMATCH
    assert "wrong traffic class: data of h0/n0 leaves with DSCP 26, its probes with 0" in found["text"]
    evidence = next(each for each in found["evidence"] if each["quantity"] == "roce_dscp")
    assert (evidence["number"], evidence["expected"]) == (26, 0)


def test_a_host_with_another_class_than_its_job_is_named() -> None:
    world = World(Job())
    world.classes = (0, 26)
    for host in range(8):
        states_class(world, host, 0 if host == 3 else 26)
    slow(world)
    world.job.pair_us = lambda rank, at: 250.0 if rank in (2, 3) else 4.0
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.DELAY_MISMATCH, nic(3))
    assert "data of h3/n0 leaves with DSCP 0, of most others with 26" in found["text"]


def test_data_in_a_probed_class_is_no_wrong_class() -> None:
    world = World(Job())
    world.classes = (26,)
    for host in range(8):
        states_class(world, host, 26)
    slow(world)
    world.job.pair_us = lambda rank, at: 250.0
    found = world.step()
    assert "wrong traffic class or RoCE version" in found["text"]
    assert all(each["quantity"] != "roce_dscp" for each in found["evidence"])


def test_a_limit_without_a_decision_is_named_as_long_as_it_lasts() -> None:
    world = slow_world()
    world.flow_fields = {3: {"rate_limit_bps": 4 * 10**10}}
    assert {world.step()["verdict"] for _ in range(20)} == {Verdict.OWN_PACING}


def test_a_wrong_rail_that_costs_nothing_does_not_explain_another_jobs_queue() -> None:
    world = World(Job())
    world.network.take_nic(make(Nic, nic=nic(5), shard="fabric", rail=1, clock="c", speed_bps=10**11))
    world.job.pair_us = lambda rank, at: 4.9 if rank in (4, 5) else 4.0
    world.job.network = lambda rank, at: 2.0 * MS
    assert world.learn(6)["verdict"] == Verdict.HEALTHY
    slow(world)
    world.contend(route(5, 6, 1)[1], world.job.at_ns, own=5)
    assert world.step()["verdict"] == Verdict.CONTENTION
