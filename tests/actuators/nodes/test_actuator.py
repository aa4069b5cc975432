"""The node actuator: modes, reports, owners of jobs, and a restart at every point of an action."""

import pytest

from actuators.effectors.node_base import Job, NodeError, check_drain, check_resume
from actuators.nodes.actuator import NodeActuator
from actuators.nodes.caps import NodeRules
from actuators.nodes.operator import DrainOperator, OperatorSettings
from actuators.nodes.policy import NodeState
from fabrictime.commands.config.live_config import PLAIN
from schemas import codec
from schemas.records import ActionOutcome, ActMode, FlowAction, RepairState
from schemas.topics import ACTIONS, AUDIT, CONFIG, REPAIRS
from tests.actuators.audit_results import run_of

ACT = {**PLAIN, "mode": ActMode.ACT, "allowed_actions": [FlowAction.DRAIN, FlowAction.RESUME], "version": 7}
REASON = "fabrictime: run=r1 checks=node.ecc: mlx5_0:  carrier  is down, expected up"
NAMES = ("n1", "n2", "n3", "n4")
RULES = NodeRules(max_out_share=0.5)


class Killed(BaseException):
    """The process ends here."""


class Table:
    """A scheduler in memory; `fails`: the error of its next action."""

    how = "SLURM"

    def __init__(self):
        self.known = {name: NodeState(name, False) for name in NAMES}
        self.running = {}
        self.fails = self.fails_after = None
        self.calls, self.notified, self.reads = [], [], []

    def nodes(self, names=()):
        self.reads.append(tuple(names))
        return [node for name, node in self.known.items() if not names or name in names]

    def jobs(self, node):
        return self.running.get(node, [])

    def notify(self, job, text):
        if job.owner == "deaf":
            raise NodeError("scontrol notify: exit code 1")
        self.notified.append((job.name, text))

    def drain(self, node, reason):
        self._act("drain", check_drain(self.known[node], reason), NodeState(node, True, reason))

    def resume(self, node):
        self._act("resume", check_resume(self.known[node]), NodeState(node, False))

    def _act(self, name, is_needed, state):
        if self.fails is not None:
            raise self.fails
        if is_needed:
            self.calls.append((name, state.name))
            self.known[state.name] = state
        if self.fails_after is not None:
            raise self.fails_after


class Log:
    """The records of audits, config, reports and repairs. `dies_at`: the publish that kills, from 0."""

    def __init__(self, config=ACT):
        self.records = [(CONFIG.name, "*", config)]
        self.dies_at, self.dies_before = None, True

    def add_run(self, *results):
        self.records += [(AUDIT.name, each["run"], each) for each in results]

    def publish(self, reports, repairs):
        dies, self.dies_at = self.dies_at == 0, self.dies_at and self.dies_at - 1
        if dies and self.dies_before:
            raise Killed
        for topic, records in ((ACTIONS, reports), (REPAIRS, repairs)):
            for record in records:
                codec.encode(topic.record, record)
                self.records.append((topic.name, "", record))
        if dies:
            raise Killed

    def of(self, topic):
        return [record for name, _, record in self.records if name == topic.name]

    def outcomes(self):
        return [(each["action"], each["host"], each["outcome"]) for each in self.of(ACTIONS)]

    def states(self):
        """The last state of each repair, by node."""
        return {each["node"]: each["state"] for each in self.of(REPAIRS)}


def process(table, log, rules=RULES, **options):
    """Run one process: it reads the log and acts once."""
    operator = DrainOperator(OperatorSettings(lambda node: rules, by="anna@h0", scheduler="SLURM"))
    for number, (topic, key, record) in enumerate(log.records, 1):
        operator.take(topic, key, record, number)
    return NodeActuator(table, operator, log, lambda: 100 + len(log.records)).run(**options)


def outcomes(done):
    return [each.outcome for each in done]


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def log():
    log = Log()
    log.add_run(*run_of("n1", "r1", ["node.ecc"]))
    return log


def test_a_drain_and_its_end_are_recorded_with_cause_and_evidence(table, log):
    table.running["n1"] = [Job("17", "ann"), Job("18", "deaf")]
    assert outcomes(process(table, log)) == [ActionOutcome.APPLIED]
    assert table.known["n1"].reason == REASON
    (report,) = log.of(ACTIONS)
    assert (report["host"], report["flow_id"], report["how"]) == ("n1", "n1/node n1", "SLURM")
    assert (report["action"], report["config_version"]) == ("DRAIN", 7)
    assert report["detail"] == f"node n1: {REASON}"
    order, repair = log.of(REPAIRS)
    assert (order["state"], repair["state"]) == (RepairState.DRAINING, RepairState.OPEN)
    assert (repair["repair_id"], repair["by"], repair["run"]) == ("drain n1 r1", "anna@h0", "r1")
    assert [each["check"] for each in repair["evidence"]] == ["node.ecc"]
    assert repair["evidence"][0]["remedy"] == "Check cable and transceiver"
    notified = [(each["job"], each["owner"], each["notified"]) for each in repair["jobs"]]
    assert notified == [("17", "ann", True), ("18", "deaf", False)]
    assert [name for name, _ in table.notified] == ["17"]
    log.add_run(*run_of("n1", "r2"))
    assert outcomes(process(table, log)) == [ActionOutcome.APPLIED]
    end = log.of(REPAIRS)[-1]
    assert (end["state"], end["end_run"], end["ended_by"]) == (RepairState.ENDED, "r2", "anna@h0")
    assert end["end_reason"] == "node.ecc passed in run r2; drained by run r1"
    assert table.calls == [("drain", "n1"), ("resume", "n1")]


def test_a_node_with_too_many_jobs_waits_and_nobody_is_notified(table, log):
    table.running["n1"] = [Job("17", "ann")]
    (done,) = process(table, log, NodeRules(0.5, max_jobs=0))
    text = "1 jobs run on n1, at most 0 may (max_jobs): waits until others end"
    assert (done.outcome, done.text) == (ActionOutcome.LIMITED, text)
    assert (table.calls, table.notified) == ([], [])
    table.running.clear()
    assert outcomes(process(table, log, NodeRules(0.5, max_jobs=0))) == [ActionOutcome.APPLIED]


@pytest.mark.parametrize(
    ("config", "rules", "observe", "outcome"),
    [
        (PLAIN, RULES, False, ActionOutcome.OBSERVED),
        (ACT, RULES, True, ActionOutcome.OBSERVED),
        (ACT, NodeRules(0.5, observe=True), False, ActionOutcome.OBSERVED),
        ({**PLAIN, "mode": ActMode.ACT}, RULES, False, ActionOutcome.NOT_ALLOWED),
    ],
)
def test_nothing_is_done_without_the_mode_and_the_permission(table, log, config, rules, observe, outcome):
    log.records[0] = (CONFIG.name, "*", config)
    (done,) = process(table, log, rules, observe=observe)
    assert (done.outcome, done.is_new) == (outcome, True)
    assert not table.calls
    (done,) = process(table, log, rules, observe=observe)
    assert (done.outcome, done.is_new) == (outcome, False)
    assert log.outcomes() == [("DRAIN", "n1", outcome)], "the same outcome is reported once"
    assert log.states() == {}


def test_limits_are_reported_and_other_obstacles_are_only_shown(table, log):
    table.known["n2"] = NodeState("n2", True, "Anna")
    table.known["n3"] = NodeState("n3", True, "Anna")
    log.add_run(*run_of("n2", "r1", ["node.ecc"]))
    done = {each.step.node: (each.outcome, each.text) for each in process(table, log)}
    assert done["n1"][0] is ActionOutcome.LIMITED
    assert done["n2"] == (None, "already out: Anna")
    assert log.outcomes() == [("DRAIN", "n1", "LIMITED")]


def test_a_scheduler_that_refuses_is_a_failure_and_is_tried_again(table, log):
    table.fails = NodeError("scontrol update: exit code 1: Access denied")
    table.running["n1"] = [Job("17", "ann")]
    assert outcomes(process(table, log)) == [ActionOutcome.FAILED]
    assert log.of(ACTIONS)[0]["detail"] == "node n1: scontrol update: exit code 1: Access denied"
    assert log.states() == {"n1": "DRAINING"}
    table.fails = None
    assert outcomes(process(table, log)) == [ActionOutcome.APPLIED]
    assert len(table.notified) == 1, "an owner is notified once"
    assert log.states() == {"n1": "OPEN"}


def test_an_order_without_a_cause_is_ended(table, log):
    table.fails = NodeError("scontrol update: exit code 1: Access denied")
    process(table, log)
    log.add_run(*run_of("n1", "r2"))
    assert process(table, log) == []
    assert (log.states(), table.calls) == ({"n1": "ENDED"}, [])


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("dies_at", [0, 1, 2])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_killed_process_loses_nothing_and_applies_nothing_twice(table, log, dies_at, dies_before, resumes):
    if resumes:
        process(table, log)
        log.add_run(*run_of("n1", "r2"))
    log.dies_at, log.dies_before = dies_at, dies_before
    try:
        process(table, log)
    except Killed:
        pass
    else:
        assert dies_at == 2, "an action has two publishes"
    log.dies_at = None
    process(table, log)
    process(table, log)
    actions = ["DRAIN", "RESUME"] if resumes else ["DRAIN"]
    assert [each["action"] for each in log.of(ACTIONS) if each["outcome"] == "APPLIED"] == actions
    assert table.calls == [(each.lower(), "n1") for each in actions]
    assert log.states() == {"n1": "ENDED" if resumes else "OPEN"}


def test_a_process_killed_in_the_scheduler_repeats_nothing_it_did(table, log):
    table.fails_after = Killed()
    with pytest.raises(Killed):
        process(table, log)
    table.fails_after = None
    done = process(table, log)[0]
    assert (done.outcome, done.text) == (ActionOutcome.APPLIED, REASON)
    assert table.calls == [("drain", "n1")]
    assert log.states() == {"n1": "OPEN"}


def test_an_action_that_the_scheduler_took_after_its_time_out_is_reported_later(table, log):
    table.fails_after = NodeError("scontrol update: no end within 10 s")
    assert outcomes(process(table, log)) == [ActionOutcome.FAILED]
    table.fails_after = None
    assert process(table, log)[0].outcome is ActionOutcome.APPLIED
    assert [each["outcome"] for each in log.of(ACTIONS)] == ["FAILED", "APPLIED"]
    assert table.calls == [("drain", "n1")]


def test_a_node_that_an_administrator_resumed_is_not_drained_again_for_the_same_run(table, log):
    process(table, log)
    table.known["n1"] = NodeState("n1", False)
    (done,) = process(table, log)
    assert (done.outcome, done.text) == (None, "taken before for run r1, and undone by another")
    assert not table.known["n1"].is_out
    end = log.of(REPAIRS)[-1]
    assert (end["state"], end["ended_by"]) == (RepairState.ENDED, "")
    assert end["end_reason"] == "returned to service by someone else"


def test_a_drain_of_ours_without_a_record_gets_one(table, log):
    table.known["n3"] = NodeState("n3", True, "fabrictime: run=r0 checks=pcie.link,node.ecc of=n4: width 8")
    process(table, log)
    repair = next(each for each in log.of(REPAIRS) if each["node"] == "n3")
    assert (repair["state"], repair["cause_host"], repair["run"]) == (RepairState.OPEN, "n4", "r0")
    assert repair["checks"] == ["pcie.link", "node.ecc"]
    del table.known["n3"]
    process(table, log)
    assert log.of(REPAIRS)[-1]["end_reason"] == "the scheduler has no such node any more"


def test_a_verdict_reads_only_the_nodes_that_failed(table, log):
    operator = DrainOperator(OperatorSettings(lambda node: RULES, scheduler="SLURM"))
    actuator = NodeActuator(table, operator, log, lambda: 100 + len(log.records))
    operator.take(CONFIG.name, "*", ACT, 1)
    assert actuator.run() == []
    for record in run_of("n2", "r1", ["node.ecc"]):
        operator.take(AUDIT.name, "r1", record, 2)
    assert outcomes(actuator.run_urgent()) == [ActionOutcome.APPLIED]
    assert table.reads == [(), ("n2",)]
    table.known["n3"] = NodeState("n3", True, "Anna")  # a change that the next full check sees
    for record in run_of("n4", "r1", ["node.ecc"]):
        operator.take(AUDIT.name, "r1", record, 2)
    assert table.known["n2"].is_out
    assert [one.outcome for one in actuator.run_urgent() if one.step.node == "n4"] == [ActionOutcome.APPLIED]
    assert table.reads[-1] == ("n4",)
