"""`fabrictime audit repairs`: the table, its JSON, and the reset of the circuit breaker, on a real log."""

import json
import time

import pytest
from typer.testing import CliRunner

from actuators.nodes.caps import Breaker
from fabrictime.commands.cli import app
from schemas.kafka.publisher import Publisher
from schemas.records import RepairState
from schemas.topics import REPAIRS
from tests.actuators.nodes.fleet import add, failed, fleet_of, operator_of


@pytest.fixture
def log_with_drains(log):
    """A log with nine drains of the last minute; that of n0 is over."""
    operator = operator_of(breaker=Breaker(100), by="drains@h0")
    nodes, now_ns = fleet_of(operator, 20, per_leaf=1), time.time_ns()
    add(operator, *(failed(f"n{number}", check="node.ecc") for number in range(9)), at_ns=now_ns)
    publisher = Publisher(log)
    for number, step in enumerate(operator.plan(nodes, now_ns)):
        record = {**operator.new_repair(step, now_ns + number), "state": RepairState.OPEN}
        record["jobs"] = [{"job": "17", "owner": "ann", "notified": True}]
        if step.node == "n0":
            record |= {
                "state": RepairState.ENDED,
                "ended_ns": now_ns + 9,
                "end_reason": "returned to service",
            }
        publisher.publish(REPAIRS, record["repair_id"], record)
    publisher.flush(10)
    return log


def repairs(log, *arguments):
    done = CliRunner().invoke(app, ["audit", "repairs", "--log", log, *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_repairs_in_force_are_shown_and_a_person_closes_the_breaker(log_with_drains):
    shown = repairs(log_with_drains)
    assert shown.startswith("circuit breaker open since ")
    assert "n1 " in shown
    assert "n0 " not in shown
    assert "1, 1 notified" in shown
    assert "Check cable and transceiver" in shown
    (line,) = json.loads(repairs(log_with_drains, "n0", "--all", "--json"))["repairs"]
    assert (line["node"], line["state"], line["by"]) == ("n0", "ENDED", "drains@h0")
    assert [row["node"] for row in json.loads(repairs(log_with_drains, "r3", "--json"))["repairs"]] == ["n3"]
    closed = repairs(log_with_drains, "--reset")
    assert "circuit breaker" not in closed
    assert "circuit breaker" not in repairs(log_with_drains)
    assert repairs(log_with_drains, "n19") == "no repair\n"
