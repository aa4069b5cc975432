"""The drain operator: faults of the network that hosts share, racks as units, groups, successors."""

import pytest

from actuators.nodes.caps import NS_PER_S, Breaker, NodeRules
from actuators.nodes.operator import DrainOperator, OperatorSettings
from actuators.nodes.policy import NodeState
from fabrictime.commands.config.live_config import PLAIN
from schemas.records import AlertKind, AlertState, RepairState
from schemas.topics import ALERTS, AUDIT, CONFIG, INVENTORY, REPAIRS
from tests.actuators.audit_results import result, run_of
from tests.actuators.notify.alerts import alert
from tests.fabrictime.audit.test_fleet import nic

HALF = NodeRules(max_out_share=0.5)


def operator_of(rules=HALF, **settings):
    rules_of = rules if callable(rules) else lambda node: rules
    return DrainOperator(OperatorSettings(rules_of, scheduler="SLURM", **settings))


def fleet_of(operator, count=8, per_leaf=2, **fields):
    """Hosts with two NICs each, on rails 0 and 1; `per_leaf` hosts are in a rack."""
    nodes = []
    for number in range(count):
        host, rack = f"n{number}", f"r{number // per_leaf}"
        for rail in (0, 1):
            record = {**nic(host, f"eth{rail}"), "rack": rack, "rail": rail, **fields}
            operator.take(INVENTORY.name, record["nic"], record, 1)
        nodes.append(NodeState(host, False, state="IDLE"))
    return nodes


def add(operator, *results, at_ns=1):
    for each in results:
        operator.take(AUDIT.name, each["run"], each, at_ns)


def failed(host, *subjects, check="backend.carrier", run="r1"):
    return result(host, check, "FAILED", run, subjects=subjects)


def drains(steps):
    return [step.node for step in steps if not step.obstacle]


def test_a_fault_that_hosts_of_a_leaf_switch_share_drains_none():
    operator = operator_of()
    nodes = fleet_of(operator)
    add(operator, failed("n0", "eth0"), failed("n1", "eth0"), failed("n4", "eth0"))
    steps = {step.node: step for step in operator.plan(nodes, 2)}
    assert steps["n0"].obstacle == (
        "backend.carrier: a fault of the network: n1 at the same leaf switch fail it too"
    )
    assert steps["n0"].is_limited
    assert steps["n1"].is_limited
    assert not steps["n4"].obstacle, "alone on its leaf switch"
    add(operator, result("n1", run="r2"))
    assert drains(operator.plan(nodes, 3)) == ["n0", "n4"]


def test_faults_on_other_rails_or_of_the_node_itself_are_not_shared():
    operator = operator_of()
    nodes = fleet_of(operator)
    add(operator, failed("n0", "eth0"), failed("n1", "eth1"))
    assert drains(operator.plan(nodes, 2)) == ["n0", "n1"]
    operator = operator_of()
    add(operator, failed("n0", check="node.ecc"), failed("n1", check="node.ecc"))
    assert drains(operator.plan(nodes, 2)) == ["n0", "n1"]


def test_hosts_with_the_same_first_router_share_it_whatever_their_rack():
    operator = operator_of()
    nodes = fleet_of(operator, first_hop="10.0.0.1")
    add(operator, failed("n0", "eth0"), failed("n7", "eth0"))
    assert drains(operator.plan(nodes, 2)) == []


def test_a_host_that_failed_beside_another_cause_is_drained_for_its_own():
    operator = operator_of()
    nodes = fleet_of(operator)
    add(operator, failed("n0", "eth0"), failed("n1", "eth0"), failed("n0", check="node.ecc"))
    (step,) = (step for step in operator.plan(nodes, 2) if step.node == "n0")
    assert (step.obstacle, [each.check for each in step.failures]) == ("", ["node.ecc"])


def test_an_alert_about_several_hosts_explains_a_failure_and_its_end_does_not():
    operator = operator_of()
    nodes = fleet_of(operator)
    add(operator, failed("n0", "eth0"))
    raised = {**alert("leaf1", AlertKind.LINK_DOWN), "nics": ["n0/eth0", "n5/eth0"]}
    operator.take(ALERTS.name, "leaf1", raised, 1)
    (step,) = operator.plan(nodes, 2)
    assert step.obstacle == (
        f"backend.carrier: a fault of the network: alert {raised['alert_id']} concerns 2 hosts"
    )
    cleared = {**raised, "state": AlertState.CLEARED, "cleared_ns": 3, "update": 1}
    operator.take(ALERTS.name, "leaf1", cleared, 3)
    assert drains(operator.plan(nodes, 4)) == ["n0"]


def test_a_failure_of_the_network_waits_for_other_hosts_and_one_of_the_node_does_not():
    operator = operator_of(NodeRules(0.5, network_wait_ns=60 * NS_PER_S))
    nodes = fleet_of(operator)
    add(operator, failed("n0", "eth0"), failed("n4", check="node.ecc"), at_ns=NS_PER_S)
    steps = {step.node: step for step in operator.plan(nodes, 2 * NS_PER_S)}
    assert steps["n0"].obstacle == "backend.carrier: waits 59 s for the results of other hosts"
    assert not steps["n0"].is_limited
    assert not steps["n4"].obstacle
    assert drains(operator.plan(nodes, 61 * NS_PER_S)) == ["n0", "n4"]


def test_a_rack_that_is_one_unit_is_drained_and_resumed_as_one():
    operator = operator_of(NodeRules(0.5, is_rack_unit=True))
    nodes = fleet_of(operator)
    add(operator, *run_of("n2", "r1", ["node.ecc"]), *run_of("n3", "r1"))
    steps = operator.plan(nodes, 2)
    assert drains(steps) == ["n2", "n3"]
    assert [step.cause_host for step in steps] == ["", "n2"]
    assert " of=n2: " in steps[1].text
    # a former process was killed between the two drains
    nodes[2] = NodeState("n2", True, steps[0].text)
    assert drains(operator.plan(nodes, 3)) == ["n3"]
    nodes[3] = NodeState("n3", True, steps[1].text)
    assert drains(operator.plan(nodes, 4)) == []
    add(operator, *run_of("n2", "r2"))
    assert drains(operator.plan(nodes, 5)) == ["n2", "n3"]
    add(operator, *run_of("n3", "r2", ["pcie.link"]))
    assert drains(operator.plan(nodes, 6)) == ["n2"], "n3 itself is unfit"


def test_a_rack_counts_as_one_unit_in_all_caps():
    operator = operator_of(NodeRules(0.5, is_rack_unit=True, max_per_hour=2), breaker=Breaker(2))
    nodes = fleet_of(operator, 16, per_leaf=4)
    add(
        operator,
        failed("n0", check="node.ecc"),
        failed("n4", check="node.ecc"),
        failed("n8", check="node.ecc"),
    )
    steps = operator.plan(nodes, 2)
    assert drains(steps) == [f"n{number}" for number in range(8)]
    assert [step.node for step in steps if step.is_limited] == ["n8"]


def test_a_node_that_is_out_for_another_reason_stays_out_of_its_unit():
    operator = operator_of(NodeRules(0.5, is_rack_unit=True))
    nodes = fleet_of(operator)
    nodes[3] = NodeState("n3", True, "Anna: new riser")
    add(operator, failed("n2", check="node.ecc"))
    steps = operator.plan(nodes, 2)
    assert drains(steps) == ["n2"]
    assert steps[1].obstacle == "already out: Anna: new riser"


def test_groups_have_rules_and_counts_of_their_own():
    strict = NodeRules(0.25, group="a", checks=("node.*",))
    operator = operator_of(lambda node: strict if node in ("n0", "n1", "n2", "n3") else HALF)
    nodes = fleet_of(operator)
    add(operator, *(failed(f"n{number}", check="node.ecc") for number in (0, 1, 4, 5)))
    add(operator, failed("n2", check="pcie.link"), failed("n6", check="pcie.link"))
    steps = operator.plan(nodes, 2)
    assert drains(steps) == ["n0", "n4", "n5"]
    assert [step.node for step in steps if step.is_limited] == ["n1", "n6"]


def test_the_breaker_opens_for_a_successor_too_and_a_person_closes_it():
    operator = operator_of(breaker=Breaker(2, 10 * NS_PER_S))
    nodes = fleet_of(operator)
    add(operator, *(failed(f"n{number}", check="node.ecc") for number in (0, 2, 4)))
    for step in operator.plan(nodes, 5)[:2]:
        record = {**operator.new_repair(step, 5), "state": RepairState.ENDED, "ended_ns": 6}
        operator.take(REPAIRS.name, record["repair_id"], record, 5)
    assert operator.opened_ns() == 5
    assert drains(operator.plan(nodes, 3600 * NS_PER_S)) == []
    operator.take(CONFIG.name, "*", {**PLAIN, "drains_reset_ns": 6}, 7)
    assert operator.opened_ns() is None
    assert drains(operator.plan(nodes, 8)) == ["n0", "n2"]


@pytest.mark.parametrize("check", ["backend.carrier", "node.ecc"])
def test_a_failed_error_is_urgent_and_nothing_else_is(check):
    operator = operator_of()
    nodes = fleet_of(operator)
    add(operator, *run_of("n1"), result("n1", check, "FAILED", severity="WARNING"))
    assert not operator.is_urgent
    assert operator.is_idle()
    add(operator, failed("n0", check=check))
    assert operator.is_urgent
    assert not operator.is_idle()
    step = operator.plan(nodes, 2)[0]
    assert not operator.is_urgent
    repair = {**operator.new_repair(step, 2), "state": RepairState.OPEN}
    operator.take(REPAIRS.name, repair["repair_id"], repair, 2)
    add(operator, failed("n0", check="pcie.link"))
    assert not operator.is_urgent, "its node is drained already"


def test_old_results_are_forgotten():
    operator = operator_of(max_age_ns=NS_PER_S)
    nodes = fleet_of(operator)
    add(operator, *run_of("n0", "r1", ["node.ecc"]))
    operator.plan(nodes, 2)
    assert operator.audits.hosts == ["n0"]
    assert operator.plan(nodes, 3 * NS_PER_S) == []
    operator.plan(nodes, 4000 * NS_PER_S)
    assert operator.audits.hosts == []
    assert operator.is_idle()
