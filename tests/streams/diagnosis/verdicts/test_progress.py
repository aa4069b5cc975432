"""Jobs that do not go on: hangs, dead ranks, programs that disagree."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import (
    CollectiveFunction,
    Diagnosis,
    HealthKind,
    KeptReason,
    LinkState,
    RankCondition,
    Verdict,
)
from streams.diagnosis.model import fitted_weights
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import MS, Job, S, World, nic, route


def running(world: World, rank: int, begin_ns: int, **fields: Any) -> dict[str, Any]:
    """Return an operation that runs since `begin_ns`."""
    return make_part(
        "CollectiveBatch",
        "CollectiveOperation",
        **{
            "seq": world.job.seq,
            "function": CollectiveFunction.ALL_REDUCE,
            "bytes": 1 << 20,
            "begin_ns": begin_ns,
            "kept": KeptReason.RUNNING,
            **fields,
        },
    )


STOPPED = {"interval_ns": S, "cpu_ns": 0, "io_bytes": 0, "disk_share": 0.0, "stopped_share": 1.0}


def stop(
    world: World,
    missing: set[int],
    *,
    silent: set[int] = frozenset(),
    age_ns: int = 11 * S,
    **fields: Any,
) -> Diagnosis:
    """Let all ranks but some wait in an operation, for eleven seconds."""
    begin_ns = world.job.at_ns
    end_ns = begin_ns + age_ns
    batches = [
        world.job.batch(
            rank,
            [] if rank in missing else [running(world, rank, begin_ns + rank)],
            begin_ns,
            end_ns,
            **(fields if rank in missing or not missing else {}),
        )
        for rank in range(world.job.ranks)
        if rank not in silent
    ]
    world.job.at_ns = end_ns
    return world.diagnose(batches, end_ns - S, end_ns)


def test_a_rank_that_did_not_begin_an_operation_hangs_the_job() -> None:
    world = World(Job())
    world.learn()
    found = stop(world, {5}, activity=STOPPED)
    assert (found["verdict"], found["ranks"], found["blames_network"]) == (Verdict.HANG, [5], False)
    assert "its process is stopped by a signal" in found["text"]
    assert found["confidence"] >= 0.9
    assert "rank 5 on h5 did not begin it" in found["text"]


def test_a_missing_rank_that_reports_nothing_is_less_certain() -> None:
    world = World(Job())
    world.learn()
    found = stop(world, {5}, silent={5}, age_ns=181 * S)
    assert (found["verdict"], found["ranks"]) == (Verdict.HANG, [5])
    assert 0.5 <= found["confidence"] < fitted_weights().calibrated(0.9)
    assert "rank 5 is not known" in found["text"]


def test_a_process_that_ended_in_mid_operation_is_a_dead_rank() -> None:
    world = World(Job())
    world.learn()
    found = stop(world, {5}, ended=True)
    assert (found["verdict"], found["ranks"]) == (Verdict.DEAD_RANK, [5])


def test_a_dead_rank_is_found_before_the_operation_counts_as_hanging() -> None:
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    end_ns = begin_ns + S
    batches = [
        world.job.batch(r, [] if r == 5 else [running(world, r, begin_ns)], begin_ns, end_ns, ended=r == 5)
        for r in range(8)
    ]
    assert world.diagnose(batches, begin_ns, end_ns)["verdict"] == Verdict.DEAD_RANK


def test_a_host_that_is_down_is_a_dead_rank() -> None:
    world = World(Job())
    world.learn()
    world.network.take_health(
        make(
            "LinkHealth",
            subject="h5",
            kind=HealthKind.HOST,
            shard="fabric",
            seq=1,
            state=LinkState.DOWN,
            before="UP",
            since_ns=world.job.at_ns,
            text="h5 is down",
        )
    )
    found = stop(world, {5}, silent={5})
    assert (found["verdict"], found["subject"]) == (Verdict.DEAD_RANK, "h5")


def test_a_rank_that_nccl_reports_as_dead_is_a_dead_rank() -> None:
    world = World(Job())
    world.learn()
    state = make_part(
        "CollectiveBatch",
        "RankState",
        communicator=world.job.communicator,
        rank=5,
        host="h5",
        state=RankCondition.DEAD,
        operations=-1,
        text="no keep-alive for 60 s",
    )
    begin_ns = world.job.at_ns
    end_ns = begin_ns + 10 * S
    batches = [
        world.job.batch(r, [running(world, r, begin_ns)], begin_ns, end_ns, ranks=[state] if r == 0 else [])
        for r in range(8)
        if r != 5
    ]
    found = world.diagnose(batches, end_ns - S, end_ns)
    assert (found["verdict"], found["ranks"]) == (Verdict.DEAD_RANK, [5])


def test_a_missing_rank_that_waits_elsewhere_is_not_the_cause() -> None:
    """Ranks 0 to 3 wait for rank 4 in one communicator; it waits in another for rank 6."""
    world = World(Job(queue_pairs=False))
    world.learn()
    begin_ns = world.job.at_ns
    end_ns = begin_ns + 10 * S
    first = make_part("CollectiveBatch", "Communicator", id="first", ranks=5)
    second = make_part("CollectiveBatch", "Communicator", id="second", ranks=4)
    batches = []
    for rank in range(8):
        members = ([{**first, "rank": rank}] if rank <= 4 else []) + (
            [{**second, "rank": rank - 4}] if rank >= 4 else []
        )
        operations = [] if rank == 6 else [running(world, rank, begin_ns, seq=1)]
        batches.append(world.job.batch(rank, operations, begin_ns, end_ns, communicators=members[::-1]))
    found = world.diagnose(batches, end_ns - S, end_ns)
    assert (found["verdict"], found["subject"]) == (Verdict.STALLED, "h6")


def test_an_operation_that_all_ranks_began_stops_at_a_dead_link() -> None:
    world = World(Job())
    world.learn()
    world.health(route(1, 2, 1)[1], LinkState.DOWN, world.job.at_ns)
    found = stop(world, set())
    assert (found["verdict"], found["blames_network"]) == (Verdict.DEAD_LINK, True)


def test_an_operation_that_all_ranks_began_hangs_at_a_link_that_loses_many_packets() -> None:
    world = World(Job())
    world.learn()
    world.health(route(1, 2, 1)[1], LinkState.GREY, world.job.at_ns, loss_rate=0.2)
    found = stop(world, set())
    assert (found["verdict"], found["loss_share"]) == (Verdict.GREY_LINK, 1.0)


def test_a_link_that_loses_few_packets_does_not_hang_an_operation() -> None:
    world = World(Job())
    world.learn()
    world.health(route(1, 2, 1)[1], LinkState.GREY, world.job.at_ns, loss_rate=0.001)
    assert stop(world, set())["verdict"] == Verdict.HANG


def test_a_nic_that_sends_pause_frames_and_receives_nothing_pauses_the_fabric() -> None:
    world = World(Job())
    world.learn()
    last = route(1, 2, 1)[-1]
    world.health(last, LinkState.DOWN, world.job.at_ns)
    counters = [make_part("CollectiveBatch", "NicCounter", nic=nic(2), pause_sent=50_000)]
    found = stop(world, set(), counters=counters)
    assert (found["verdict"], found["subject"]) == (Verdict.PAUSE_STORM, nic(2))


def test_an_operation_that_all_ranks_began_hangs_for_unknown_reasons_without_a_fault() -> None:
    world = World(Job())
    world.learn()
    found = stop(world, set())
    assert (found["verdict"], found["blames_network"]) == (Verdict.HANG, False)
    assert found["confidence"] < fitted_weights().calibrated(0.7)


def test_a_dead_link_does_not_explain_a_missing_rank() -> None:
    world = World(Job())
    world.learn()
    world.health(route(1, 2, 1)[1], LinkState.DOWN, world.job.at_ns)
    found = stop(world, {5})
    assert (found["verdict"], found["ranks"]) == (Verdict.STALLED, [5])


def test_ranks_that_call_different_functions_under_one_number_do_not_match() -> None:
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    end_ns = begin_ns + 10 * S
    batches = [
        world.job.batch(
            r,
            [
                running(
                    world,
                    r,
                    begin_ns,
                    function=CollectiveFunction.BROADCAST if r == 2 else CollectiveFunction.ALL_REDUCE,
                )
            ],
            begin_ns,
            end_ns,
        )
        for r in range(8)
    ]
    found = world.diagnose(batches, end_ns - S, end_ns)
    assert (found["verdict"], found["ranks"]) == (Verdict.PROGRAM_MISMATCH, [2])


@pytest.mark.parametrize("function", ["ALL_REDUCE", "GATHER", "GATHERV"])
def test_ranks_that_call_different_sizes_do_not_match(function: str) -> None:
    """Each rank may have a size of its own in functions whose name ends in V only."""
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    end_ns = begin_ns + 10 * S
    sizes = [4096 if rank == 2 else 1 << 20 for rank in range(8)]
    batches = [
        world.job.batch(
            rank, [running(world, rank, begin_ns, bytes=size, function=function)], begin_ns, end_ns
        )
        for rank, size in enumerate(sizes)
    ]
    found = world.diagnose(batches, end_ns - S, end_ns)
    is_accused = (found["verdict"], found["ranks"]) == (Verdict.PROGRAM_MISMATCH, [2])
    assert is_accused == (function != "GATHERV")


def test_ranks_that_wait_for_each_other_in_two_communicators_do_not_match() -> None:
    world = World(Job(ranks=2, queue_pairs=False), flows=False, probes=False)
    begin_ns = world.job.at_ns
    end_ns = begin_ns + 10 * S
    names = [make_part("CollectiveBatch", "Communicator", id=name, ranks=2) for name in ("a", "b")]
    batches = [
        world.job.batch(
            r,
            [running(world, r, begin_ns, communicator=r, seq=3)],
            begin_ns,
            end_ns,
            communicators=[{**each, "rank": r} for each in names],
        )
        for r in range(2)
    ]
    assert world.diagnose(batches, end_ns - S, end_ns)["verdict"] == Verdict.PROGRAM_MISMATCH


def test_an_operation_that_ended_unseen_does_not_hang() -> None:
    """The trace budget leaves out its end, and a later one ended."""
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    batches = [world.job.batch(r, [running(world, r, begin_ns)], begin_ns, begin_ns + S) for r in range(8)]
    world.diagnose(batches, begin_ns, begin_ns + S)
    world.job.at_ns = begin_ns + S
    world.job.seq += 1
    for _ in range(8):
        found = world.step()
    assert found["verdict"] == Verdict.HEALTHY


def test_a_job_that_ends_is_healthy() -> None:
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    batches = world.job.run()
    for each in batches:
        each["ended"] = True
    assert world.diagnose(batches, begin_ns, world.job.at_ns)["verdict"] == Verdict.HEALTHY
    assert world.view.has_ended


def stall(world: World, age_ns: int, missing: int) -> Diagnosis:
    """Diagnose a job that waits for a rank since `age_ns`."""
    begin_ns = world.job.at_ns
    end_ns = begin_ns + age_ns
    batches = [
        world.job.batch(r, [] if r == missing else [running(world, r, begin_ns)], begin_ns, end_ns)
        for r in range(8)
    ]
    return world.diagnose(batches, begin_ns, end_ns)


def test_a_job_that_stalls_is_not_healthy_before_it_counts_as_hanging() -> None:
    world = World(Job())
    world.learn()
    found = stall(world, 2 * S + 500 * MS, 5)
    assert (found["verdict"], found["ranks"]) == (Verdict.STALLED, []), "its report may be under way"
    found = stall(world, 4 * S, 5)
    assert (found["verdict"], found["ranks"], found["subject"]) == (Verdict.STALLED, [5], "h5")
    assert "runs for 4.0 s, " in found["text"]
    assert " ms usually" in found["text"]
    assert "HANG after 180 s" in found["remedy"]


def test_a_wait_of_a_second_is_no_stall() -> None:
    world = World(Job())
    world.learn()
    assert stall(world, S, 5)["verdict"] == Verdict.HEALTHY


def test_an_operation_that_ended_does_not_run_on_in_a_pause_of_the_job() -> None:
    """Its record while it ran is kept, and no later operation shows that it is over."""
    world = World(Job())
    world.learn()
    stall(world, 3 * S, 0)
    begin_ns, seq = world.job.at_ns, world.job.seq
    end_ns = begin_ns + 4 * S
    ended = [running(world, r, begin_ns, end_ns=end_ns, kept=KeptReason.SLOW, seq=seq) for r in range(8)]
    world.diagnose(
        [world.job.batch(r, [ended[r]], begin_ns + 3 * S, end_ns) for r in range(8)], begin_ns, end_ns
    )
    pause = [world.job.batch(r, [], end_ns, end_ns + 8 * S) for r in range(8)]
    found = world.diagnose(pause, end_ns + 3 * S, end_ns + 8 * S)
    assert found["verdict"] not in (Verdict.HANG, Verdict.DEAD_RANK), found["text"]


def test_a_stall_as_long_as_earlier_ones_is_healthy() -> None:
    """One rank writes checkpoints."""
    world = World(Job())
    world.learn()
    assert stall(world, 3 * S, 0)["verdict"] == Verdict.STALLED
    world.job.at_ns += 3 * S
    world.learn()
    assert stall(world, 3 * S + 500 * MS, 0)["verdict"] == Verdict.HEALTHY


def test_the_first_death_is_named_and_not_those_that_the_launcher_kills() -> None:
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    end_ns = begin_ns + 2 * S
    ends = {2: begin_ns + S, 0: begin_ns + S + 300 * MS, 1: begin_ns + S + 301 * MS}
    batches = [
        world.job.batch(r, [running(world, r, begin_ns)], begin_ns, ends.get(r, end_ns), ended=r in ends)
        for r in range(8)
    ]
    found = world.diagnose(batches, begin_ns, end_ns)
    assert (found["verdict"], found["subject"], found["ranks"]) == (Verdict.DEAD_RANK, "h2", [2])
    assert "rank 2 on h2 died" in found["text"]
    assert "2 more ended, from 300 ms later on" in found["text"]


def test_a_rank_that_sleeps_for_seconds_stalls_the_job_and_does_not_hang_it() -> None:
    """Its process reports nothing meanwhile: records without operations come each ten seconds."""
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    for second in range(1, 10):
        end_ns = begin_ns + second * S
        batches = [
            world.job.batch(r, [running(world, r, begin_ns)], end_ns - S, end_ns) for r in range(8) if r != 5
        ]
        found = world.diagnose(batches, end_ns - S, end_ns)
        assert found["verdict"] in (Verdict.STALLED, Verdict.HEALTHY), second
    assert (found["verdict"], found["subject"], found["ranks"]) == (Verdict.STALLED, "h5", [5])
    assert "did not begin it" in found["text"]


def test_a_pause_as_long_as_earlier_ones_is_no_hang() -> None:
    world = World(Job())
    world.learn()
    world.view.stalls.note(7, 1, 20 * S, world.job.at_ns)
    world.view.stalls.note(0, 0, 0, world.job.at_ns)
    assert stop(world, {5})["verdict"] != Verdict.HANG
