"""Faults of the network that hosts share drain nobody."""

from actuators.nodes.actuator import Done
from actuators.nodes.caps import NS_PER_S, NodeRules
from schemas.records import AlertKind, AlertState
from schemas.topics import ALERTS
from tests.actuators.audit_results import result
from tests.actuators.nodes.fleet import add, drains, failed, fleet_of, operator_of
from tests.actuators.notify.alerts import alert


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
    assert steps["n0"].obstacle == "backend.carrier: waits until 00:01:01 UTC for the results of other hosts"
    assert Done(steps["n0"], None, "").is_waiting
    assert not steps["n0"].is_limited
    assert not steps["n4"].obstacle
    assert drains(operator.plan(nodes, 61 * NS_PER_S)) == ["n0", "n4"]
