"""The drain operator: racks as units, groups, the circuit breaker, urgency."""

import pytest

from actuators.nodes.caps import NS_PER_S, Breaker, NodeRules
from actuators.nodes.policy import NodeState
from fabrictime.commands.config.live_config import PLAIN
from schemas.records import RepairState
from schemas.topics import CONFIG, REPAIRS
from tests.actuators.audit_results import result, run_of
from tests.actuators.nodes.fleet import HALF, add, drains, failed, fleet_of, operator_of


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
    assert not operator.urgent_hosts
    assert operator.is_idle()
    add(operator, failed("n0", check=check))
    assert operator.urgent_hosts == {"n0"}
    assert not operator.is_idle()
    step = operator.plan(nodes, 2)[0]
    assert not operator.urgent_hosts
    repair = {**operator.new_repair(step, 2), "state": RepairState.OPEN}
    operator.take(REPAIRS.name, repair["repair_id"], repair, 2)
    add(operator, failed("n0", check="pcie.link"))
    assert not operator.urgent_hosts, "its node is drained for this run already"
    add(operator, failed("n0", run="r2"))
    assert operator.urgent_hosts == {"n0"}


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
