"""Carries out node actions; writes the journal, calls the effector and reports, in this order.

If a process dies after the scheduler took an action and before the log took its report, an entry stays in the
journal. `recover` then asks the scheduler and reports the action; it never acts. The decision id is made of
action, node and run, so that a report that is published twice counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from actuators.effectors.node_base import NodeEffector, NodeError
from actuators.journal import State, StateStore
from actuators.nodes.policy import NodeState, NodeStep, is_ours, is_same_drain
from schemas.limits import Limits
from schemas.records import ActionOutcome, ActionReport, FlowAction

MAX_DETAIL: Final = 500
Reported = Callable[[str, ActionOutcome], bool]


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a step, with a line for people. `outcome` is None if an obstacle prevented the step."""

    step: NodeStep
    outcome: ActionOutcome | None
    text: str


class NodeActuator:
    """Acts on the nodes of one scheduler."""

    def __init__(
        self,
        effector: NodeEffector,
        journal: StateStore,
        limits_of: Callable[[str], Limits],
        publish: Callable[[ActionReport], None],
        is_reported: Reported,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`limits_of`: returns the limits of a host. `publish` returns once the log has the report; it raises
        ValueError.

        `is_reported`: returns whether the log has a report with this decision id and outcome.
        """
        self._effector, self._journal, self._limits_of = effector, journal, limits_of
        self._publish, self._is_reported, self._now_ns = publish, is_reported, now_ns

    def recover(self, states: Mapping[str, State], nodes: Iterable[NodeState]) -> list[Done]:
        """Report the actions that a former process took and did not report. Raises ValueError."""
        node_by_name = {node.name: node for node in nodes}
        reports = []
        for name, state in list(states.items()):
            step = _step(state)
            node = node_by_name.get(name)
            if step is not None and node is not None and _is_done(step, node):
                reports.append(self._report(step, ActionOutcome.APPLIED, step.text))
            self._journal.save(name, None)
        return reports

    def carry_out(self, steps: Iterable[NodeStep], *, observe: bool = False) -> list[Done]:
        """Carry out the steps that limits and mode allow, and report them. With `observe`, carry out none.

        Raises ValueError if the log does not accept a report; the next process reports that action.
        """
        return [self._carry_out(step, observe) for step in steps]

    def _carry_out(self, step: NodeStep, observe: bool) -> Done:
        limits = self._limits_of(step.host)
        if step.obstacle:
            if step.is_limited:
                return self._report(step, ActionOutcome.LIMITED, step.obstacle)
            return Done(step, None, step.obstacle)
        if self._is_reported(step.decision_id, ActionOutcome.APPLIED):
            return Done(step, None, f"taken before for run {step.run}, and undone by another")
        if observe or not limits.act:
            return self._report(step, ActionOutcome.OBSERVED, step.text)
        if step.action not in limits.allowed:
            text = f"allowed_actions of {step.host}: {', '.join(sorted(limits.allowed))}"
            return self._report(step, ActionOutcome.NOT_ALLOWED, text)
        if not self._journal.save(step.node, asdict(step)):
            return self._report(step, ActionOutcome.FAILED, "the journal cannot be written")
        began_ns = time.monotonic_ns()
        try:
            if step.action is FlowAction.DRAIN:
                self._effector.drain(step.node, step.text)
            else:
                self._effector.resume(step.node)
        except NodeError as error:
            # The scheduler may have acted all the same, as after a time-out: the journal keeps the step.
            return self._report(step, ActionOutcome.FAILED, str(error), time.monotonic_ns() - began_ns)
        done = self._report(step, ActionOutcome.APPLIED, step.text, time.monotonic_ns() - began_ns)
        self._journal.save(step.node, None)
        return done

    def _report(self, step: NodeStep, outcome: ActionOutcome, text: str, took_ns: int = 0) -> Done:
        if not self._is_reported(step.decision_id, outcome):
            how = self._effector.how if outcome is ActionOutcome.APPLIED else ""
            version = self._limits_of(step.host).version
            self._publish(node_report(step, outcome, text, how, self._now_ns(), took_ns, version))
        return Done(step, outcome, text)


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
        "detail": f"node {step.node}: {text}"[:MAX_DETAIL],
    }


def _step(state: Mapping[str, Any]) -> NodeStep | None:
    """Return the step of a journal entry; None for an entry of another format."""
    try:
        return NodeStep(**{**state, "action": FlowAction(state["action"])})
    except (TypeError, KeyError, ValueError):
        return None


def _is_done(step: NodeStep, node: NodeState) -> bool:
    """Return True if the node's state in the scheduler shows the result of the step."""
    if step.action is FlowAction.DRAIN:
        return node.is_out and is_same_drain(node.reason, step.text)
    return not (node.is_out and is_ours(node.reason))
