"""The simulated fleet through the pipeline's stages up to the diagnosis."""

from __future__ import annotations

from fabrictime.bench.workload._drawn import JOB, simulation
from fabrictime.bench.workload._simulated import TOPICS, Pipeline
from schemas.ids import cable_id
from schemas.records import Verdict
from streams.runtime.pipeline_constants import HOP_NS, INPUT_DELAY_NS


def test_a_pipeline_sees_ranks_delays_routes_and_a_dead_link():
    sim = simulation("blackhole", 5, TOPICS)
    pipeline = Pipeline(sim, JOB)
    [(at_ns, healthy)] = pipeline.advance(2)
    assert at_ns - sim.start_ns == 1_000_000_000 + INPUT_DELAY_NS + HOP_NS
    assert healthy["verdict"] == Verdict.HEALTHY
    assert healthy["ranks_seen"] == healthy["ranks_total"] == 16
    assert healthy["iteration_ns"]
    flow = next(flow for flow in sim.jobs.jobs[0].flows if len(flow.links) >= 4)
    link = sim.fleet.link_ids[int(flow.links[1])]
    sim.fault(f"blackhole {link}")
    diagnoses = [record for _, record in pipeline.advance(4)]
    assert (diagnoses[-1]["verdict"], diagnoses[-1]["subject"]) == (Verdict.DEAD_LINK, cable_id(link))
    dead = next(record for record in diagnoses if record["verdict"] == Verdict.DEAD_LINK)
    assert dead["links"] == [link]
    nic, peer = (sim.fleet.nic_ids[end] for end in (flow.source, flow.destination))
    flows = {(each["nic"], each["peer"]): each for each in dead["flows"]}
    assert link in flows[nic, peer]["links"]
    assert flows[nic, peer]["delay_ns"]
    assert pipeline.busy_s > 0
