"""Operations that do not end: pauses of programs, and hangs with evidence."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import HealthKind, LinkState, Verdict
from tests.records import make
from tests.streams.diagnosis.scenario import Job, S, World, nic
from tests.streams.diagnosis.verdicts.test_progress import STOPPED, stall, stop


@pytest.mark.parametrize("age_s", [5, 11, 30, 60, 120])
@pytest.mark.parametrize("history", [0, 4])
def test_a_pause_of_a_job_with_or_without_history_is_no_hang(age_s: int, history: int) -> None:
    """One rank writes a checkpoint, or all but one evaluate, for the first time."""
    world = World(Job())
    if history:
        world.learn(history)
    found = stop(world, {0}, age_ns=age_s * S)
    assert found["verdict"] in (Verdict.STALLED, Verdict.UNKNOWN, Verdict.HEALTHY)
    assert age_s < 11 or found["ranks"] == [0]


@pytest.mark.parametrize(
    ("activity", "text"),
    [
        ({"cpu_ns": S}, "computes on 1.0 processors"),
        ({"io_bytes": 100_000_000}, "reads or writes 100 MB/s"),
        ({"disk_share": 0.8}, "waits for a disk"),
        ({}, "sleeps: it uses neither processor nor disk"),
    ],
)
def test_a_stall_states_the_activity_of_the_late_rank(activity: dict[str, Any], text: str) -> None:
    world = World(Job())
    world.learn()
    found = stop(world, {5}, activity=STOPPED | {"stopped_share": 0.0, **activity})
    assert (found["verdict"], found["ranks"]) == (Verdict.STALLED, [5])
    assert text in found["text"]


def test_a_late_rank_with_a_nic_that_is_down_hangs_the_job() -> None:
    world = World(Job())
    world.learn()
    down = {"kind": HealthKind.NIC, "shard": "fabric", "seq": 1, "state": LinkState.DOWN, "before": "UP"}
    world.network.take_health(
        make("LinkHealth", subject=nic(5), since_ns=world.job.at_ns, text="h5/n0 is down", **down)
    )
    found = stop(world, {5})
    assert (found["verdict"], found["ranks"]) == (Verdict.HANG, [5])
    assert "h5/n0 is down" in [each["text"] for each in found["evidence"]]


def test_a_stall_that_is_over_leaves_no_verdict_behind() -> None:
    world = World(Job())
    world.learn()
    assert stall(world, 5 * S, 5)["verdict"] == Verdict.STALLED
    world.job.at_ns += 5 * S
    world.job.seq += 1
    assert world.step()["verdict"] != Verdict.STALLED
