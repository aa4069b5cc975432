"""The metrics of the drain service are in the table, and show drains, results and the circuit breaker."""

from actuators.nodes.actuator import Done
from actuators.nodes.caps import Breaker
from actuators.nodes.metrics import DrainMetrics
from schemas.metrics.table import METRICS
from schemas.records import ActionOutcome, RepairState
from schemas.topics import REPAIRS
from tests.actuators.nodes.fleet import add, failed, fleet_of, operator_of


def test_drains_results_and_breaker_are_exported():
    operator, metrics = operator_of(breaker=Breaker(1)), DrainMetrics()
    nodes = fleet_of(operator)
    add(operator, failed("n0", check="node.ecc"))
    (step,) = operator.plan(nodes, 2)
    record = {**operator.new_repair(step, 2), "state": RepairState.OPEN}
    operator.take(REPAIRS.name, record["repair_id"], record, 2)
    for outcome in (ActionOutcome.APPLIED, ActionOutcome.LIMITED, None):
        metrics.count(Done(step, outcome, ""))
    metrics.set_state(operator)
    metrics.waiting = ["n1: waits until 08:30:00 UTC"]
    samples = {(sample.name, *sample.labels): sample.value for sample in metrics.samples()}
    assert samples["fabrictime_drains_in_force",] == samples["fabrictime_drains_stopped",] == 1
    assert samples["fabrictime_drains_waiting",] == 1
    assert samples["fabrictime_drain_actions_total", "applied"] == 1
    assert samples["fabrictime_drain_actions_total", "refused"] == 1
    assert {name for name, *_ in samples} <= {metric.name for metric in METRICS}
    assert metrics.text() == (
        "1 drains in force, 2 outcomes; circuit breaker open: no drains until a person resets it; "
        "1 waiting: n1: waits until 08:30:00 UTC"
    )
