"""Local repair: dead links by a host's own probes, the flows that move and their new paths, and the
reports.
"""

from __future__ import annotations

import random
import re

import pytest

from actuators.flows.local_repair import DeadLinks, LocalRepair
from native.core.probe import PathEvidence
from producers.probe.path_status import PathStatusReporter, PathStatusTracker
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.topics import ACTIONS, CONFIG, FALLBACKS
from tests.path_status import MS, path, status_report

FLOW = "h1/b/sock:7"


def fallbacks(flow_id=FLOW, at=50_000, links=("up", "s1"), others=((50_001, ("up", "s2")),), seq=0, epoch=1):
    return {
        "host": flow_id.split("/")[0],
        "shard": "s",
        "epoch": epoch,
        "seq": seq,
        "at_ns": 0,
        "config_version": 1,
        "flows": [
            {
                "flow_id": flow_id,
                "path": at,
                "other_paths": [port for port, _ in others],
                "links": list(links),
                "other_links": [list(its) for _, its in others],
                "job": None,
            }
        ],
    }


def test_losses_on_several_paths_make_a_link_dead_and_a_living_path_exonerates_its_links():
    links = DeadLinks()
    links.take(
        status_report(path(["up", "s1"], 1, 20, 5), path(["up", "s1"], 1, 30, 4), path(["up", "s2"], 0, 2)), 0
    )
    assert links.dead == frozenset(), "two losses may be chance"
    links.take(
        status_report(
            path(["up", "s1"], 2, 20, 2, 8), path(["up", "s1"], 1, 30, 4), path(["up", "s2"], 0, 1)
        ),
        0,
    )
    assert links.dead == {"s1"}
    links.take(status_report(path(["up", "s1"], 0, 1), path(["up", "s1"], 3, 30, 4)), 0)
    assert links.dead == frozenset(), "it answers again"


def test_losses_before_the_last_answer_do_not_count():
    links = DeadLinks()
    links.take(status_report(path(["s1"], 3, 300, 200), path(["s1"], 0, 100)), 0)
    assert links.dead == frozenset()


def test_reports_of_a_hosts_probers_are_merged_and_old_ones_ignored():
    links = DeadLinks()
    links.take(status_report(path(["s1"], 2, 50, 2)), 0)
    links.take(status_report(path(["s1"], 2, 50, 2), nic="h1/eth2"), 0)
    assert links.dead_at(MS) == {"s1"}
    assert links.dead_at(3000 * MS) == frozenset()
    links.take(status_report(path(["s2"], 0, 1), nic="h1/eth2", at_ns=3000 * MS), 3000 * MS)
    assert links.dead == frozenset()


def due(repair, dead, now_ms, at=50_000, fence=(-1, -1)):
    found = repair.due(frozenset(dead), {FLOW: at}, {FLOW: fence}, round(now_ms * MS))
    return [each.to_path for each in found]


def test_it_waits_for_a_decision_then_takes_the_first_living_path():
    repair = LocalRepair(30 * MS)
    others = ((50_001, ("up", "s1")), (50_002, ()), (50_003, ("up", "s3")), (50_004, ("up", "s4")))
    repair.take_fallbacks(fallbacks(others=others))
    assert due(repair, {"s1"}, 0) == []
    assert repair.due_ns() == 30 * MS
    assert due(repair, {"s1"}, 29) == []
    assert due(repair, {"s1"}, 30) == [50_003], "50001 is dead too, of 50002 nobody knows"
    assert due(repair, {"s1", "s3"}, 40, at=50_003) == []
    assert due(repair, {"s1", "s3"}, 200, at=50_003) == [50_004], "the second failure"
    assert due(repair, {"s1", "s3"}, 400, at=50_004) == []


def test_a_decision_comes_before_local_repair():
    repair = LocalRepair(30 * MS)
    repair.take_fallbacks(fallbacks())
    due(repair, {"s1"}, 0)
    assert due(repair, {"s1"}, 31, at=50_001, fence=(1, 4)) == []
    assert due(repair, {"s1"}, 33, fence=(1, 4)) == [], "decided, and still dead: 30 ms from there"
    assert due(repair, {"s1"}, 64, fence=(1, 4)) == [50_001]


def test_a_flow_without_a_living_fallback_waits_for_new_reports():
    """Checked without a pause, by a process with a higher priority, it starved the probers, and their
    losses made more links look dead.
    """
    repair = LocalRepair(30 * MS)
    repair.take_fallbacks(fallbacks())
    assert due(repair, {"up"}, 0) == []
    assert repair.due_ns() == 30 * MS
    assert due(repair, {"up"}, 31) == [], "its own link is dead: every way begins there"
    assert repair.due_ns() is None
    assert due(repair, {"s1"}, 40) == [50_001], "news: at once"
    assert repair.due_ns() > 40 * MS
    assert due(repair, {"s1"}, 50) == []
    assert repair.due_ns() > 50 * MS


def test_unknown_links_or_paths_move_nothing():
    repair = LocalRepair(0)
    repair.take_fallbacks(fallbacks(links=()))
    assert due(repair, {"s1"}, 0) == []
    repair.take_fallbacks(fallbacks(seq=1))
    assert due(repair, {"s1"}, 0, at=51_234) == [], "its owner led it where nobody traced"
    assert due(repair, {"s1"}, 0, at=None) == []
    repair.take_fallbacks(fallbacks(seq=0, others=((50_009, ("s9",)),), epoch=0))
    assert due(repair, {"s1"}, 0) == [50_001], "fallbacks of a worker that lost its shard count for nothing"
    repair.take_fallbacks(None)
    assert due(repair, {"s1"}, 500) == []


@pytest.mark.parametrize("seed", range(20))
def test_flows_leave_the_dead_link_and_none_moves_onto_it(seed):
    rng = random.Random(seed)
    fleet = Fleet(Shape.of(64, rate_bps=10**11, fabric_rate_bps=10**11, oversubscription=1.0), seed)
    names = fleet.link_ids

    def routes(pairs, ports, port):
        found = fleet.paths([a for a, _ in pairs], [b for _, b in pairs], ports, port)
        return [[names[link] for link in found.of(i).tolist()] for i in range(len(pairs))]

    me = 0
    peers = rng.sample(range(8, 64), 20)
    probes = [(me, peer, 9320 + k) for peer in peers for k in range(8)]
    probed = routes([(a, b) for a, b, _ in probes], [port for *_, port in probes], 9319)
    ports = list(range(50_000, 50_032))
    goal = rng.choice(peers)
    its = routes([(me, goal)] * len(ports), ports, 4791)
    dead = rng.choice([link for link in its[0][1:-1] if any(link in links for links in probed)])
    links = DeadLinks()
    links.take(
        status_report(
            *(path(route, 3, 200, 5, 60) if dead in route else path(route, 0, 1) for route in probed)
        ),
        0,
    )
    assert dead in links.dead
    assert all(not links.dead.intersection(route) for route in probed if dead not in route)
    repair = LocalRepair(0)
    record = fallbacks(links=its[0], others=tuple(zip(ports[1:], its[1:], strict=True)))
    repair.take_fallbacks(record)
    found = repair.due(links.dead, {FLOW: ports[0]}, {}, 0)
    if found:
        assert dead not in its[ports.index(found[0].to_path)]
    else:
        assert all(links.dead.intersection(route) for route in its)
    away = next((i for i, route in enumerate(its) if not links.dead.intersection(route)), None)
    if away is not None:
        assert found
        assert not repair.due(links.dead, {FLOW: ports[away]}, {}, 10**9), "a flow on a living path stays"


def news(peer="h2/eth1", port=9320, lost=0, answered=0, loss_streak=0, age_ms=0.0):
    age_ns = round(age_ms * MS)
    return PathEvidence(
        peer, port, lost, answered, 0, 0, loss_streak, age_ns, age_ns, age_ns, age_ns, 10 * MS
    )


def test_a_report_moves_a_flow_while_the_log_is_stopped(log, read, start_act, own, tmp_path, wait_for):
    config = {"host": "*", "version": 1, "at_ns": 0, "by": "t", "mode": "ACT"}
    log.put(CONFIG.name, "*", config)
    log.put(FALLBACKS.name, "h1", fallbacks())
    act = start_act("h1")
    owner = own("h1", sock_7=50_000)
    wait_for(lambda: "acts for" in act.output)
    log.down()
    book = PathStatusTracker("h1/eth1", 5, lambda peer, port: ["up", f"s{port - 9319}"])
    reporter = PathStatusReporter(tmp_path / "path-status.sock", book)
    try:

        def moved():
            reporter.update([news(lost=1, loss_streak=3), news(port=9321, answered=1)])
            return owner.moves

        wait_for(moved)
    finally:
        reporter.close()
    assert owner.moves == [("sock:7", 50_001)]
    log.up()
    report = read(ACTIONS.name).until(len)[0]
    assert report["outcome"] == "LOCAL_REPAIR"
    assert re.fullmatch(r"h1/local-repair/\d+/1", report["decision_id"])
    assert (report["from_path"], report["to_path"], report["how"]) == (50_000, 50_001, "SOCKET")
    assert "s1" in report["detail"]
