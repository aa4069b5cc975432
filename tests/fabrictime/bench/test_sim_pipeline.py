"""A simulated fleet under the operators: decisions reach it, and outputs do not depend on its ticks."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fabrictime.bench._sim_pipeline import FLEET_TOPICS, SimPipeline, all_stages
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas.topics import ACTIONS, ALERTS, CLOCK_OFFSETS, DELAYS, LINK_HEALTH, QUEUES
from streams.runtime.operator import Output
from streams.runtime.sim_runner import SimRunner

S = 1_000_000_000


@pytest.mark.timeout(120)
def test_a_dead_link_moves_flows():
    settings = SimSettings(nics=16, seed=3, load=0.3, flows_per_nic=8, faults=("down leaf1>spine1 after 3s",))
    pipeline = SimPipeline(Simulation(settings, topics=FLEET_TOPICS), all_stages())
    outputs = [each for _ in range(600) for each in pipeline.tick()]
    topics = {each.output.topic for each in outputs}
    assert {LINK_HEALTH, ALERTS} <= topics
    health = [each for each in outputs if each.output.topic is LINK_HEALTH]
    assert any("leaf1" in each.output.key and each.output.record["state"] == "DOWN" for each in health)
    assert health[0].log_ns - pipeline.sim.start_ns > 3_000_000_000
    assert pipeline.decisions
    assert pipeline.runner.messages[ACTIONS.name] == len(pipeline.decisions)
    assert not pipeline.runner.failed
    assert not pipeline.runner.rejected


@pytest.mark.timeout(120)
def test_time_in_parts_gives_the_same_outputs():
    settings = SimSettings(nics=8, faults=("blackhole leaf1>spine1 after 1s for 1s",))
    sim = Simulation(settings, topics=FLEET_TOPICS)
    messages = list(sim.advance(3))

    def outputs(parts: Iterable[int]) -> list[tuple[int, str, str, bytes | None]]:
        runner = SimRunner(all_stages(), sim.start_ns, partition_count=2)
        for message in messages:
            runner.publish(Output(message.topic, message.key, body=message.value()), message.at_ns)
        return [
            (log_ns, output.topic.name, output.key, output.value())
            for to_ns in parts
            for log_ns, output in runner.advance(sim.start_ns + to_ns)
        ]

    whole = outputs([4 * S])
    assert {name for _, name, _, _ in whole} >= {DELAYS.name, CLOCK_OFFSETS.name, QUEUES.name}
    assert outputs(range(0, 4 * S + 1, 7_300_000)) == [
        each for each in whole if each[0] <= sim.start_ns + 4 * S // 7_300_000 * 7_300_000
    ]
