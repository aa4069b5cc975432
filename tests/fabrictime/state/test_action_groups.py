"""Actions on one fault are one group, with counts by kind and outcome."""

from __future__ import annotations

from typing import Any

from actuators.nodes.actuator import node_report
from actuators.nodes.policy import NodeStep
from fabrictime.state.action_entries import entries
from fabrictime.state.action_groups import GAP_NS, LEAD_NS, action_groups, done_text, total_text
from fabrictime.state.action_state import ActionState
from fabrictime.state.action_text import as_record
from schemas.records import ActionOutcome, FlowAction

S = 1_000_000_000
CABLE = "leaf1:swp3<>spine2:swp1"


def decide(actions: ActionState, made: Any, number: int, outcome: str = "APPLIED", **fields: Any) -> None:
    """Add a decision about the flow `number` with its report; the reason is a state of CABLE."""
    flow = made.flow(fields.pop("flow", number), "h1/eth1", "h5/eth1")
    decision = made.decision(number, flow, fields.pop("reason", f"{CABLE}/7"), **fields)
    actions.take("fabric.decisions", "h1", decision)
    if outcome:
        actions.take("fabric.actions", "h1", made.action(decision, outcome))


def groups_of(actions: ActionState, made: Any) -> Any:
    return action_groups(entries(actions, made.now_ns + S))


def test_a_tour_of_two_faults_has_two_groups(made: Any, actions: ActionState) -> None:
    for number in range(10):
        decide(actions, made, number)
    for number in (10, 11):
        decide(actions, made, number, "FAILED")
    decide(actions, made, 12, kind="HEALED", action="RESTORE", at_ns=made.now_ns + S // 2)
    window = "fabric/leaf3:swp4>spine1:swp3/5"
    decide(actions, made, 13, "OBSERVED", kind="COLLISION", reason=window, at_ns=made.now_ns - S)
    first, second = groups_of(actions, made)
    assert first.cause == "outage of leaf1:swp3 ⇄ spine2:swp1"
    assert first.counts == "10 flows moved, 1 flow moved back, 2 failed, within 12.0 ms"
    assert second.cause == "collision at leaf3:swp4 → spine1:swp3"
    assert second.counts == "1 only proposed (mode OBSERVE)"
    assert total_text([first, second]) == "14 actions on 2 faults"


def test_a_flow_that_was_moved_twice_counts_once(made: Any, actions: ActionState) -> None:
    for number in (1, 2):
        decide(actions, made, number, flow=1)
    (only,) = groups_of(actions, made)
    assert only.counts == "1 flow moved (2 times), within 12.0 ms"


def test_a_local_repair_belongs_to_the_fault_of_its_flow(made: Any, actions: ActionState) -> None:
    decide(actions, made, 1)
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    repair = made.action(
        made.decision(9, flow, "x", at_ns=made.now_ns - S), "LOCAL_REPAIR", decision_id="local/1"
    )
    actions.take("fabric.actions", "h1", repair)
    (only,) = groups_of(actions, made)
    assert (len(only.entries), only.subject) == (2, CABLE)


def test_a_local_repair_alone_is_about_a_dead_path(made: Any, actions: ActionState) -> None:
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    actions.take(
        "fabric.actions", "h1", made.action(made.decision(9, flow, "x"), "LOCAL_REPAIR", decision_id="l/1")
    )
    assert [group.cause for group in groups_of(actions, made)] == ["a path was dead"]


def test_a_drain_is_about_the_audit_of_its_host(made: Any, actions: ActionState) -> None:
    step = NodeStep("n1", "h1", FlowAction.DRAIN, "r1", "nic.speed: 50 Gbit/s")
    report = node_report(step, ActionOutcome.APPLIED, step.text, "SLURM", made.now_ns, 0, 1)
    actions.take("fabric.actions", "h1", report)
    (group,) = groups_of(actions, made)
    assert (group.cause, group.counts) == ("audit of h1", "1 node drained, within 0.00 ns")
    assert done_text([group], {"h1"}, 0) == group.counts
    assert as_record(group.entries[0])["cause"] == "audit of h1"


def test_the_same_link_later_is_another_fault(made: Any, actions: ActionState) -> None:
    decide(actions, made, 1, at_ns=made.now_ns - GAP_NS - 2 * S)
    decide(actions, made, 2)
    assert [len(group.entries) for group in groups_of(actions, made)] == [1, 1]


def test_actions_are_found_by_the_places_of_an_incident(made: Any, actions: ActionState) -> None:
    decide(actions, made, 1)
    groups = groups_of(actions, made)
    assert done_text(groups, {CABLE}, 0) == "1 flow moved, within 12.0 ms"
    assert done_text(groups, {"leaf9:swp1<>spine1:swp9"}, 0) == ""
    assert done_text(groups, {CABLE}, made.now_ns + LEAD_NS + S) == ""


def test_without_actions_there_is_no_group(actions: ActionState) -> None:
    assert action_groups(entries(actions, 0)) == []


def test_flows_that_an_earlier_outage_moved_back_are_not_done_about_the_present_one(
    made: Any, actions: ActionState
) -> None:
    decide(actions, made, 1, at_ns=made.now_ns - 80 * S)
    decide(actions, made, 2, kind="HEALED", at_ns=made.now_ns - 20 * S)
    decide(actions, made, 3, at_ns=made.now_ns)
    assert done_text(groups_of(actions, made), {CABLE}, made.now_ns - S).startswith("1 flow moved")
    assert len(groups_of(actions, made)[0].entries) == 3
