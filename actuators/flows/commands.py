"""Carries out commands on flows: moves, leases and reverts. Each is saved before it is sent, then reported.

A command goes to the effector, and the effector's answer selects one of two continuations. The applier
decides beforehand whether a command is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from actuators.effectors.base import Answer, Effector
from actuators.effectors.endpoint_protocol import RATE_MAX_BPS
from actuators.flows.action_limits import ActionLimits
from actuators.flows.lease_table import LeaseTable
from actuators.flows.reporter import Attempt, Reporter
from actuators.flows.state import MAX_LEASE_NS, FlowState, Lease, ReportedFields, fence_of
from actuators.journal import StateStore
from schemas.records import ActionOutcome, Decision, FlowAction

RATES: Final = frozenset({FlowAction.PACE, FlowAction.SLICE})
"""Actions that are leases. A flow may hold one of each; the lower rate applies."""
REVERT: Final = (None, None)
"""Queue entry that stands for an order to revert."""
SECOND_NS: Final = 1_000_000_000
_NOT_SAVED: Final = "the journal cannot be written, and a rate would outlive a crash"


@dataclass(frozen=True, slots=True)
class Command:
    """A command for a flow's endpoint, with one continuation for success and one for failure."""

    verb: str
    value: int
    on_success: Callable[[Answer], None]
    on_failure: Callable[[Answer], None]


class FlowCommands:
    """Carries out moves, rate limits and reverts on the flows of one host."""

    def __init__(
        self,
        effector: Effector,
        store: StateStore,
        reporter: Reporter,
        now_ns: Callable[[], int],
        clock_ns: Callable[[], int],
        resume: Callable[[str, FlowState], None],
    ) -> None:
        """Begin without flows. `now_ns`: returns fabric time; `clock_ns`: returns a clock that never steps.

        `resume`: continues with a flow whose command has been answered.
        """
        self._effector, self._store, self._reporter, self._resume = effector, store, reporter, resume
        self._now_ns, self._clock_ns = now_ns, clock_ns
        self.flows: dict[str, FlowState] = {}
        self.leases = LeaseTable()
        self.action_limits = ActionLimits(clock_ns)

    def is_open(self, key: str) -> bool:
        """Return True if an endpoint or the kernel knows the flow."""
        return self._effector.path_of(key) is not None

    def move(self, key: str, flow: FlowState, decision: Decision, attempt: Attempt) -> None:
        """Send a MOVE to the path that the decision names."""
        to_path = decision["to_path"]
        error = path_error(to_path)
        if not error and "MOVE" not in self._effector.can(key):
            error = "its endpoint cannot move it"
        if error or to_path is None:
            self.conclude(key, flow, attempt, ActionOutcome.FAILED, error)
            return
        if attempt.from_path == to_path:
            self.conclude(key, flow, attempt, ActionOutcome.APPLIED, "it has that path")
            return
        self._save_intent(flow, attempt)
        attempt = replace(attempt, began_ns=self._clock_ns())

        def succeed(answer: Answer) -> None:
            self.set_moved(key, flow, attempt.from_path, answer.value, attempt.decision)
            self.conclude(key, flow, attempt, ActionOutcome.APPLIED, "", answer.how)

        def fail(answer: Answer) -> None:
            self.conclude(key, flow, attempt, ActionOutcome.FAILED, answer.error, answer.how)

        self._execute(key, flow, Command("MOVE", to_path, succeed, fail))

    def rate(self, key: str, flow: FlowState, decision: Decision, attempt: Attempt) -> None:
        """Begin or renew a lease (PACE, SLICE), or end a lease before its expiry (UNPACE)."""
        ends = decision["action"] == FlowAction.UNPACE
        kind = FlowAction.PACE if ends else decision["action"]
        error = self._rate_error(key, decision)
        if error:
            self.conclude(key, flow, attempt, ActionOutcome.FAILED, error)
            return
        old = flow.leases.get(kind)
        if ends and old is None:
            self.conclude(key, flow, attempt, ActionOutcome.APPLIED, "it had no lease")
            return
        lease = None
        if not ends:
            rate_bps, expires_at_ns = decision["rate_bps"] or 0, decision["expires_at_ns"]
            lease = Lease(rate_bps, expires_at_ns, self._now_ns(), attempt.decision)
        flow.set_lease(kind, lease)
        if lease is not None:
            self.leases.update(key, flow)
        if not self._save_intent(flow, attempt) and not ends:
            self._set_lease(key, flow, kind, old)
            self.conclude(key, flow, attempt, ActionOutcome.FAILED, _NOT_SAVED)
            return
        attempt = replace(attempt, began_ns=self._clock_ns())

        def succeed(answer: Answer) -> None:
            self.leases.update(key, flow)
            self.conclude(key, flow, attempt, ActionOutcome.APPLIED, "", answer.how)

        def fail(answer: Answer) -> None:
            # A rate that may be in force keeps its new lease, which removes it in time.
            if old is not None or not answer.maybe_done:
                flow.set_lease(kind, old)
            self.leases.update(key, flow)
            self.conclude(key, flow, attempt, ActionOutcome.FAILED, answer.error, answer.how)

        self._execute(key, flow, Command("PACE", flow.rate_bps or 0, succeed, fail))

    def _rate_error(self, key: str, decision: Decision) -> str:
        """Return the reason why a rate cannot be set; empty if it can be set."""
        action, rate_bps, expires_at_ns = decision["action"], decision["rate_bps"], decision["expires_at_ns"]
        if action in RATES:
            if not (rate_bps and rate_bps <= RATE_MAX_BPS):
                return f"rate_bps {rate_bps}: expected 1 to {RATE_MAX_BPS}"
            if expires_at_ns > self._now_ns() + MAX_LEASE_NS:
                return f"expires_at_ns {expires_at_ns}: above {MAX_LEASE_NS // SECOND_NS} s from now"
        elif action != FlowAction.UNPACE:
            return f"{action}: no effector supports it"
        return "" if "PACE" in self._effector.can(key) else "its endpoint cannot pace it"

    def end_lease(
        self, key: str, flow: FlowState, kind: FlowAction, outcome: ActionOutcome, detail: str
    ) -> None:
        """End a lease without a new decision, and report the end under the decision that began the lease."""
        path, began_ns = self._effector.path_of(key), self._clock_ns()
        if path is None:
            return
        lease = flow.leases[kind]
        self._set_lease(key, flow, kind, None)
        attempt = Attempt(lease.decision, path, None, began_ns)

        def succeed(answer: Answer) -> None:
            self.save(flow)
            self._reporter.report(attempt, outcome, detail, flow, answer.how)

        def fail(answer: Answer) -> None:
            if kind not in flow.leases and self.is_open(key):  # the rate may still be in force: try again
                now_ns = self._now_ns()
                retry = replace(lease, expires_at_ns=now_ns + SECOND_NS, at_ns=now_ns)
                self._set_lease(key, flow, kind, retry)
            self.save(flow)
            self._reporter.report(attempt, ActionOutcome.FAILED, answer.error, flow, answer.how)

        self._execute(key, flow, Command("PACE", flow.rate_bps or 0, succeed, fail))

    def revert(self, key: str, flow: FlowState, reverted_ns: int) -> None:
        """Undo one action older than `reverted_ns`; the order to revert stays queued for other actions."""
        path, to_path, decision = self._effector.path_of(key), flow.first_path, flow.moved_by
        if path is None:
            return  # continued once its endpoint announces the flow
        for kind, lease in flow.leases.items():
            if lease.at_ns < reverted_ns:
                flow.waiting.appendleft(REVERT)
                self.end_lease(key, flow, kind, ActionOutcome.REVERTED, "reverted by order")
                return
        if decision is None or flow.moved_ns >= reverted_ns or to_path is None:
            return
        if path != flow.set_path:  # its endpoint has moved it since, so our move is not in force
            flow.clear_move()
            self.save(flow)
            return
        attempt = Attempt(decision, path, None, self._clock_ns())

        def succeed(answer: Answer) -> None:
            flow.clear_move()
            self.save(flow)
            self._reporter.report(attempt, ActionOutcome.REVERTED, "reverted by order", flow, answer.how)

        def fail(answer: Answer) -> None:
            self.save(flow)
            self._reporter.report(attempt, ActionOutcome.FAILED, answer.error, flow, answer.how)

        self._execute(key, flow, Command("MOVE", to_path, succeed, fail))

    def _execute(self, key: str, flow: FlowState, command: Command) -> None:
        """Send a command, and continue with the flow once the command is answered."""

        def answered(answer: Answer) -> None:
            flow.busy, flow.intent = False, None
            (command.on_failure if answer.error else command.on_success)(answer)
            self._resume(key, flow)

        flow.busy = True
        self._effector.execute(key, command.verb, command.value, answered)

    def conclude(
        self,
        key: str,
        flow: FlowState,
        attempt: Attempt,
        outcome: ActionOutcome,
        detail: str = "",
        how: str = "",
    ) -> None:
        """Save the outcome of a decision, then report it."""
        flow.fence, flow.outcome, flow.intent = fence_of(attempt.decision), outcome, None
        record = self._reporter.record(attempt, outcome, detail, flow, how)
        if outcome == ActionOutcome.NO_FLOW and not flow.in_force and not flow.waiting:
            self.flows.pop(key, None)
            self._store.save(journal_name(flow), None)
        else:
            flow.unpublished, flow.report_restored = record, False
            self.save(flow)
        self._reporter.publish(record, attempt.token)

    def set_moved(
        self, key: str, flow: FlowState, from_path: int | None, to_path: int, decision: ReportedFields
    ) -> None:
        """Record a move in the flow's state, and count it against the limits."""
        flow.set_moved(from_path, to_path, decision, self._now_ns())
        self.action_limits.add_move(key)

    def _set_lease(self, key: str, flow: FlowState, kind: FlowAction, lease: Lease | None) -> None:
        flow.set_lease(kind, lease)
        self.leases.update(key, flow)

    def repair(self, key: str, flow: FlowState, attempt: Attempt, to_path: int, detail: str) -> None:
        """Send the MOVE of a local repair. Beforehand, save the repair's report as an intent."""
        intended = self._reporter.record(replace(attempt, began_ns=None), ActionOutcome.UNKNOWN, detail, flow)
        flow.repair_report, flow.repair_restored = {**intended, "to_path": to_path}, False
        self.save(flow)

        def conclude(outcome: ActionOutcome, text: str, how: str) -> None:
            flow.repair_report = self._reporter.record(attempt, outcome, text, flow, how)
            self.save(flow)
            self._reporter.publish(flow.repair_report)

        def succeed(answer: Answer) -> None:
            self.set_moved(key, flow, attempt.from_path, answer.value, attempt.decision)
            conclude(ActionOutcome.LOCAL_REPAIR, detail, answer.how)

        def fail(answer: Answer) -> None:
            conclude(ActionOutcome.FAILED, answer.error, answer.how)

        self._execute(key, flow, Command("MOVE", to_path, succeed, fail))

    def _save_intent(self, flow: FlowState, attempt: Attempt) -> bool:
        """Save the command that is about to be sent. Return False if the journal failed to store it."""
        flow.intent = {"decision_id": attempt.decision["decision_id"], "from_path": attempt.from_path}
        return self.save(flow)

    def save(self, flow: FlowState) -> bool:
        """Save a flow's state in the journal. Return True if the journal stored it."""
        return self._store.save(journal_name(flow), flow.to_json())


def journal_name(flow: FlowState) -> str:
    """Return the name under which the journal stores a flow's state."""
    return f"flow {flow.flow_id}"


def path_error(path: int | None) -> str:
    """Return the reason why a path cannot be used; empty if it can be used."""
    if path is None:
        return "to_path is missing"
    return "" if 0 < path < 65_536 else f"to_path {path}: expected 1 to 65535"
