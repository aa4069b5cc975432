"""Admission: applies limits and cooldowns to proposals, and turns admitted proposals into decisions."""

from __future__ import annotations

from typing import Final

from schemas.limits import Limits
from schemas.reasons import Reason
from schemas.records import Decision, FlowAction, ReasonKind
from schemas.topics import DECISIONS
from streams.policy.cycle import CycleResult, Outgoing, SuppressedAction
from streams.policy.flows.flow import NO_ROUTE, Flow, Move
from streams.policy.objectives.base import MoveProposal, Proposal, Proposals, RateProposal
from streams.policy.state import PolicyState

MAX_TEXT: Final = 500
"""Longest text of a decision, characters."""


class Admission:
    """Decides on all proposals for a shard. An admitted move changes the shard's state at once."""

    def __init__(self, state: PolicyState) -> None:
        self._state = state
        self._cycle = CycleResult()

    def begin(self) -> CycleResult:
        """Begin a cycle; return its result, which is empty until `run` adds decisions."""
        self._cycle = CycleResult()
        return self._cycle

    def run(self, proposals: Proposals) -> None:
        """Admit or suppress each proposal of an objective, in order."""
        proposal = next(proposals, None)
        while proposal is not None:
            admitted = self.admit(proposal)
            try:
                proposal = proposals.send(admitted)
            except StopIteration:
                return

    def admit(self, proposal: Proposal) -> bool:
        """Decide on one proposal; return True if it was admitted."""
        if isinstance(proposal, RateProposal):
            return self._admit_rate(proposal)
        cause = self._blocked_by(proposal)
        if cause is not None or proposal.path is None:
            self._suppress(proposal, cause or "NO_BETTER_PATH")
            return False
        self._move(proposal, proposal.path)
        return True

    def _blocked_by(self, proposal: MoveProposal) -> str | None:
        """Return the name of the limit or cooldown that forbids a move now, or None."""
        state, flow = self._state, proposal.flow
        if proposal.blocked_by is not None:
            return proposal.blocked_by
        rules, limits = state.rules, state.limits_of(flow.host)
        if proposal.steering:
            cooldown_end_ns = flow.cooldown_end_ns(rules.cool_down_ns, rules.max_cool_down_ns)
            if state.now_ns < max(cooldown_end_ns, flow.wait_ns):
                return "COOL_DOWN"
        if flow.live.job in limits.protected_jobs:
            return "PROTECTED"
        if "MOVE" not in flow.live.can:
            return "NOT_MOVABLE"
        if proposal.action not in limits.allowed:
            return "NOT_ALLOWED"
        flow_id, count = flow.live.flow_id, len(state.flows)
        return state.budget.check_move(
            flow_id, flow.host, limits, count, state.now_ns, urgent=proposal.urgent
        )

    def _move(self, proposal: MoveProposal, path: int) -> None:
        """Publish the decision for a move, and treat the flow as already on the new path."""
        state, flow = self._state, proposal.flow
        limits, kind, reason = state.limits_of(flow.host), proposal.kind, proposal.reason
        state.budget.count_move(flow.live.flow_id, flow.host, state.now_ns, urgent=proposal.urgent)
        expires_ns = state.now_ns + state.rules.expires_ns
        text = f"{flow.live.nic} to {flow.live.peer}: from path {flow.path} to {path}, {kind} {reason}"
        links_before = flow.links
        confirm_until_ns = expires_ns + state.rules.confirm_ns
        via = {flow.path, flow.live.path} | (flow.move.via if flow.move is not None else set())
        flow.move = Move(path, frozenset(via - {path}), confirm_until_ns, state.seq)
        decision = self._decision(flow, proposal.action, limits, kind, reason, expires_ns, text)
        decision["from_path"], decision["to_path"] = flow.path, path
        self._publish(decision)
        flow.cause = reason
        state.loads.add(flow.links, flow.weight, -1)
        flow.path, flow.route = path, flow.routes.get(path, NO_ROUTE)
        if flow.exclusive:
            state.options.used_ports.add((flow.ends, path))
        state.loads.add(flow.links, flow.weight)
        if proposal.steering:
            flow.home = None
            flow.steered.append((state.now_ns, links_before))
            flow.unconfirmed += 1

    def _admit_rate(self, proposal: RateProposal) -> bool:
        state, flow, rate = self._state, proposal.flow, proposal.rate
        limits, releases = state.limits_of(flow.host), rate.action == FlowAction.UNPACE
        cause = state.budget.check_rate(flow.live.flow_id, flow.host, limits, state.now_ns)
        if cause is not None and not releases:
            self._suppress(proposal, cause)
            return False
        state.budget.count_rate(flow.live.flow_id, flow.host, state.now_ns)
        effect = "let go" if releases else f"held to {rate.rate_bps / 1e6:.1f} Mbit/s"
        text = f"{flow.live.nic} to {flow.live.peer}: {effect}, {rate.kind} {rate.reason}"
        decision = self._decision(flow, rate.action, limits, rate.kind, rate.reason, rate.expires_at_ns, text)
        decision["rate_bps"] = None if releases else rate.rate_bps
        self._publish(decision)
        return True

    def _decision(
        self,
        flow: Flow,
        action: FlowAction,
        limits: Limits,
        kind: ReasonKind,
        reason: Reason,
        expires_ns: int,
        text: str,
    ) -> Decision:
        """Return a decision with the next sequence number; the caller adds its paths or rate."""
        state = self._state
        return {
            "decision_id": f"{state.shard}/{state.epoch}/{state.seq}",
            "shard": state.shard,
            "epoch": state.epoch,
            "seq": state.seq,
            "at_ns": state.now_ns,
            "host": flow.host,
            "action": action,
            "flow_id": flow.live.flow_id,
            "from_path": None,
            "to_path": None,
            "rate_bps": None,
            "expires_at_ns": expires_ns,
            "reason": reason.record(kind),
            "config_version": limits.version,
            "signature": b"",
            "text": text[:MAX_TEXT],
        }

    def _publish(self, decision: Decision) -> None:
        """Add a decision to the outputs of the cycle."""
        self._cycle.decisions.append(Outgoing(DECISIONS, decision["host"], decision))
        self._state.seq += 1

    def _suppress(self, proposal: Proposal, cause: str) -> None:
        request = proposal.rate if isinstance(proposal, RateProposal) else proposal
        flow_id = proposal.flow.live.flow_id
        self._cycle.suppressed.append(
            SuppressedAction(flow_id, request.action, cause, request.kind, request.reason)
        )
