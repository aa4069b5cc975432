"""Traffic between NICs: in-band delays from the best source, links, probes."""

from __future__ import annotations

import pytest

from producers.trace.route_names import NamedPath
from schemas.records import CollectiveBatch, CollectiveFunction, Leg, PathSource
from streams.diagnosis.case import Case, case_of
from streams.diagnosis.job.view import JobView
from streams.diagnosis.network.view import NetworkView
from streams.diagnosis.rules import DiagnosisRules
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import BEGIN, JOB, MS, US, Job, S, World, nic, route


def case(records: list[CollectiveBatch], network: NetworkView | None = None) -> Case:
    view = JobView(JOB)
    for each in records:
        view.take(each, BEGIN)
    return case_of(view, network or NetworkView(), BEGIN, BEGIN + S, DiagnosisRules())


def test_queue_pairs_give_the_delay_of_their_pair() -> None:
    found = case(Job(ranks=4).run(100 * MS)).traffic
    assert set(found.pairs) == {(nic(at), nic((at + 1) % 4)) for at in range(4)}
    pair = found.pairs[nic(1), nic(2)]
    assert (pair.source, pair.data_ns, pair.min_ns, pair.queue_pairs) == ("queue pair", 4 * US, 3600, 1)
    assert pair.ranks == {1, 2}


def test_transfers_give_it_without_queue_pairs() -> None:
    job = Job(ranks=2, queue_pairs=False)
    records = job.run(20 * MS)
    records[0]["transfers"] = [
        make_part(
            "CollectiveBatch",
            "CollectiveTransfer",
            peer=1,
            sends=True,
            bytes=1000,
            begin_ns=BEGIN,
            end_ns=BEGIN + 100 * US,
            network_late_ns=60 * US,
            gpu_late_ns=30 * US,
        )
    ]
    [pair] = case(records).traffic.pairs.values()
    assert (pair.source, pair.data_ns, pair.gpu_late_share) == ("transfer", 60 * US, pytest.approx(0.3))


def test_point_to_point_operations_give_it_without_transfers() -> None:
    job = Job(ranks=2, queue_pairs=False)
    fields = {"end_ns": BEGIN + 8 * MS, "bytes": 1 << 20, "begin_ns": BEGIN}
    send = make_part(
        "CollectiveBatch", "CollectiveOperation", function=CollectiveFunction.SEND, peer=1, **fields
    )
    receive = make_part(
        "CollectiveBatch", "CollectiveOperation", function=CollectiveFunction.RECEIVE, peer=0, **fields
    )
    found = case([job.batch(0, [send], BEGIN, BEGIN + S), job.batch(1, [receive], BEGIN, BEGIN + S)])
    [pair] = found.traffic.pairs.values()
    assert (pair.source, pair.data_ns, pair.chunk_bytes) == ("operation", 8.0 * MS, 1 << 20)


def test_links_are_certain_by_flows_and_possible_by_routes() -> None:
    world = World(Job(ranks=4))
    world.learn(1)
    found = case_of(world.view, world.network, BEGIN, world.job.at_ns, DiagnosisRules()).traffic
    pairs, certain = found.crossing([route(1, 2, 1)[1]])
    assert ([pair.name for pair in pairs], certain) == (["h1/n0 to h2/n0"], True)
    assert found.crossing(["x:1>y:1"]) == ([], True)
    network = NetworkView()
    network.take_paths(
        make(
            "PathMaps",
            nic=nic(1),
            peer=nic(2),
            paths=[NamedPath(tuple(route(1, 2, 3)), True, PathSource.TRACED).row(1, Leg.REQUEST)],
        )
    )
    pairs, certain = case(Job(ranks=4).run(50 * MS), network).traffic.crossing([route(1, 2, 3)[1]])
    assert (len(pairs), certain) == (1, False)


def test_probes_give_the_worst_path_and_the_smallest_delay() -> None:
    world = World(Job(ranks=2))
    world.probe_us = lambda source, target: 50.0 if world.window % 2 else 5.0
    world.learn(2)
    found = case_of(world.view, world.network, BEGIN, world.job.at_ns, DiagnosisRules())
    probes = found.probes(found.traffic.pairs[nic(0), nic(1)])
    assert probes is not None
    assert (probes.min_ns, probes.p50_ns, probes.worst_ns, probes.one_way) == (
        5 * US,
        27.5 * US,
        27.5 * US,
        True,
    )
