"""In-band delays and counters of simulated jobs."""

from __future__ import annotations

import numpy as np
import pytest

from producers.sim.chunk_delays import ChunkDelays
from tests.producers.sim.job_runs import batches, job_run


def delays(run, rank=3):
    """The mean in-band delay of a rank's flows in its newest record."""
    rows = batches(run, 2.1)[rank][-1]["queue_pairs"]
    return sum(row["mean_ns"] for row in rows) / len(rows)


def test_a_delay_is_that_of_the_chunk_and_its_route():
    run = job_run()
    [at] = [at for at, (rank, _) in enumerate(run.jobs.jobs[0].pairs) if rank == 3]
    flow = run.jobs.jobs[0].flows[at]
    unloaded_ns = (1 << 17) * 8 / 400 + 2 * run.fleet.delay_ns[flow.links].sum()
    assert unloaded_ns <= delays(run) < 1.5 * unloaded_ns


def test_another_traffic_class_shows_in_the_data_only():
    assert delays(job_run("wrong-class 250us train")) > 250_000


def test_a_queue_on_the_route_shows_in_the_delay_and_its_notifications():
    run = job_run(nics=8)
    usual = delays(run)
    job = run.jobs.jobs[0]
    sender, to = job.pairs[3]
    run.fault(f"incast 6 {run.fleet.nic_ids[job.nics[to]]}")
    newest = batches(run, 2.1)[sender][-1]
    assert newest["queue_pairs"][0]["mean_ns"] > 3 * usual
    assert newest["counters"][0]["cnp_received"] > 100


def test_lost_packets_are_counted_and_a_dead_link_leaves_chunks_posted():
    run = job_run()
    nic = run.fleet.nic_ids[run.jobs.jobs[0].home[3]]
    run.fault(f"grey 5% {nic}")
    newest = batches(run, 2.1)[3][-1]
    assert newest["counters"][0]["retransmits"] > 100
    run.clear()
    run.fault(f"blackhole {nic}")
    stuck = [row for found in batches(run, 2.1).values() for row in found[-1]["queue_pairs"]]
    assert {3} <= {row["peer"] for row in stuck} | {3 for row in stuck if row["nic"] == nic}
    assert {(row["posted"], row["count"]) for row in stuck} == {(8, 0)}


def test_a_rest_of_a_chunk_takes_no_longer_than_its_flow_was_busy():
    """The last bytes before a link dies: their time for a whole chunk would be hours."""
    run = job_run()
    delays = ChunkDelays(run, run.jobs.jobs[0])
    delays._rebuild()
    busy_ns, sums = 1e9, np.zeros(7)
    sums[0], sums[2] = 3.0, busy_ns / run.step_ns
    row = delays._row(0, sums, 1e6, np.random.default_rng(1))
    assert busy_ns / 2 < row["mean_ns"] < 1.2 * busy_ns


@pytest.mark.parametrize(("fault", "pauses"), [("pause-storm", 11_000), ("slow-receiver 20%", 8_000)])
def test_a_nic_that_pauses_its_port_counts_it(fault, pauses):
    run = job_run()
    run.fault(f"{fault} {run.fleet.nic_ids[run.jobs.jobs[0].home[3]]}")
    found = batches(run, 2.1)
    assert found[3][-1]["counters"][0]["pause_sent"] >= pauses
    assert found[4][-1]["counters"][0]["pause_sent"] == 0
