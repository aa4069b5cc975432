"""Applies the decisions of one host exactly once, and reports each of them.

The applier also acts without a decision: it ends leases, obeys an order to revert, and makes local repairs.
The newest (epoch, seq) of a flow excludes older decisions, and so does the newest epoch of a shard. Each flow
has at most one pending command. No call blocks, and no call uses Kafka or a socket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from actuators.effectors.base import Effector
from actuators.flows.commands import RATES, REVERT, FlowCommands, journal_name, path_error
from actuators.flows.host_state import HostState
from actuators.flows.reporter import Attempt, Reporter
from actuators.flows.state import MOVES, FlowFence, FlowState, Token, key_of, reported_fields
from actuators.journal import NoJournal, StateStore
from schemas import records
from schemas.limits import Limits
from schemas.records import ActionOutcome, ActionReport, ActMode, ActuatorConfig, Decision, FlowAction

_log = logging.getLogger(__name__)

SECOND_NS: Final = 1_000_000_000
MAX_FLOWS: Final = 20_000
"""Number of flows that are kept. Beyond it the oldest flows without an endpoint are dropped."""
MAX_WAITING: Final = 64
"""Decisions that may wait for one flow."""
SUPPRESSED_REPORT_NS: Final = 10 * SECOND_NS
"""Minimum time between two reports that a flow's local repair is suppressed."""
_DONE_BEFORE: Final = "done before the actuator ended, reported after its restart"


class Applier:
    """Applies and reports the decisions of one host."""

    def __init__(
        self,
        host: str,
        effector: Effector,
        report: Callable[[ActionReport, Token], None],
        now_ns: Callable[[], int],
        clock_ns: Callable[[], int],
        *,
        store: StateStore | None = None,
        states: Mapping[str, Mapping[str, Any]] | None = None,
        boot: str | None = None,
    ) -> None:
        """Restore the host's state. `report` takes each `ActionReport` with its decision's token, or None.

        `now_ns`: returns fabric time; `clock_ns`: returns a clock that never steps. `states`: the journal of
        a former process, by name. `boot`: flows of other boots are not local; None accepts any.
        """
        self.host = host
        self.limits = Limits()
        self.settled = True
        """False while endpoints may still return: decisions for their flows wait."""
        self._effector, self._now_ns, self._clock_ns = effector, now_ns, clock_ns
        self._store: StateStore = store or NoJournal()
        self._host_state = HostState(host, boot, self._store)
        self._reporter = Reporter(host, report, self._local_path, now_ns, clock_ns)
        self._commands = FlowCommands(
            effector, self._store, self._reporter, now_ns, clock_ns, resume=self._pump
        )
        self._drop_from = MAX_FLOWS
        self._restore(states or {})

    # --- inputs ---

    def take_config(self, records: Mapping[str, ActuatorConfig]) -> None:
        """Set the `ActuatorConfig` records in force, given by record key."""
        before, self.limits = self.limits, Limits.of(records, self.host)
        self._reporter.config_version = self.limits.version
        if self.limits.revert_before_ns == before.revert_before_ns:
            return
        # An order with a future time must not undo actions that are still to come.
        order_ns = min(self.limits.revert_before_ns, self._now_ns() + SECOND_NS)
        if self._host_state.order_revert(order_ns):
            for key, flow in list(self._commands.flows.items()):
                if flow.in_force or flow.busy or flow.waiting:
                    flow.waiting.append(REVERT)
                    self._pump(key, flow)

    def take(self, decision: Decision, token: Token = None) -> None:
        """Accept one decision for a flow of this host. `token` is passed back with the report."""
        key = key_of(decision["flow_id"])
        self.see_epoch(decision["shard"], decision["epoch"])
        if not self._host_state.is_local(decision["flow_id"]):  # a local flow may have the same key
            outcome = self._host_state.fence.refusal(FlowState(""), decision) or ActionOutcome.NO_FLOW
            self._reporter.report(Attempt(reported_fields(decision), None, token), outcome)
            return
        flow = self._commands.flows.get(key)
        if flow is None:
            self._drop_flows()
            flow = self._commands.flows[key] = FlowState(decision["flow_id"])
        if len(flow.waiting) >= MAX_WAITING:
            self._skip_oldest(key, flow)
        flow.waiting.append((decision, token))
        self._pump(key, flow)

    def see_epoch(self, shard: str, epoch: int) -> None:
        """Note the epoch of a shard's policy owner; decisions of older epochs are stale from then on."""
        self._host_state.see_epoch(shard, epoch)

    def published(self, report: ActionReport) -> None:
        """Note that the log has stored a report, so that the journal need not keep it."""
        flow = self._commands.flows.get(key_of(report["flow_id"]))
        if flow is not None and flow.drop_published(report):
            self._commands.save(flow)

    def seen(self, key: str) -> None:
        """Resume the actions on a flow that an endpoint has announced."""
        flow = self._commands.flows.get(key)
        if flow is None:
            return
        self._report_restored_repair(key, flow)
        if (
            any(at_ns < self._host_state.reverted_ns for at_ns in flow.action_times())
            and REVERT not in flow.waiting
        ):
            flow.waiting.append(REVERT)
        self._pump(key, flow)

    def gone(self, key: str) -> None:
        """Note that a flow has ended, so that none of its actions is in force any more."""
        flow = self._commands.flows.get(key)
        if flow is None:
            return
        flow.end()
        self._commands.leases.remove(key)
        self._commands.save(flow)
        self._pump(key, flow)

    def settle(self) -> None:
        """Stop waiting for endpoints to return after a restart."""
        self.settled = True
        for key, flow in list(self._commands.flows.items()):
            self._report_restored_repair(key, flow)
            self._pump(key, flow)

    def tick(self) -> None:
        """End the leases that have expired."""
        for key, flow, kind in self._commands.leases.overdue(self._now_ns(), self._commands.is_open):
            self._commands.end_lease(key, flow, kind, ActionOutcome.ENDED, "its lease was over")

    def release(self, detail: str) -> None:
        """End all leases, because the actuator stops permanently. Moves stay in force."""
        for key, flow in self._commands.leases.flows():
            for kind in list(flow.leases):
                self._commands.end_lease(key, flow, kind, ActionOutcome.REVERTED, detail)

    def repair(self, flow_id: str, to_path: int, detail: str, job: str | None = None, flows: int = 1) -> bool:
        """Move a flow of `job` without a decision, within the limits. Return True if a command was sent.

        `flows`: number of this host's flows that could be repaired. At most the share `max_moved_share` of
        them may move within a minute.
        """
        key = key_of(flow_id)
        from_path = self._effector.path_of(key)
        if from_path is None or not self._may_repair(key, flow_id, from_path, to_path):
            return False
        flow = self._commands.flows.setdefault(key, FlowState(flow_id))
        if flow.busy or flow.waiting:
            return False
        began_ns = self._clock_ns()
        limit = self._repair_limit(key, job, flows)
        if limit and flow.suppressed_ns is not None and began_ns - flow.suppressed_ns < SUPPRESSED_REPORT_NS:
            return False
        action = self._host_state.next_repair(flow_id, self._now_ns())
        if limit:
            flow.suppressed_ns = began_ns
            self._reporter.report(
                Attempt(action, from_path), ActionOutcome.LIMITED, f"{limit}; {detail}", flow
            )
            return False
        self._commands.repair(key, flow, Attempt(action, from_path, None, began_ns), to_path, detail)
        return True

    # --- state ---

    def rates(self) -> dict[str, int]:
        """Return the rate limits in force, bit/s, by flow key."""
        return self._commands.leases.rates()

    def due_ns(self) -> int | None:
        """Return the fabric time at which the next lease ends, ns; None if there is no lease."""
        return self._commands.leases.due_ns(self._commands.is_open)

    def fence_of(self, flow_id: str) -> FlowFence:
        """Return (epoch, seq) of the newest decision for a flow."""
        flow = self._commands.flows.get(key_of(flow_id))
        return (-1, -1) if flow is None else flow.fence

    @property
    def in_force(self) -> int:
        """The number of actions in force: moves and leases."""
        return sum(flow.in_force for flow in self._commands.flows.values())

    @property
    def reverting(self) -> int:
        """Number of actions on open flows that the newest order to revert has yet to undo."""
        return sum(
            sum(at_ns < self._host_state.reverted_ns for at_ns in flow.action_times())
            for key, flow in self._commands.flows.items()
            if flow.in_force and self._commands.is_open(key)
        )

    @property
    def busy(self) -> bool:
        """True while a command is unanswered."""
        return any(flow.busy for flow in self._commands.flows.values())

    def state(self, flows: int) -> records.HostState:
        """Return the host's part of the actuator's state. `flows`: number of its open flows."""
        return {
            "host": self.host,
            "mode": ActMode.ACT if self.limits.act else ActMode.OBSERVE,
            "config_version": self.limits.version,
            "flows": flows,
            "in_force": self.in_force,
            "reverting": self.reverting,
        }

    # --- one flow ---

    def _pump(self, key: str, flow: FlowState) -> None:
        """Process the queued decisions of a flow until one of them sends a command."""
        while flow.waiting and not flow.busy:
            if not self.settled and not self._commands.is_open(key):
                return
            decision, token = flow.waiting.popleft()
            if decision is None:
                self._commands.revert(key, flow, self._host_state.reverted_ns)
            else:
                self._decide(key, flow, decision, token)

    def _skip_oldest(self, key: str, flow: FlowState) -> None:
        """Drop the oldest decision that waits for a flow, and report it as LIMITED."""
        for position, (decision, token) in enumerate(flow.waiting):
            if decision is not None:
                del flow.waiting[position]
                detail = f"{MAX_WAITING} newer decisions wait for this flow"
                attempt = Attempt(reported_fields(decision), self._effector.path_of(key), token)
                self._reporter.report(attempt, ActionOutcome.LIMITED, detail, flow)
                return

    def _decide(self, key: str, flow: FlowState, decision: Decision, token: Token) -> None:
        """Apply a decision, or report why it is not applied."""
        restored = flow.take_restored_report(decision)
        if restored is not None:
            self._reporter.republish(restored, token)
            return
        path = self._effector.path_of(key)
        attempt = Attempt(reported_fields(decision), path, token)
        if path is not None and flow.was_done(decision, path):
            former_path = None if flow.intent is None else flow.intent["from_path"]
            self._commands.set_moved(key, flow, former_path, path, attempt.decision)
            self._commands.conclude(
                key, flow, replace(attempt, from_path=former_path), ActionOutcome.APPLIED, _DONE_BEFORE
            )
            return
        outcome = self._refusal(flow, decision, path)
        if outcome in (ActionOutcome.STALE, ActionOutcome.DUPLICATE):
            self._reporter.report(attempt, outcome, "", flow)
        elif outcome:
            self._commands.conclude(key, flow, attempt, outcome)
        elif decision["action"] in MOVES:
            self._commands.move(key, flow, decision, attempt)
        else:
            self._commands.rate(key, flow, decision, attempt)

    def _refusal(self, flow: FlowState, decision: Decision, path: int | None) -> ActionOutcome | None:
        """Return the outcome of a decision that must not be applied; None if it may be applied."""
        refused = self._host_state.fence.refusal(flow, decision)
        if refused:
            return refused
        if path is None:
            return ActionOutcome.NO_FLOW
        if self._now_ns() >= decision["expires_at_ns"]:
            return ActionOutcome.EXPIRED
        if decision["config_version"] != self.limits.version:
            return ActionOutcome.OLD_CONFIG
        if decision["action"] not in self.limits.allowed:
            return ActionOutcome.NOT_ALLOWED
        if not self.limits.act:
            return ActionOutcome.OBSERVED
        return None if self._admit(flow, decision["action"]) else ActionOutcome.LIMITED

    def _admit(self, flow: FlowState, action: FlowAction) -> bool:
        """Return True if the action limit admits the action. A flow's rate changes in a second count once."""
        is_rate = action in RATES
        if is_rate and flow.rated_ns is not None and self._clock_ns() - flow.rated_ns < SECOND_NS:
            return True
        if not self._commands.action_limits.admit(self.limits.max_actions_per_s):
            return False
        if is_rate:
            flow.rated_ns = self._clock_ns()
        return True

    # --- local repair ---

    def _may_repair(self, key: str, flow_id: str, from_path: int, to_path: int) -> bool:
        if from_path == to_path or not self.limits.act or FlowAction.REROUTE not in self.limits.allowed:
            return False
        return (
            "MOVE" in self._effector.can(key)
            and self._host_state.is_local(flow_id)
            and not path_error(to_path)
        )

    def _repair_limit(self, key: str, job: str | None, flows: int) -> str:
        """Return the name of the limit that forbids a local repair now; empty if no limit does."""
        limits = self.limits
        if job in limits.protected_jobs:
            return f"job {job} is protected"
        max_moves = limits.max_moves(flows)
        if not self._commands.action_limits.may_move(key, max_moves):
            return f"max_moved_share: {max_moves} of {flows} flows may move within a minute"
        if not self._commands.action_limits.admit(limits.max_actions_per_s):
            return f"max_actions_per_s {limits.max_actions_per_s}"
        return ""

    def _report_restored_repair(self, key: str, flow: FlowState) -> None:
        """Report a local repair that a former process made, because no later decision triggers its report."""
        record = flow.repair_report
        if record is None or not flow.repair_restored:
            return
        path = self._effector.path_of(key)
        if path is None and not self.settled:
            return
        flow.repair_restored = False
        if record["outcome"] == ActionOutcome.UNKNOWN:
            done = path is not None and path == record["to_path"] != record["from_path"]
            if done and path is not None:
                self._commands.set_moved(key, flow, record["from_path"], path, reported_fields(record))
            outcome = ActionOutcome.LOCAL_REPAIR if done else ActionOutcome.FAILED
            detail = _DONE_BEFORE if done else "the actuator ended meanwhile"
            record = {**record, "outcome": outcome, "to_path": path, "detail": detail}
        flow.repair_report = {**record, "at_ns": self._now_ns()}
        self._commands.save(flow)
        self._reporter.publish(flow.repair_report)

    # --- journal ---

    def _restore(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        for name, state in states.items():
            try:
                if name == self._host_state.name:
                    self._host_state.restore(state)
                elif name.startswith(f"flow {self.host}/"):
                    self._restore_flow(name, state)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                _log.warning("%s: its saved state cannot be used: %r", name, error)

    def _restore_flow(self, name: str, state: Mapping[str, Any]) -> None:
        if not self._host_state.is_local(state["flow_id"]):
            self._store.save(name, None)  # of an earlier boot
            return
        flow = FlowState.from_json(state)
        key = key_of(flow.flow_id)
        self._commands.flows[key] = flow
        self._commands.leases.update(key, flow)

    def _drop_flows(self) -> None:
        """Drop the states of flows without an endpoint if there are too many."""
        if len(self._commands.flows) < self._drop_from:
            return
        for key, flow in list(self._commands.flows.items())[: len(self._commands.flows) // 2]:
            if not flow.busy and not flow.waiting and not self._commands.is_open(key):
                del self._commands.flows[key]
                self._commands.leases.remove(key)
                self._store.save(journal_name(flow), None)
        self._drop_from = max(MAX_FLOWS, 2 * len(self._commands.flows))

    def _local_path(self, flow_id: str) -> int | None:
        return self._effector.path_of(key_of(flow_id)) if self._host_state.is_local(flow_id) else None
