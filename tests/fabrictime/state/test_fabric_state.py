"""State of the fabric: the plan's cables, states, alerts, contention, bounds."""

from __future__ import annotations

from typing import Any

from fabrictime.state import fabric_state
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.contention import frames
from fabrictime.web.tabs.fabric import frames as fabric_frames
from tests.fabrictime.fill import fill, fill_health, number_of

S = 1_000_000_000


def decode_flows(value: bytes) -> Any:
    return codec.decode(value, "FlowReports")


@pytest.fixture
def state() -> FabricState:
    """Nothing known."""
    return FabricState(decode_flows)


@pytest.fixture
def fabric(records: Any) -> Any:
    """Records of eight NICs under four leaves and four spines."""
    return records()


def tell(state: FabricState, *given: tuple[str, str, dict[str, Any] | None], at_ns: int = S) -> None:
    """Give a state records as the feed does, decoded from what a service would have published."""
    for topic, key, record in given:
        name = topics.TOPICS[topic].record
        value = None if record is None else codec.encode(name, record)
        if topic == topics.FLOWS.name:
            state.take_flows(key, value, at_ns)
        else:
            state.take(topic, key, None if value is None else codec.decode(value, name), at_ns)


def health(state: FabricState, fabric: Any, link: str, what: str, **fields: Any) -> None:
    tell(state, ("fabric.link-health", fabric.cable(link), fabric.health(link, what, **fields)))


def of(state: FabricState, link: str) -> int:
    number = state.cable_graph.known(link)
    assert number is not None
    return number


def test_nothing_one_nic_and_a_fabric_are_drawn_with_their_tiers(state: FabricState, fabric: Any) -> None:
    assert (state.plan().nodes, state.plan().cables, state.cable_counts()["UP"]) == ([], [], 0)
    tell(state, ("fabric.inventory", "h1/eth1", fabric.nic("h1/eth1")))
    plan = state.plan()
    assert plan.nodes == [("h1", 0)]
    assert plan.nics == [("h1/eth1", 0, 0, -1, -1, -1)]
    tell(state, *fabric.fleet())
    plan = state.plan()
    tiers = dict(plan.nodes)
    assert {name for name, tier in tiers.items() if tier == 1} == {f"leaf{k}" for k in range(1, 5)}
    assert {name for name, tier in tiers.items() if tier == 2} == {f"spine{k}" for k in range(1, 5)}
    assert len(plan.cables) == 8 + 16
    assert all(plan.nodes[low][1] + 1 == plan.nodes[high][1] for low, _, high, _ in plan.cables)
    assert plan.racks == ["r1", "r2", "r3", "r4"]
    assert all(nic[4] >= 0 and plan.cables[nic[4]][0] == nic[1] for nic in plan.nics)
    for k, (low, port, high, far) in enumerate(plan.cables):
        up = f"{plan.nodes[low][0]}:{port}>{plan.nodes[high][0]}:{far}"
        assert state.cable_graph.name(plan.links[2 * k]) == up
        assert state.cable_graph.name(plan.links[2 * k + 1]) == fabric.back(up)
    assert state.plan() is plan


def test_three_tiers_are_told_apart_and_hosts_without_a_rack_stand_by_their_leaf(
    state: FabricState, fabric: Any
) -> None:
    hops = ["h1:e>l1:1", "l1:2>s1:1", "s1:2>c1:1", "c1:2>s2:2", "s2:1>l2:2", "l2:1>h2:e"]
    maps = fabric.paths("h1/eth1", "h2/eth1", ports=1)
    for path in maps["paths"]:
        path["links"] = hops
    for nic in ("h1/eth1", "h2/eth1"):
        tell(state, ("fabric.inventory", nic, fabric.nic(nic, rack=None, device="e")))
    tell(state, ("fabric.paths", "h1/eth1>h2/eth1", maps))
    plan = state.plan()
    assert dict(plan.nodes) == {"h1": 0, "h2": 0, "l1": 1, "l2": 1, "s1": 2, "s2": 2, "c1": 3}
    assert plan.racks == ["under l1", "under l2"]


def test_a_cable_goes_when_no_path_crosses_it_any_more_unless_something_is_judged_of_it(
    state: FabricState, fabric: Any
) -> None:
    nic, peer = "h1/eth1", "h8/eth1"
    fill(state, ("fabric.inventory", nic, fabric.nic(nic)), ("fabric.inventory", peer, fabric.nic(peer)))
    fill(state, ("fabric.paths", f"{nic}>{peer}", fabric.paths(nic, peer)))
    assert len(state.plan().cables) == 2 + 8
    moved = fabric.paths(nic, peer, ports=1)
    fill(state, ("fabric.paths", f"{nic}>{peer}", moved))
    assert len(state.plan().cables) == 2 + 2
    fill_health(state, fabric, fabric.up("leaf1", 3), "DOWN")
    assert len(state.plan().cables) == 2 + 3
    tell(state, ("fabric.link-health", fabric.cable(fabric.up("leaf1", 3)), None))
    assert len(state.plan().cables) == 2 + 2
    fill(state, ("fabric.paths", f"{nic}>{peer}", None), ("fabric.inventory", peer, None))
    assert state.plan().cables == []
    assert [name for name, _ in state.plan().nodes] == ["h1"]


def test_a_cable_with_queues_alone_leaves_the_plan_when_they_expire(state: FabricState, fabric: Any) -> None:
    nic, peer, start = "h1/eth1", "h8/eth1", 1_000 * S
    fill(state, ("fabric.inventory", nic, fabric.nic(nic)), ("fabric.inventory", peer, fabric.nic(peer)))
    fill(state, ("fabric.paths", f"{nic}>{peer}", fabric.paths(nic, peer)))
    gone, stays = fabric.up("leaf1", 3), fabric.up("leaf1", 1)
    fill(state, ("fabric.queues", "fabric", fabric.queues({gone: {}, stays: {}}, start)))
    fill(state, ("fabric.paths", f"{nic}>{peer}", fabric.paths(nic, peer, ports=1)))
    assert len(state.plan().cables) == 2 + 3
    for second in range(1, 5):
        fill(state, ("fabric.queues", "fabric", fabric.queues({stays: {}}, start + second * S)))
    assert len(state.plan().cables) == 2 + 3
    for second in (5, 6):
        fill(state, ("fabric.queues", "fabric", fabric.queues({stays: {}}, start + second * S)))
    assert len(state.plan().cables) == 2 + 2
    assert state.plan() is state.plan(), "recomputed only after a change"


def test_states_are_kept_by_direction_and_older_records_are_ignored(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    link = fabric.up("leaf2", 1)
    assert state.state(number_of(state, link)) == 0, "no health record yet"
    fill(state, ("fabric.queues", "fabric", fabric.queues({each: {} for each in fabric.links()})))
    assert state.cable_counts()["UP"] == 24, "probes cross them"
    old = fabric.health(link, "DOWN")
    health(state, fabric, link, "GREY", links=[link])
    assert (state.state(of(state, link)), state.state(of(state, fabric.back(link)))) == (2, 1)
    tell(state, ("fabric.link-health", fabric.cable(link), old))
    assert state.cable_counts() == {"UNKNOWN": 0, "UP": 23, "GREY": 1, "FLAPPING": 0, "DOWN": 0}
    health(state, fabric, link, "UP", before="GREY")
    assert state.cable_counts()["UP"] == 24


def test_a_host_down_marks_only_its_nics(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    record = {**fabric.health("h2:x>y:z", "DOWN"), "kind": "HOST", "subject": "h2", "links": []}
    tell(state, ("fabric.link-health", "h2", record))
    assert state.nic_state == {"h2/eth1": 4}
    frame = fabric_frames.links_frame(state, fabric_frames.draw_plan(state.plan()), 1)
    assert frame["nics"] == "04000000"
    tell(state, ("fabric.link-health", "h2", {**record, "seq": 9, "state": "UP"}))
    assert state.nic_state == {"h2/eth1": 1}


def test_the_last_minute_of_a_queue_is_kept_and_no_more(state: FabricState, fabric: Any) -> None:
    link, idle = fabric.up("leaf1", 1), fabric.up("leaf1", 2)
    start = fabric.now_ns // S * S
    for second in range(100):
        depth = {link: {"depth_mean_bytes": 1_000.0 * second, "depth_max_bytes": 2_000.0 * second}}
        if second < 50:
            depth[idle] = {"utilisation": None, "utilisation_bound": None}
        tell(state, ("fabric.queues", "fabric", fabric.queues(depth, start + second * S)))
    number = of(state, link)
    series = state.queues.series(number)
    assert 60 <= len(series.at_ns) <= 66
    assert series.at_ns[-1] == start + 99 * S + S // 2
    assert (series.mean_bytes[-1], series.max_bytes[-1]) == (99_000.0, 198_000.0)
    newest = state.queues.newest(number)
    assert newest is not None
    assert newest.delay_ns(newest.mean_bytes) == pytest.approx(792_000)
    assert state.queues.newest(of(state, idle)) is None, "told 50 s ago"
    tell(state, ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 7.0}}, start)))
    assert state.queues.newest(number) == newest, "an old window read again"
    frame = fabric_frames.minute_frame(state, number)
    assert frame["to"] - frame["from"] == 60_000
    assert frame["ways"][0]["load"][-1] == 5.0


def test_points_of_queues_are_bounded(state: FabricState, fabric: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(queue_history, "MOST_POINTS", 500)
    depth = {link: {} for link in fabric.links()}
    for second in range(60):
        tell(state, ("fabric.queues", "fabric", fabric.queues(depth, (1_000 + second) * S)))
    assert 9 <= len(state.queues.series(of(state, fabric.up("leaf1", 1))).at_ns) <= 11


def test_a_link_of_unknown_rate_shows_delays_not_bytes(state: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    tell(
        state,
        ("fabric.queues", "fabric", fabric.queues({link: {"rate_bps": 0, "depth_mean_bytes": 1_250.0}})),
    )
    side = fabric_frames.side(state, of(state, link))
    assert side.depth == "10.0 µs (link's rate not known)"


def test_paths_over_a_link_are_found_with_the_leg_that_they_are(state: FabricState, fabric: Any) -> None:
    tell(state, *fabric.fleet())
    link = fabric.up("leaf1", 2)
    found = state.link_index.paths_over(of(state, link))
    near = {"h1/eth1", "h2/eth1"}
    assert {each.nic for each in found} == near
    assert {each.path for each in found} == {40_001}
    assert len(found) == 2 * 6 * 2
    assert {each.answer for each in found} == {False, True}
    first = state.link_index.paths_over(of(state, fabric.first("h1/eth1")))
    assert len(first) == 7 * 4 * 2
    hops = state.link_index.hops(PathOnLink("h1/eth1", "h8/eth1", 40_001, False))
    assert [state.cable_graph.name(each) for each in hops] == fabric.hops("h1/eth1", "h8/eth1", 2)
    tell(state, ("fabric.inventory", "h1/eth1", None))
    assert {each.nic for each in state.link_index.paths_over(of(state, link))} == {"h2/eth1"}


def test_pairs_beyond_the_bound_still_give_their_cables(
    state: FabricState, fabric: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fabrictime.state.link_index.MOST_PAIRS", 3)
    tell(state, *fabric.fleet())
    assert state.link_index.pairs == 3
    assert state.link_index.left_out == 53
    assert len(state.cable_graph) == 2 * 24


def test_flows_are_those_of_the_newest_reports_and_closed_ones_go(state: FabricState, fabric: Any) -> None:
    one, two = fabric.flow(1, "h1/eth1", "h5/eth1", job="a"), fabric.flow(2, "h1/eth1", "h7/eth1", spine=2)
    other = fabric.flow(3, "h3/eth1", "h5/eth1", job="b")
    tell(state, ("fabric.flows", "h1", fabric.flows("h1", [one, two])), at_ns=S)
    tell(state, ("fabric.flows", "h3", fabric.flows("h3", [other])), at_ns=S)
    closed = {**two, "state": "CLOSED"}
    tell(state, ("fabric.flows", "h1", fabric.flows("h1", [closed], whole=False)), at_ns=2 * S)
    assert set(state.flows.flows()) == {one["flow_id"], other["flow_id"]}
    assert fabric_frames.links_of_job(state.flows.flows(), "a", state) == set()
    tell(state, *fabric.fleet())
    lit = fabric_frames.links_of_job(state.flows.flows(), "a", state)
    assert {state.cable_graph.name(each) for each in lit} == set(one["links"])
    tell(state, ("fabric.flows", "h1", fabric.flows("h1", [])), at_ns=9 * S)
    assert state.flows.flows() == {}, "h3 has said nothing for 8 s"


def test_flow_reports_are_bounded_and_an_unreadable_one_is_left_out(
    state: FabricState, fabric: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fabrictime.state.flow_cache.MOST_BYTES", 2_000)
    for number in range(50):
        flow = fabric.flow(number, "h1/eth1", "h5/eth1")
        tell(state, ("fabric.flows", f"host{number}", fabric.flows(f"host{number}", [flow])))
    state.take_flows("host49", b"no record", S)
    assert 1 <= len(state.flows.flows()) < 10
    assert f"host{49}" in {flow["host"] for flow in state.flows.flows().values()}
    assert state.flows.unreadable >= 1


def test_alerts_stand_until_cleared_and_old_ones_give_way(state: FabricState, fabric: Any) -> None:
    raised = fabric.alert("x", "x is DOWN", raised_ns=5)
    fill(state, ("fabric.alerts", "x", raised))
    assert [alert["text"] for alert in state.active_alerts()] == ["x is DOWN"]
    done = {**raised, "update": 2, "state": "CLEARED", "cleared_ns": 9}
    fill(state, ("fabric.alerts", "x", done), ("fabric.alerts", "x", {**raised, "update": 1}))
    assert state.active_alerts() == []
    for number in range(fabric_state.MAX_CLEARED + 20):
        fill(state, ("fabric.alerts", "x", {**done, "alert_id": f"a{number}"}))
    assert len(state.alerts) == fabric_state.MAX_CLEARED

def test_evidence_is_the_record_that_carries_its_time_else_the_nearest_of_its_nic() -> None:
    found = [
        (100, {"nic": "h1/eth1", "evaluated_ns": 7}),
        (205, {"nic": "h2/eth1"}),
        (230, {"nic": "h3/eth1"}),
        (400, {"nic": "h1/eth1", "evaluated_ns": 200}),
    ]
    assert alert_frames.nearest(found, 200, "h3/eth1 lost 8") == found[3]
    assert alert_frames.nearest(found[:3], 200, "h3/eth1 lost 8") == found[2]
    assert alert_frames.nearest(found[:3], 200, "somebody lost 8") == found[1]
    assert alert_frames.nearest([], 200, "") is None

def test_a_cable_without_paths_is_drawn_only_while_it_is_not_up(state: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 2)
    cable = fabric.cable(link)

    def drawn() -> bool:
        return any(state.cable_graph.name(number) == link for number in state.plan().links)

    tell(state, ("fabric.link-health", cable, fabric.health(link, "DOWN")))
    assert drawn()
    tell(state, ("fabric.link-health", cable, fabric.health(link, "UP", before="DOWN", seq=2)))
    assert not drawn(), "no path crosses it: it may have been moved"
    tell(state, ("fabric.link-health", cable, fabric.health(link, "DOWN", seq=3)))
    assert drawn()


def test_closed_contention_is_bounded_and_a_late_update_reopens_nothing(
    state: FabricState, fabric: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(fabric_state, "MAX_CLOSED", 10)
    link = fabric.up("leaf1", 1)
    for number in range(30):
        opened = fabric.now_ns - 100 * S + number * S
        record = fabric.contention(link, opened_ns=opened, state="CLOSED", closed_ns=opened + S, update=3)
        fill(state, ("fabric.contention", link, record))
    assert len(state.contention) == 10
    fill(state, ("fabric.contention", link, {**record, "update": 2, "state": "UPDATED", "closed_ns": None}))
    assert list(state.open_contention(fabric.now_ns)) == []


def test_contention_is_kept_for_an_hour_closed_or_not(state: FabricState, fabric: Any) -> None:
    link, begin = fabric.up("leaf1", 1), fabric.now_ns
    for minute in range(90):
        at = begin + minute * 60 * S
        ended = {} if minute % 2 else {"state": "CLOSED", "closed_ns": at}
        record = fabric.contention(link, opened_ns=at - S, updated_ns=at, **ended)
        fill(state, ("fabric.contention", link, record))
    kept = [(each["updated_ns"] - begin) // (60 * S) for each in state.contention.values()]
    assert kept == list(range(29, 90))
    assert len(frames.within(state.contention.values(), at, 3600 * S)) == 61
