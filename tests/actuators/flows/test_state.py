"""Flow state: moves, reports of a former process, and the journal's form."""

from __future__ import annotations

import json
from typing import Any

from actuators.flows.state import FlowState, Lease, key_of


def report(decision_id: str = "d1", outcome: str = "APPLIED") -> dict[str, Any]:
    return {"decision_id": decision_id, "outcome": outcome}


def test_a_flow_that_returns_to_its_first_path_counts_as_never_moved() -> None:
    flow = FlowState("h1/b/sock:1")
    flow.set_moved(1, 2, report(), 10)
    flow.set_moved(2, 3, report(), 20)
    assert (flow.first_path, flow.set_path, flow.in_force) == (1, 3, 1)
    flow.set_moved(3, 1, report(), 30)
    assert (flow.first_path, flow.set_path, flow.in_force) == (None, None, 0)


def test_a_flow_that_moved_without_the_actuator_has_a_new_first_path() -> None:
    flow = FlowState("h1/b/sock:1")
    flow.set_moved(1, 2, report(), 10)
    flow.set_moved(7, 8, report(), 20)
    assert flow.first_path == 7


def test_actions_in_force_have_their_times() -> None:
    flow = FlowState("h1/b/sock:1")
    flow.set_moved(1, 2, report(), 10)
    flow.set_lease("PACE", Lease(100, 99, 20, {}))
    assert flow.action_times() == [10, 20]
    flow.end()
    assert (flow.in_force, flow.rate_bps, flow.action_times()) == (0, None, [])


def test_the_next_process_restores_the_saved_state() -> None:
    flow = FlowState("h1/b/sock:1", fence=(5, 7), outcome="APPLIED", unpublished=report())
    flow.set_moved(1, 2, report(), 10)
    flow.set_lease("PACE", Lease(100, 99, 20, {"decision_id": "d0"}))
    flow.busy = True
    restored = FlowState.from_json(json.loads(json.dumps(flow.to_json())))
    assert restored.to_json() == flow.to_json()
    assert restored.fence == (5, 7)
    assert restored.leases["PACE"] == flow.leases["PACE"]
    assert not restored.busy, "no command survives a process"
    assert restored.report_restored


def test_a_restored_report_is_returned_once_and_for_its_own_decision() -> None:
    flow = FlowState.from_json(FlowState("f", fence=(5, 7), unpublished=report()).to_json())
    assert flow.take_restored_report({"epoch": 5, "seq": 8}) is None
    assert flow.take_restored_report({"epoch": 5, "seq": 7}) == report()
    assert flow.take_restored_report({"epoch": 5, "seq": 7}) is None


def test_a_published_report_is_dropped_and_another_one_stays() -> None:
    flow = FlowState("f", unpublished=report("d1"), repair_report=report("r1"))
    assert not flow.drop_published(report("d1", "FAILED"))
    assert flow.drop_published(report("d1"))
    assert (flow.unpublished, flow.repair_report) == (None, report("r1"))


def test_a_begun_move_is_done_if_the_flow_reached_its_target() -> None:
    decision = {"decision_id": "d1", "action": "REROUTE", "to_path": 2}
    flow = FlowState("f", intent={"decision_id": "d1", "from_path": 1})
    assert flow.was_done(decision, 2)
    assert not flow.was_done(decision, 1)
    assert not flow.was_done(decision, None)
    assert not flow.was_done({**decision, "decision_id": "d2"}, 2)
    assert not FlowState("f").was_done(decision, 2)


def test_an_endpoint_knows_a_flow_without_host_and_boot() -> None:
    assert key_of("h1/boot/qp:mlx5_0:17:3") == "qp:mlx5_0:17:3"
