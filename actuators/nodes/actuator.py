"""Carries out node actions: notifies the owners of jobs, records the order, calls the effector and reports.

The order is a record of `fabric.repairs`. If a process dies between order and report, its successor reads
the state of the node from the scheduler, and reports it. The decision id consists of action, node and run, so
that an action reported twice counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from actuators.effectors.node_base import Job, NodeEffector, NodeError
from actuators.nodes.operator import MAX_TEXT, DrainOperator
from actuators.nodes.policy import NodeState, NodeStep
from schemas.records import ActionOutcome, ActionReport, FlowAction, Repair, RepairJob, RepairState

MAX_NOTIFIED: Final = 64
"""Largest number of jobs whose owners are notified before a drain."""
SENDERS: Final = 8
MAX_URGENT: Final = 16
"""Number of nodes above which all nodes are read at once."""


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a step, with a line for people. `outcome`: None if an obstacle prevented the step."""

    step: NodeStep
    outcome: ActionOutcome | None
    text: str
    is_new: bool = False
    """True if the outcome was not reported before."""

    @property
    def is_waiting(self) -> bool:
        """Whether the action is due but delayed by a waiting time, a limit or running jobs."""
        return self.step.is_early or self.outcome is ActionOutcome.LIMITED


class ActionLog(Protocol):
    """The log to which reports and repairs are published."""

    def publish(self, reports: Sequence[ActionReport], repairs: Sequence[Repair]) -> None:
        """Publish the records, and return once the log has stored them. Raises ValueError."""


class NodeActuator:
    """Drains and resumes the nodes of one scheduler."""

    def __init__(
        self,
        effector: NodeEffector,
        operator: DrainOperator,
        log: ActionLog,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._effector, self._operator, self._log, self._now_ns = effector, operator, log, now_ns
        self._nodes: dict[str, NodeState] = {}

    def run_urgent(self) -> list[Done]:
        """Do the same as `run`, but read only the nodes of the hosts that failed since the last plan.

        The states of the other nodes are taken from the last `run`, so that the size of the fleet costs no
        time.
        """
        hosts, host_by_node = self._operator.urgent_hosts, self._operator.settings.host_by_node
        names = [node for node in self._nodes if host_by_node.get(node, node) in hosts]
        if len(names) > MAX_URGENT:
            return self.run()
        self._nodes |= {node.name: node for node in (self._effector.nodes(names) if names else ())}
        return self._run(observe=False)

    def run(self, *, observe: bool = False) -> list[Done]:
        """Reconcile the repairs with the scheduler, then plan and carry out steps. `observe`: only plan.

        Raises NodeError if the scheduler does not list its nodes, and ValueError if the log refuses a record;
        the next process then reports this action.
        """
        self._nodes = {node.name: node for node in self._effector.nodes()}
        return self._run(observe=observe)

    def _run(self, *, observe: bool) -> list[Done]:
        nodes = list(self._nodes.values())
        done = self._reconcile(nodes)
        steps = self._operator.plan(nodes, self._now_ns())
        return done + [self._carry_out(step, observe) for step in steps]

    def _reconcile(self, nodes: Sequence[NodeState]) -> list[Done]:
        done = []
        for repair in list(self._operator.reconcile(nodes, self._now_ns())):
            action = _unreported_action(repair)
            if action is None:
                self._publish([], [repair])
                continue
            run, text = (
                (repair["run"], repair["reason"])
                if action is FlowAction.DRAIN
                else (repair["end_run"], repair["end_reason"])
            )
            step = NodeStep(repair["node"], repair["host"], action, run, text)
            done.append(self._report(step, ActionOutcome.APPLIED, text, repair))
        return done

    def _carry_out(self, step: NodeStep, observe: bool) -> Done:
        limits = self._operator.limits_of(step.host)
        if step.obstacle:
            if step.is_limited:
                return self._report(step, ActionOutcome.LIMITED, step.obstacle)
            return Done(step, None, step.obstacle)
        if self._operator.is_reported(step.decision_id, ActionOutcome.APPLIED):
            return Done(step, None, f"taken before for run {step.run}, and undone by another")
        if observe or step.rules.observe or not limits.act:
            return self._report(step, ActionOutcome.OBSERVED, step.text)
        if step.action not in limits.allowed:
            text = f"allowed_actions of {step.host}: {', '.join(sorted(limits.allowed))}"
            return self._report(step, ActionOutcome.NOT_ALLOWED, text)
        try:
            return self._drain(step) if step.action is FlowAction.DRAIN else self._resume(step)
        except NodeError as error:
            # The scheduler may have acted all the same, as after a time-out: the repair keeps the order.
            return self._report(step, ActionOutcome.FAILED, str(error))

    def _drain(self, step: NodeStep) -> Done:
        """Notify the owners of jobs, then drain the node. Raises NodeError."""
        jobs = self._effector.jobs(step.node)
        if step.rules.max_jobs is not None and len(jobs) > step.rules.max_jobs:
            text = f"{len(jobs)} jobs run on {step.node}, at most {step.rules.max_jobs} may (max_jobs)"
            return self._report(step, ActionOutcome.LIMITED, f"{text}: waits until others end")
        repair = self._operator.new_repair(step, self._now_ns())
        notified = {row["job"]: row["notified"] for row in repair["jobs"]}
        repair = {**repair, "jobs": self._notify(step, jobs, notified)}
        self._publish([], [repair])
        began_ns = time.monotonic_ns()
        self._effector.drain(step.node, step.text)
        self._nodes[step.node] = NodeState(step.node, True, step.text)
        opened: Repair = {**repair, "state": RepairState.OPEN, "updated_ns": self._now_ns()}
        took_ns = time.monotonic_ns() - began_ns
        return self._report(step, ActionOutcome.APPLIED, step.text, opened, took_ns)

    def _notify(self, step: NodeStep, jobs: Sequence[Job], notified: dict[str, bool]) -> list[RepairJob]:
        """Notify the owners of jobs, each only once. A failed message does not prevent the drain."""
        text = f"fabrictime: node {step.node} gets no new jobs; running jobs continue. {step.text}"

        def is_notified(job: Job) -> bool:
            try:
                self._effector.notify(job, text[:MAX_TEXT])
            except NodeError:
                return False
            return True

        new_jobs = [job for job in jobs if not notified.get(job.name)][:MAX_NOTIFIED]
        if new_jobs:
            with ThreadPoolExecutor(SENDERS) as pool:
                names = (job.name for job in new_jobs)
                notified |= dict(zip(names, pool.map(is_notified, new_jobs), strict=True))
        return [
            {"job": job.name, "owner": job.owner, "notified": notified.get(job.name, False)} for job in jobs
        ]

    def _resume(self, step: NodeStep) -> Done:
        """Resume a node that this system drained. Raises NodeError."""
        repair = self._operator.repair_of(step.node)
        if repair is not None:
            now_ns = self._now_ns()
            repair = {
                **repair,
                "state": RepairState.RESUMING,
                "updated_ns": now_ns,
                "ended_ns": now_ns,
                "ended_by": self._operator.settings.by,
                "end_run": step.run,
                "end_reason": step.text[:MAX_TEXT],
            }
            self._publish([], [repair])
        began_ns = time.monotonic_ns()
        self._effector.resume(step.node)
        self._nodes[step.node] = NodeState(step.node, False)
        took_ns = time.monotonic_ns() - began_ns
        if repair is not None:
            repair = {**repair, "state": RepairState.ENDED, "updated_ns": self._now_ns()}
        return self._report(step, ActionOutcome.APPLIED, step.text, repair, took_ns)

    def _report(
        self,
        step: NodeStep,
        outcome: ActionOutcome,
        text: str,
        repair: Repair | None = None,
        took_ns: int = 0,
    ) -> Done:
        reports = []
        if not self._operator.is_reported(step.decision_id, outcome):
            how = self._effector.how if outcome is ActionOutcome.APPLIED else ""
            version = self._operator.limits_of(step.host).version
            reports = [node_report(step, outcome, text, how, self._now_ns(), took_ns, version)]
        self._publish(reports, [] if repair is None else [repair])
        return Done(step, outcome, text, is_new=bool(reports))

    def _publish(self, reports: Sequence[ActionReport], repairs: Sequence[Repair]) -> None:
        if reports or repairs:
            self._log.publish(reports, repairs)
        for report in reports:
            self._operator.note_report(report["decision_id"], report["outcome"])
        for repair in repairs:
            self._operator.take_repair(repair)


def node_report(
    step: NodeStep, outcome: ActionOutcome, text: str, how: str, at_ns: int, took_ns: int, config_version: int
) -> ActionReport:
    """Return the report of a node action. It belongs to no shard, and to no decision of the policy."""
    return {
        "host": step.host,
        "decision_id": step.decision_id,
        "shard": "",
        "epoch": 0,
        "seq": 0,
        "at_ns": at_ns,
        "flow_id": f"{step.host}/node {step.node}"[:256],
        "action": step.action,
        "outcome": outcome,
        "from_path": None,
        "to_path": None,
        "rate_bps": None,
        "how": how,
        "took_ns": took_ns,
        "config_version": config_version,
        "detail": f"node {step.node}: {text}"[:MAX_TEXT],
    }


def _unreported_action(repair: Repair) -> FlowAction | None:
    """Return this system's action that led to a reconciled repair; None if another client acted."""
    if repair["state"] == RepairState.OPEN:
        return FlowAction.DRAIN
    return FlowAction.RESUME if repair["ended_by"] else None
