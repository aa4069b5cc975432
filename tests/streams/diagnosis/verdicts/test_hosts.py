"""Hosts: slow senders and receivers, PCIe, pause storms."""

from __future__ import annotations

import pytest

from schemas.records import AuditCategory, AuditResult, AuditStatus, ContentionKind, Verdict
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import MS, Job, World, nic, route, slow, slow_world


def test_flushing_at_one_host_is_a_pcie_limit() -> None:
    world = World(Job(split=True))
    world.learn()
    world.job.flush = lambda rank, at: 4.0 * MS if rank == 2 else 0.05 * MS
    found = world.step()
    assert (found["verdict"], found["subject"], found["blames_network"]) == (
        Verdict.PCIE_LIMIT,
        nic(2),
        False,
    )


def test_waiting_for_the_gpu_at_one_host_is_a_pcie_limit() -> None:
    world = World(Job(split=True))
    world.learn()
    world.job.gpu = lambda rank, at: 4.0 * MS if rank == 2 else 0.05 * MS
    found = world.step()
    assert (found["verdict"], found["ranks"]) == (Verdict.PCIE_LIMIT, [2])


def test_a_nic_slow_in_both_directions_with_normal_probes_is_a_pcie_limit() -> None:
    world = slow_world()
    world.job.pair_us = lambda rank, at: 120.0 if rank in (2, 3) else 4.0
    found = world.step()
    assert (found["verdict"], found["subject"], found["blames_network"]) == (
        Verdict.PCIE_LIMIT,
        nic(3),
        False,
    )


def test_a_failed_check_of_pcie_confirms_it() -> None:
    world = slow_world()
    world.network.take_audit(
        make(
            AuditResult,
            run="r",
            host="h3",
            check="pcie.link",
            category=AuditCategory.PCIE,
            status=AuditStatus.FAILED,
            text="mlx5_0: x8, expected x16",
            checked_ns=1,
        )
    )
    world.job.pair_us = lambda rank, at: 120.0 if rank in (2, 3) else 4.0
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.PCIE_LIMIT, nic(3))
    assert "fabric.audit" in [each["topic"] for each in found["evidence"]]


@pytest.mark.parametrize(
    ("field", "verdict", "place"),
    [
        ("sender_limited_share", Verdict.SLOW_SENDER, 3),
        ("receiver_limited_share", Verdict.SLOW_RECEIVER, 4),
    ],
)
def test_flows_limited_by_one_end_name_its_host(field: str, verdict: Verdict, place: int) -> None:
    world = slow_world(queue_pairs=False)
    world.flow_fields = {3: {field: 0.9}}
    found = world.step()
    assert (found["verdict"], found["subject"], found["blames_network"]) == (verdict, nic(place), False)


def test_flows_that_are_all_limited_name_no_host() -> None:
    world = slow_world(queue_pairs=False)
    world.flow_fields = {rank: {"sender_limited_share": 0.9} for rank in range(8)}
    assert world.step()["verdict"] == Verdict.UNKNOWN


def test_a_contention_window_of_a_slow_receiver_names_it() -> None:
    world = slow_world(queue_pairs=False)
    world.contend(route(3, 4, 1)[-1], world.job.at_ns, other=None, own=3, kind=ContentionKind.SLOW_RECEIVER)
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.SLOW_RECEIVER, nic(4))


def test_a_pause_storm_names_its_nic() -> None:
    world = slow_world()
    last = route(3, 4, 1)[-1]
    world.contend(last, world.job.at_ns, other=None, own=3, kind=ContentionKind.PAUSE_STORM, links=[last])
    found = world.step()
    assert (found["verdict"], found["subject"], found["blames_network"]) == (
        Verdict.PAUSE_STORM,
        nic(4),
        True,
    )


def test_a_pause_storm_of_40_ms_explains_nothing() -> None:
    world = slow_world(queue_pairs=False)
    last, begin_ns = route(3, 4, 1)[-1], world.job.at_ns
    kind, closed_ns = ContentionKind.PAUSE_STORM, begin_ns + 40 * MS
    world.contend(last, begin_ns, other=None, own=3, kind=kind, closed_ns=closed_ns)
    diagnosis = world.step()
    assert Verdict.PAUSE_STORM not in {
        diagnosis["verdict"],
        *(other["verdict"] for other in diagnosis["alternatives"]),
    }


def test_a_nic_that_was_a_slow_receiver_for_longer_is_no_storm() -> None:
    world = slow_world(queue_pairs=False)
    last, begin_ns = route(3, 4, 1)[-1], world.job.at_ns
    ends = (
        (ContentionKind.SLOW_RECEIVER, begin_ns, begin_ns + 600 * MS),
        (ContentionKind.PAUSE_STORM, begin_ns + 700 * MS, begin_ns + 950 * MS),
    )
    for number, (kind, opened_ns, closed_ns) in enumerate(ends):
        world.contend(
            last, opened_ns, other=None, own=3, kind=kind, window_id=f"w{number}", closed_ns=closed_ns
        )
    found = world.step()
    assert (found["verdict"], found["subject"]) == (Verdict.SLOW_RECEIVER, nic(4))


def test_pause_frames_of_one_nic_are_a_pause_storm() -> None:
    world = slow_world()
    begin_ns = world.job.at_ns
    batches = world.job.run()
    batches[4]["counters"] = [make_part("CollectiveBatch", "NicCounter", nic=nic(4), pause_sent=50_000)]
    found = world.diagnose(batches, begin_ns, world.job.at_ns)
    assert (found["verdict"], found["subject"]) == (Verdict.PAUSE_STORM, nic(4))


@pytest.mark.parametrize(("other", "verdict"), [(None, Verdict.SLOW_RECEIVER), ("other", Verdict.CONTENTION)])
def test_a_receiver_that_others_send_to_need_not_be_slow_itself(other: str | None, verdict: Verdict) -> None:
    world = World(Job())
    world.flow_fields = {2: {"peer": nic(4), "links": route(2, 4, 1)}}
    world.learn()
    slow(world)
    world.job.pair_us = lambda rank, at: 120.0 if rank in (2, 3) else 4.0
    world.contend(
        route(3, 4, 1)[-1], world.job.at_ns, other=other, own=3, share=0.2, kind=ContentionKind.INCAST
    )
    found = world.step()
    assert found["verdict"] == verdict


def test_a_slow_receiver_is_as_old_as_its_flows_limits_when_its_queue_opens_later() -> None:
    world = slow_world()
    world.flow_fields = {3: {"receiver_limited_share": 0.9}}
    found = [world.step() for _ in range(3)]
    world.contend(route(3, 4, 1)[-1], world.job.at_ns, other=None, own=3, kind=ContentionKind.SLOW_RECEIVER)
    found += [world.step() for _ in range(2)]
    assert {each["verdict"] for each in found} == {Verdict.SLOW_RECEIVER}
    assert found[-1]["loss_share"] > 0.3
