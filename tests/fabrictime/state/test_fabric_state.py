"""State of the fabric: the plan's cables, states, alerts, contention, bounds."""

from __future__ import annotations

from typing import Any

from fabrictime.state import fabric_state
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.contention import frames
from fabrictime.web.tabs.fabric import frames as fabric_frames
from tests.fabrictime.fill import fill, fill_health, number_of

S = 1_000_000_000


def test_a_cable_leaves_the_plan_without_paths_unless_it_is_not_up(state: FabricState, fabric: Any) -> None:
    nic, peer = "h1/eth1", "h8/eth1"
    fill(state, ("fabric.inventory", nic, fabric.nic(nic)), ("fabric.inventory", peer, fabric.nic(peer)))
    fill(state, ("fabric.paths", f"{nic}>{peer}", fabric.paths(nic, peer)))
    assert len(state.plan().cables) == 2 + 8
    moved = fabric.paths(nic, peer, ports=1)
    fill(state, ("fabric.paths", f"{nic}>{peer}", moved))
    assert len(state.plan().cables) == 2 + 2
    fill_health(state, fabric, fabric.up("leaf1", 3), "DOWN")
    assert len(state.plan().cables) == 2 + 3
    fill(state, ("fabric.link-health", fabric.cable(fabric.up("leaf1", 3)), None))
    assert len(state.plan().cables) == 2 + 2
    fill(state, ("fabric.paths", f"{nic}>{peer}", None), ("fabric.inventory", peer, None))
    assert state.plan().cables == []
    assert [name for name, _ in state.plan().nodes] == ["h1"]


def test_a_cable_that_one_nic_names_against_others_is_not_drawn(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    drawn, nic, peer = state.plan(), "h1/eth1", "h8/eth1"
    wrong = fabric.paths(nic, peer)
    link = wrong["paths"][0]["links"][1]
    wrong["paths"][0]["links"][1] = f"@{link[1:]}"
    fill(state, ("fabric.paths", f"{nic}>{peer}", wrong))
    assert (state.plan().nodes, state.plan().cables) == (drawn.nodes, drawn.cables)
    fill_health(state, fabric, f"@{link[1:]}", "DOWN")
    assert len(state.plan().cables) == len(drawn.cables) + 1, "a finding is never hidden"


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
    fill_health(state, fabric, link, "GREY", links=[link])
    assert (state.state(number_of(state, link)), state.state(number_of(state, fabric.back(link)))) == (2, 1)
    fill(state, ("fabric.link-health", fabric.cable(link), old))
    assert state.cable_counts() == {"UNKNOWN": 0, "UP": 23, "GREY": 1, "FLAPPING": 0, "DOWN": 0}
    fill_health(state, fabric, link, "UP", before="GREY")
    assert state.cable_counts()["UP"] == 24


def test_a_host_down_marks_only_its_nics(state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    record = {**fabric.health("h2:x>y:z", "DOWN"), "kind": "HOST", "subject": "h2", "links": []}
    fill(state, ("fabric.link-health", "h2", record))
    assert state.nic_state == {"h2/eth1": 4}
    frame = fabric_frames.links_frame(state, fabric_frames.draw_plan(state.plan()), 1)
    assert frame["nics"] == "04000000"
    fill(state, ("fabric.link-health", "h2", {**record, "seq": 9, "state": "UP"}))
    assert state.nic_state == {"h2/eth1": 1}


def test_alerts_are_active_until_cleared_and_old_ones_are_removed(state: FabricState, fabric: Any) -> None:
    raised = fabric.alert("x", "x is DOWN", raised_ns=5)
    fill(state, ("fabric.alerts", raised["alert_id"], raised))
    assert [alert["text"] for alert in state.active_alerts()] == ["x is DOWN"]
    done = {**raised, "update": 2, "state": "CLEARED", "cleared_ns": 9}
    fill(state, ("fabric.alerts", done["alert_id"], done), ("fabric.alerts", "x", {**raised, "update": 1}))
    assert state.active_alerts() == []
    for number in range(fabric_state.MAX_CLEARED + 20):
        fill(state, ("fabric.alerts", "x", {**done, "alert_id": f"a{number}"}))
    assert len(state.alerts) == fabric_state.MAX_CLEARED


def test_a_cable_without_paths_is_drawn_only_while_it_is_not_up(state: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 2)
    cable = fabric.cable(link)

    def drawn() -> bool:
        return any(state.cable_graph.name(number) == link for number in state.plan().links)

    fill(state, ("fabric.link-health", cable, fabric.health(link, "DOWN")))
    assert drawn()
    fill(state, ("fabric.link-health", cable, fabric.health(link, "UP", before="DOWN", seq=2)))
    assert not drawn(), "no path crosses it: it may have been moved"
    fill(state, ("fabric.link-health", cable, fabric.health(link, "DOWN", seq=3)))
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
