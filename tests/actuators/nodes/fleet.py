"""A fleet for the tests of the drain operator: hosts with two NICs in racks, and their audits."""

from actuators.nodes.caps import NodeRules
from actuators.nodes.operator import DrainOperator, OperatorSettings
from actuators.nodes.policy import NodeState
from schemas.topics import AUDIT, INVENTORY
from tests.actuators.audit_results import result
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
    for outcome in results:
        operator.take(AUDIT.name, outcome["run"], outcome, at_ns)


def failed(host, *subjects, check="backend.carrier", run="r1"):
    return result(host, check, "FAILED", run, subjects=subjects)


def drains(steps):
    return [step.node for step in steps if not step.obstacle]
