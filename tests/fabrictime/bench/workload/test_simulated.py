"""The simulated fleet through the pipeline's pure stages."""

from __future__ import annotations

from fabrictime.bench.workload._drawn import JOB, simulation
from fabrictime.bench.workload._simulated import TOPICS, Pipeline
from schemas.ids import cable_id


def test_a_pipeline_sees_ranks_delays_routes_and_a_dead_link():
    sim = simulation("blackhole", 5, TOPICS)
    pipeline = Pipeline(sim, JOB)
    found = list(pipeline.advance(2))
    assert [(at_ns - sim.start_ns) // 10**9 for at_ns, _ in found] == [1, 2]
    assert found[-1][1]["ranks_seen"] == found[-1][1]["ranks_total"] == 16
    assert found[-1][1]["iteration_ns"]
    flow = next(flow for flow in sim.jobs.jobs[0].flows if len(flow.links) >= 4)
    link = sim.fleet.link_ids[int(flow.links[1])]
    sim.fault(f"blackhole {link}")
    begin_ns = sim.now_ns
    list(pipeline.advance(2))
    states = pipeline.network.episodes([cable_id(link)], begin_ns, sim.now_ns)
    assert {str(each.record["state"]) for each in states} == {"DOWN"}
    nic, peer = (sim.fleet.nic_ids[end] for end in (flow.source, flow.destination))
    assert pipeline.network.routes.of_pair(nic, peer)
