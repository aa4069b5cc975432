"""Link health of a fleet whose time passes more slowly than the log's, or stands still."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from fabrictime.bench._sim_pipeline import FLEET_TOPICS
from producers.sim.settings import SimSettings
from producers.sim.setup import topology_file
from producers.sim.simulation import TICK_NS, Simulation
from schemas.records import LinkHealth
from schemas.topics import LINK_HEALTH
from schemas.topology import Topology
from streams.clock.stage import ClockStage
from streams.delays.stage import DelayStage
from streams.links.stage import LinksStage
from streams.runtime.operator import Output
from streams.runtime.pipeline_constants import HOP_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.sim_runner import SimRunner

S = 1_000_000_000


def slow_health(seed: int, fault: str, seconds: float, *, stalls: bool) -> list[LinkHealth]:
    """Return the records of link health of a fleet that is slow from its fourth second on.

    Its pace is drawn anew each 0.1 s. In a stall the log's clock passes and the fleet's does not.
    """
    draw = random.Random(seed)
    sim = Simulation(
        SimSettings(nics=16, seed=seed, load=0.0, rate_pps=200, faults=(fault,)), topics=FLEET_TOPICS
    )
    runner = SimRunner(
        [DelayStage(), ClockStage(), LinksStage()],
        sim.start_ns,
        partition_count=4,
        settings=StreamSettings(default_shard=sim.settings.shard),
        topology=Topology(topology_file(sim.fleet)),
    )
    stalled = {draw.randrange(550, 950): draw.randrange(1, 6) for _ in range(2)} if stalls else {}
    log_ns, pace = sim.start_ns, 1.0
    records: list[LinkHealth] = []
    for tick in range(round(seconds * 100)):
        if tick >= 400 and tick % 10 == 0:
            pace = draw.choice([0.1, 0.2, 0.4, 0.8, 1.0])
        log_ns += stalled.get(tick, 0) * S
        for message in sim.tick():
            late_ns = round((message.at_ns - sim.now_ns + TICK_NS) / pace)
            output = Output(message.topic, message.key, body=message.value())
            runner.publish(output, log_ns + late_ns + HOP_NS)
        log_ns += round(TICK_NS / pace)
        records += [
            output.record
            for _, output in runner.advance(log_ns)
            if output.topic is LINK_HEALTH and output.record
        ]
    assert not runner.failed
    assert not runner.rejected
    return records


@pytest.mark.parametrize(("seed", "stalls"), [(21, False), (52, False), (20, True), (49, True)])
@pytest.mark.timeout(120)
def test_a_dead_uplink_of_a_slow_fleet_is_no_dead_host_nor_port(seed: int, stalls: bool) -> None:
    records = slow_health(seed, "blackhole leaf1>spine1 after 6s for 3s", 10.5, stalls=stalls)
    downs = {record["subject"] for record in records if record["state"] == "DOWN"}
    assert downs == {"leaf1:swp5<>spine1:swp1"}
    assert {record["kind"] for record in records} == {"LINK"}
    begins = defaultdict(set)
    for record in records:
        begins[record["subject"], record["seq"]].add(record["since_ns"])
    assert all(len(times) == 1 for times in begins.values()), "a state begins once"


@pytest.mark.timeout(120)
def test_a_host_of_a_slow_fleet_that_dies_is_down_after_three_seconds_of_its_own_time() -> None:
    records = slow_health(3, "dead h2 after 6s for 4s", 12.0, stalls=False)
    down, *_, up = records
    assert (down["subject"], down["kind"], down["state"]) == ("h2", "HOST", "DOWN")
    assert 2.9 * S < down["evaluated_ns"] - down["since_ns"] < 3.8 * S
    assert up["state"] == "UP"
