"""Delays that explain the time that a job loses, and those that cannot."""

from __future__ import annotations

from schemas.records import Diagnosis, Verdict
from streams.diagnosis.explained import rounds_of
from tests.streams.diagnosis.scenario import MS, Job, World, nic

RTT_NS = 10_000_000


def slowed(world: World, network_ms: float = 110, steps: int = 6) -> list[Diagnosis]:
    world.learn(8)
    world.job.network = lambda rank, at: network_ms * MS
    return [world.step() for _ in range(steps)]


def mpi_world(**fields: object) -> World:
    """Return a job without queue pairs, as MPI over TCP is."""
    return World(
        Job(compute=lambda r, a: 40 * MS, network=lambda r, a: 45 * MS, queue_pairs=False, **fields)  # type: ignore[arg-type]
    )


def test_a_few_microseconds_of_one_pair_do_not_explain_lost_milliseconds() -> None:
    world = mpi_world()
    world.probe_us = lambda source, target: 40.0 if source == 2 else 5.0
    answers = slowed(world)
    assert not any(answer["blames_network"] for answer in answers), answers[-1]["text"]


def test_a_delay_that_explains_the_loss_is_named() -> None:
    world = mpi_world()
    world.probe_us = lambda source, target: 900.0 if source == 2 else 5.0
    assert slowed(world)[-1]["verdict"] == Verdict.SLOW_FLOW


def test_probes_that_wait_for_the_job_s_own_packets_are_no_fault() -> None:
    """Rank 2 fills its own NIC."""
    world = mpi_world()
    world.flow_fields = {2: {"rate_bps": 9.5e10, "busy_share": 1.0}}
    world.probe_us = lambda source, target: 900.0 if source == 2 else 5.0
    assert not any(answer["blames_network"] for answer in slowed(world))


def test_flows_with_usual_round_trips_contradict_slow_probes() -> None:
    world = mpi_world()
    world.flow_fields = {rank: {"rtt_ns": 100_000} for rank in range(8)}
    world.probe_us = lambda source, target: 900.0 if source == 2 else 5.0
    assert not any(answer["blames_network"] for answer in slowed(world))


def test_a_nic_at_a_lower_rate_is_found_by_the_round_trips_of_its_flows() -> None:
    world = mpi_world()
    world.flow_fields = {rank: {"rtt_ns": 100_000} for rank in range(8)}
    world.learn(8)
    touched = {2, 1}  # rank 1 sends to h2, rank 2 sends from it
    world.flow_fields = {rank: {"rtt_ns": RTT_NS if rank in touched else 100_000} for rank in range(8)}
    found = slowed(world, steps=8)[-1]
    assert (found["verdict"], found["subject"], found["blames_network"]) == (
        Verdict.SLOW_SENDER,
        nic(2),
        False,
    )
    assert "round trips of 10.0 ms, flows of other NICs 100 µs" in found["text"]


def test_long_round_trips_of_all_nics_name_none() -> None:
    world = mpi_world()
    world.flow_fields = {rank: {"rtt_ns": RTT_NS} for rank in range(8)}
    assert slowed(world)[-1]["verdict"] != Verdict.SLOW_SENDER


def test_a_nic_that_sends_more_than_all_others_is_not_slow() -> None:
    world = mpi_world()
    world.flow_fields = {
        rank: {"rtt_ns": RTT_NS if rank in (1, 2) else 100_000, "rate_bps": 4e10 if rank == 2 else 1e10}
        for rank in range(8)
    }
    assert slowed(world)[-1]["verdict"] != Verdict.SLOW_SENDER


def test_rounds_grow_with_ranks_and_with_windows_of_tcp() -> None:
    assert rounds_of(2, 1_000) == 4
    assert rounds_of(8, 1_000) == 28
    assert rounds_of(8, 8 * 1_000_000) >= 4 * rounds_of(8, 1_000)
