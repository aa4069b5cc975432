"""The network's records around an interval."""

from __future__ import annotations

from schemas.records import (
    ActionOutcome,
    ActionReport,
    Alert,
    AlertState,
    AuditResult,
    AuditStatus,
    ClockOffsets,
    ClockSync,
    Decision,
    Flow,
    FlowAction,
    FlowReports,
    FlowRoutes,
    FlowState,
    LinkQueues,
    LinkState,
    Nic,
    PathMaps,
)
from streams.diagnosis.network.view import NetworkView
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import BEGIN, MS, Job, S, World, nic, route

LINK = route(1, 2, 1)[1]


def flow(name: str, **fields: object) -> Flow:
    return make_part(
        "FlowReports",
        "Flow",
        **{
            "flow_id": name,
            "state": FlowState.OPEN,
            "nic": nic(1),
            "peer": nic(2),
            "job": "train",
            "source_port": 7,
            "peer_port": 9,
            **fields,
        },
    )


def report(at_ns: int, *flows: Flow, whole: bool = True) -> FlowReports:
    return make(FlowReports, host="h1", boot="b", system_ns=at_ns, whole=whole, flows=list(flows))


def test_a_state_lasts_until_the_next_one() -> None:
    world = World(Job(ranks=2))
    world.health(LINK, LinkState.DOWN, BEGIN, seq=1)
    world.health(LINK, LinkState.UP, BEGIN + S, seq=2)
    [episode] = world.network.episodes([LINK], BEGIN, BEGIN + 5 * S)
    assert (episode.begin_ns, episode.end_ns) == (BEGIN, BEGIN + S)
    assert world.network.episodes([LINK], BEGIN + 2 * S, BEGIN + 3 * S) == []
    assert world.network.episodes(["leaf9:u1>spine9:p1"], BEGIN, BEGIN + S) == []
    world.network.forget(BEGIN + 1000 * S)
    assert world.network.episodes([LINK], BEGIN, BEGIN + 5 * S) == []


def test_contention_windows_are_found_by_link_and_by_job() -> None:
    world = World(Job(ranks=4))
    world.contend(LINK, BEGIN, own=1)
    assert len(world.network.contention([LINK], BEGIN, BEGIN + S)) == 1
    assert world.network.contention([LINK], BEGIN - 2 * S, BEGIN) == []
    assert len(world.network.contention_of("other", BEGIN, BEGIN + S)) == 1
    world.contend(LINK, BEGIN, own=1, update=1, closed_ns=BEGIN + S, state="CLOSED")
    world.network.forget(BEGIN + 1000 * S)
    assert world.network.contention([LINK], BEGIN, BEGIN + S) == []


def test_links_that_an_update_names_no_more_are_forgotten_with_their_window() -> None:
    world, paused = World(Job(ranks=4)), route(3, 4, 1)[1]
    world.contend(LINK, BEGIN, own=1, links=[paused])
    assert len(world.network.contention([paused], BEGIN, BEGIN + S)) == 1
    world.contend(LINK, BEGIN, own=1, update=1, links=[], closed_ns=BEGIN + S, state="CLOSED")
    assert world.network.contention([paused], BEGIN, BEGIN + S) == []
    world.network.forget(BEGIN + 1000 * S)
    assert world.network.contention([LINK, paused], BEGIN, BEGIN + S) == []


def test_a_whole_report_replaces_earlier_ones_and_keeps_known_links() -> None:
    view = NetworkView()
    view.take_flows(report(BEGIN, flow("h1/b/qp:1", links=[LINK]), flow("h1/b/qp:2")))
    view.take_flows(report(BEGIN + S, flow("h1/b/qp:1")))
    [found] = view.flows({nic(1), nic(2)}, "train")
    assert found["links"] == [LINK]
    view.take_flows(report(BEGIN + 2 * S, flow("h1/b/qp:1", state=FlowState.CLOSED), whole=False))
    assert view.flows({nic(1), nic(2)}, "train") == []


def test_flows_without_a_job_count_between_the_jobs_nics() -> None:
    view = NetworkView()
    view.take_flows(report(BEGIN, flow("h1/b/qp:1", job=None), flow("h1/b/qp:2", job="other")))
    assert [each["flow_id"] for each in view.flows({nic(1), nic(2)}, "train")] == ["h1/b/qp:1"]
    assert view.flows({nic(1)}, "train") == []


def test_routes_come_from_flows_and_from_probes() -> None:
    view = NetworkView()
    element = {"path": 7, "links": [LINK], "complete": True, "since_ns": 0}
    view.take_paths(
        make(
            PathMaps,
            nic=nic(1),
            peer=nic(2),
            paths=[{**element, "leg": "REQUEST", "found": "TRACED", "changes": 0, "contradiction": None}],
        )
    )
    assert view.links_of(flow("x")) == (LINK,)
    other = "leaf0:u3>spine3:p0"
    view.take_routes(
        make(
            FlowRoutes,
            nic=nic(1),
            peer=nic(2),
            routes=[{**element, "leg": "DATA", "peer_port": 9, "protocol": "UDP", "links": [other]}],
        )
    )
    assert view.links_of(flow("x")) == (other,)
    assert set(view.routes.of_pair(nic(1), nic(2))) == {(LINK,), (other,)}
    assert view.links_of(flow("x", links=["a:1>b:1"])) == ("a:1>b:1",)


def test_a_rate_limit_is_in_force_from_its_decision_to_its_expiry() -> None:
    view = NetworkView()
    decision = make(
        Decision,
        shard="f",
        epoch=1,
        seq=1,
        at_ns=BEGIN,
        action=FlowAction.PACE,
        flow_id="x",
        rate_bps=10,
        expires_at_ns=BEGIN + 10 * S,
    )
    view.take_decision(decision)
    assert view.paces(BEGIN + S, BEGIN + 2 * S)["x"].rate_bps == 10
    assert view.paces(BEGIN + 10 * S, BEGIN + 11 * S) == {}
    view.take_action(
        make(ActionReport, decision_id=decision["decision_id"], flow_id="x", outcome=ActionOutcome.STALE)
    )
    assert view.paces(BEGIN + S, BEGIN + 2 * S) == {}
    assert len(view.decisions(BEGIN, BEGIN + S)) == 1


def test_delays_are_kept_by_pair_and_for_wanted_nics_only() -> None:
    world = World(Job(ranks=2))
    world.learn(1)
    assert world.network.delays(nic(0), nic(1), BEGIN, BEGIN + S)
    assert world.network.delays(nic(0), nic(5), BEGIN, BEGIN + S) == []
    world.network.forget(BEGIN + 1000 * S)
    assert world.network.delays(nic(0), nic(1), BEGIN, BEGIN + S) == []
    closed = NetworkView(nics=lambda name: False)
    closed.take_delays(
        make("PathDelays", nic=nic(0), paths=[make_part("PathDelays", "PathDelay", peer=nic(1))])
    )
    assert closed.delays(nic(0), nic(1), -(2**61), 2**61) == []


def test_checks_alerts_clocks_and_queues() -> None:
    view = NetworkView()
    for number, status in enumerate((AuditStatus.PASSED, AuditStatus.FAILED)):
        view.take_audit(
            make(AuditResult, run="r", host="h1", check="pcie.link", status=status, checked_ns=number)
        )
    assert [each["check"] for each in view.failed_checks("h1")] == ["pcie.link"]
    assert view.failed_checks("h2") == []
    view.take_alert(make(Alert, alert_id="a", state=AlertState.RAISED, raised_ns=BEGIN))
    assert len(view.alerts(BEGIN, BEGIN + S)) == 1
    view.take_nic(make(Nic, nic=nic(1), clock="h1/ptp0"))
    clock = make_part("ClockOffsets", "ClockState", clock="h1/ptp0", state=ClockSync.UNSYNCED)
    view.take_clocks(make(ClockOffsets, clocks=[clock]))
    assert view.clock_of(nic(1)) == ClockSync.UNSYNCED
    assert view.clock_of(nic(2)) is None
    queue = make_part("LinkQueues", "LinkQueue", link=LINK, rate_bps=10**11)
    view.take_queues(make(LinkQueues, window_start_ns=BEGIN, slot_ns=MS, slots=100, links=[queue]))
    assert view.link_rate_bps(LINK) == 1e11
    assert view.link_rate_bps("x") == 0
