"""Fault injection: each fault has its effect on probes and records, and on nothing else."""

from __future__ import annotations

from producers.sim.simulation import Simulation
from schemas.topics import FLOWS, LINKS, PATHS, PROBES
from tests.producers.sim.small_simulation import by_topic, settings


def test_a_blackhole_loses_only_packets_that_cross_it():
    run = Simulation(settings(nics=16, faults=("blackhole leaf1>spine2",)))
    (dead,) = [
        run.fleet.link_index[name]
        for name in run.fleet.link_ids
        if name.startswith("leaf1:") and ">spine2:" in name
    ]
    lost, answered = set(), set()
    for out in by_topic(run, 0.5)[LINKS]:
        record = out.record()
        for path in record["paths"]:
            at = (record["nic"], path["peer"], path["path"])
            (lost if path["lost"] else answered).add(at)
            if path["lost"]:
                assert path["answered"] == 0
                assert path["loss_streak"] > 0
                assert path["last_lost_age_ns"] >= path["timeout_ns"]
    crossing = set()
    nic, peer, port = run.probes._group
    for g in range(len(nic)):
        if any(dead in leg.of(g) for leg in run.probes.legs):
            crossing.add((run.fleet.nic_ids[nic[g]], run.fleet.nic_ids[peer[g]], int(port[g])))
    assert lost == crossing
    assert answered
    assert not answered & crossing
    event = run.faults[0]
    assert run.fleet.link_ids[event.target.links[0]] == run.fleet.link_ids[dead]


def test_down_is_seen_by_the_host_itself_and_paths_are_traced_again():
    run = Simulation(
        settings(faults=("down leaf1>spine1 after 100ms", "down h2/eth1 after 200ms"), retrace_s=0.1)
    )
    found = by_topic(run, 0.6)
    carriers = [out.record() for out in found[LINKS] if out.record()["kind"] == "CARRIER"]
    assert [(record["nic"], record["carrier"]) for record in carriers] == [("h2/eth1", False)]
    newest = {out.key: out.record() for out in found[PATHS]}
    gone = run.fleet.link_ids[run.faults[0].target.links[0]]
    assert any(path["changes"] for record in newest.values() for path in record["paths"])
    assert not any(gone in path["links"] for record in newest.values() for path in record["paths"])
    run.clear(1)
    back = [
        path for out in by_topic(run, 0.3)[PATHS] for path in out.record()["paths"] if path["changes"] == 2
    ]
    assert back


def test_a_flap_repeats_as_configured():
    run = Simulation(settings(faults=("flap 3 leaf1>spine1 every 100ms",)))
    by_topic(run, 0.5)
    (fault,) = run.faults
    assert [round((up - down) / 1e6) for down, up in fault.downs] == [50, 50, 50]
    assert fault.end_ns == fault.downs[-1][1]


def test_dead_host_falls_silent_and_a_dead_nic_is_still_reported():
    run = Simulation(settings(load=0.1))
    run.fault("dead h1")
    run.fault("dead h2/eth1")
    found = by_topic(run, 1.1)
    assert not [out for out in found[PROBES] if out.key == "h1/eth1"]
    assert not [out for out in found[FLOWS] if out.key == "h1"]
    rows = [
        path for out in found[LINKS] if out.record()["nic"] == "h2/eth1" for path in out.record()["paths"]
    ]
    assert rows
    assert not sum(path["answered"] for path in rows)
