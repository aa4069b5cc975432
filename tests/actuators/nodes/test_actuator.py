"""The node actuator: modes, reports, and a restart at every point of an action."""

import pytest

from actuators.effectors.node_base import NodeError, check_drain, check_resume
from actuators.journal import Journal
from actuators.nodes.actuator import NodeActuator
from actuators.nodes.policy import NodeState, NodeStep
from schemas import codec
from schemas.limits import Limits
from schemas.records import ActionOutcome, FlowAction

REASON = "fabrictime: run=r1 checks=node.ecc: 3 errors, expected 0"
DRAIN = NodeStep("n1", "h1", FlowAction.DRAIN, "r1", REASON)
RESUME = NodeStep("n1", "h1", FlowAction.RESUME, "r2", "node.ecc passed in run r2; drained by run r1")
ACT = Limits(act=True, allowed=frozenset({FlowAction.DRAIN, FlowAction.RESUME}), version=7)


class Killed(BaseException):
    """The process ends here."""


class Table:
    """A scheduler in memory; `fails`: the error of its next action."""

    how = "SLURM"

    def __init__(self):
        self.known = {"n1": NodeState("n1", False)}
        self.fails = None
        self.calls = []

    def nodes(self):
        return list(self.known.values())

    def drain(self, node, reason):
        self._act("drain", check_drain(self.known[node], reason), NodeState(node, True, reason))

    def resume(self, node):
        self._act("resume", check_resume(self.known[node]), NodeState(node, False))

    def _act(self, name, is_needed, state):
        if self.fails is not None:
            raise self.fails
        if is_needed:
            self.calls.append(name)
            self.known[state.name] = state


class Process:
    """One run of the command: a journal read from the file, reports as the log has them."""

    def __init__(self, path, table, log, limits=ACT, dies_at=None):
        self.journal = Journal(path)
        self.table, self.log, self.dies_at = table, log, dies_at
        self.actuator = NodeActuator(
            table, self.journal, lambda host: limits, self.publish, self.is_reported, lambda: 5
        )

    def publish(self, report):
        if self.dies_at == "before the report":
            raise Killed
        codec.encode("ActionReport", report)
        self.log.append(report)
        if self.dies_at == "after the report":
            raise Killed

    def is_reported(self, name, outcome):
        return any((each["decision_id"], each["outcome"]) == (name, outcome) for each in self.log)

    def run(self, *steps, **options):
        try:
            done = self.actuator.recover(self.journal.states, self.table.nodes())
            return done + self.actuator.carry_out(steps, **options)
        finally:
            self.journal.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nodes.jsonl"


def outcomes(done):
    return [each.outcome for each in done]


def test_a_drain_is_applied_and_reported_with_its_reason(path):
    table, log = Table(), []
    done = Process(path, table, log).run(DRAIN)
    assert outcomes(done) == [ActionOutcome.APPLIED]
    assert table.known["n1"].reason == REASON
    (report,) = log
    assert (report["host"], report["flow_id"], report["how"]) == ("h1", "h1/node n1", "SLURM")
    assert (report["action"], report["config_version"], report["at_ns"]) == ("DRAIN", 7, 5)
    assert report["detail"] == f"node n1: {REASON}"
    assert outcomes(Process(path, table, log).run(RESUME)) == [ActionOutcome.APPLIED]
    assert table.calls == ["drain", "resume"]
    assert Journal(path).states == {}


@pytest.mark.parametrize(
    ("limits", "observe", "outcome"),
    [
        (Limits(), False, ActionOutcome.OBSERVED),
        (ACT, True, ActionOutcome.OBSERVED),
        (Limits(act=True), False, ActionOutcome.NOT_ALLOWED),
    ],
)
def test_nothing_is_done_without_the_mode_and_the_permission(path, limits, observe, outcome):
    table, log = Table(), []
    assert outcomes(Process(path, table, log, limits).run(DRAIN, observe=observe)) == [outcome]
    assert not table.calls
    assert [each["outcome"] for each in log] == [outcome]
    Process(path, table, log, limits).run(DRAIN, observe=observe)
    assert len(log) == 1, "the same outcome is reported once"


def test_the_breaker_is_reported_and_other_obstacles_are_only_shown(path):
    table, log = Table(), []
    limited = NodeStep("n1", "h1", FlowAction.DRAIN, "r1", REASON, "circuit breaker: 1 of 4", is_limited=True)
    waiting = NodeStep("n1", "h1", FlowAction.RESUME, "r1", "", "node.ecc passed in 0 runs")
    done = Process(path, table, log).run(limited, waiting)
    assert outcomes(done) == [ActionOutcome.LIMITED, None]
    assert [each["detail"] for each in log] == ["node n1: circuit breaker: 1 of 4"]


def test_a_scheduler_that_refuses_is_a_failure_and_is_tried_again(path):
    table, log = Table(), []
    table.fails = NodeError("scontrol update: exit code 1: Access denied")
    assert outcomes(Process(path, table, log).run(DRAIN)) == [ActionOutcome.FAILED]
    assert log[0]["detail"] == "node n1: scontrol update: exit code 1: Access denied"
    table.fails = None
    assert outcomes(Process(path, table, log).run(DRAIN)) == [ActionOutcome.APPLIED]


@pytest.mark.parametrize("dies_at", ["before the report", "after the report"])
@pytest.mark.parametrize(("before", "step"), [((), DRAIN), ((DRAIN,), RESUME)])
def test_a_killed_process_applies_nothing_twice_and_reports_once(path, dies_at, before, step):
    table, log = Table(), []
    Process(path, table, log).run(*before)
    with pytest.raises(Killed):
        Process(path, table, log, dies_at=dies_at).run(step)
    Process(path, table, log).run()
    expected = [each.action for each in (*before, step)]
    assert [each["action"] for each in log if each["outcome"] == "APPLIED"] == expected
    assert table.calls == [each.lower() for each in expected]


def test_a_process_killed_before_the_action_leaves_nothing_to_report(path):
    table, log = Table(), []
    table.fails = Killed()
    with pytest.raises(Killed):
        Process(path, table, log).run(DRAIN)
    table.fails = None
    assert Process(path, table, log).run() == []
    assert outcomes(Process(path, table, log).run(DRAIN)) == [ActionOutcome.APPLIED]


def test_a_node_that_an_administrator_resumed_is_not_drained_again_for_the_same_run(path):
    table, log = Table(), []
    Process(path, table, log).run(DRAIN)
    table.known["n1"] = NodeState("n1", False)
    (done,) = Process(path, table, log).run(DRAIN)
    assert (done.outcome, done.text) == (None, "taken before for run r1, and undone by another")
    assert not table.known["n1"].is_out


def test_an_unreadable_journal_entry_is_dropped(path):
    path.write_text('["n1",{"node":"n1"}]\n')
    assert Process(path, Table(), []).run() == []
    assert Journal(path).states == {}


def test_an_action_that_the_scheduler_took_after_its_time_out_is_reported_later(path):
    table, log = Table(), []
    drain = table.drain

    def late(node, reason):
        drain(node, reason)
        raise NodeError("scontrol update: no end within 10 s")

    table.drain = late
    assert outcomes(Process(path, table, log).run(DRAIN)) == [ActionOutcome.FAILED]
    (done,) = Process(path, table, log).run()
    assert (done.outcome, done.step) == (ActionOutcome.APPLIED, DRAIN)
    assert [each["outcome"] for each in log] == ["FAILED", "APPLIED"]
    assert Journal(path).states == {}
