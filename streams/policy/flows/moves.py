"""Follows each move from the decision to its confirmation, and restores the moves of earlier owners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.records import ActionOutcome, ActionReport, Decision, FlowAction, ReasonKind
from streams.policy.flows.flow import NO_ROUTE, Flow, History, Move
from streams.policy.state import PolicyState
from streams.runtime.units import NS_PER_MS, NS_PER_S

EPOCH_SLACK_NS: Final = 5 * NS_PER_S
"""Local repairs up to this long before the epoch began still count as part of it."""
MAX_EARLY_REPAIRS: Final = 100_000
"""Most local repairs kept for flows that have not been reported yet; the oldest are dropped."""
AVOID_NS: Final = 60 * NS_PER_S
"""Time for which a path is not retried for a flow after an actuator could not apply it."""
QUICK_TRIES: Final = 3
"""Number of paths tried without a pause while an actuator fails to apply them."""
NOT_FAILED: Final = frozenset({ActionOutcome.APPLIED, ActionOutcome.DUPLICATE, ActionOutcome.OBSERVED})


class MoveTracker:
    """The pending and restored moves of one shard's flows."""

    def __init__(self, state: PolicyState) -> None:
        self._state = state
        self._history: dict[str, History] = {}
        self._early_repairs: dict[str, tuple[int, int, int]] = {}
        """Local repair of each flow that has not been reported yet: path left, path taken, and time, ns."""

    def recover(self, decisions: Iterable[Decision]) -> None:
        """Restore state from the `Decision`s of earlier epochs, in the order of the decisions.

        Flows that failover moved keep their home path, and steered flows their cooldown. All moves count
        against the limits.
        """
        state = self._state
        for decision in decisions:
            flow_id, at_ns, path = decision["flow_id"], decision["at_ns"], decision["from_path"]
            if decision["shard"] != state.shard or decision["epoch"] >= state.epoch or path is None:
                continue
            home, subject, steered = self._history.get(flow_id, History(None, "", ()))
            kind, reason_subject = decision["reason"]["kind"], decision["reason"]["subject"]
            if kind in (ReasonKind.DOWN, ReasonKind.GREY):
                home, subject = path if home is None else home, reason_subject
            elif kind in (ReasonKind.COLLISION, ReasonKind.DELAY):
                home, steered = None, (*steered, (at_ns, path))
            elif decision["action"] == FlowAction.RESTORE:
                home = None
            self._history[flow_id] = History(home, subject, steered)
            is_urgent = kind in (ReasonKind.DOWN, ReasonKind.GREY)
            state.budget.count_move(flow_id, decision["host"], at_ns, urgent=is_urgent)

    def restore(self, flow: Flow) -> None:
        """Apply a flow's restored moves and early local repair when its first report arrives."""
        history = self._history.pop(flow.live.flow_id, None)
        if history is not None:
            flow.home, flow.home_subject = history.home, history.subject
            flow.steered.extend(
                (at_ns, flow.routes.get(path, NO_ROUTE).links) for at_ns, path in history.steered
            )
        repair = self._early_repairs.pop(flow.live.flow_id, None)
        if repair is not None and repair[1] == flow.live.path:
            self._apply_repair(flow, *repair)

    def confirm(self, flow: Flow) -> None:
        """End a flow's move if the newest report confirms it, or if the time to confirm it is over."""
        state, move = self._state, flow.move
        if move is not None:
            if flow.live.path not in move.via:
                flow.move, flow.tries, flow.wait_ns, flow.unconfirmed = None, 0, 0, 0
            elif state.now_ns >= move.until_ns:
                flow.move = None
                flow.tries += 1
                state.postpone(flow, state.now_ns)
        if flow.move is None and flow.home == flow.live.path:
            flow.home = None

    def take_action(self, record: ActionReport) -> None:
        """Apply an `ActionReport`: a failure ends the decided move, a local repair counts as a move."""
        from_path, to_path = record["from_path"], record["to_path"]
        is_repair = record["outcome"] == ActionOutcome.LOCAL_REPAIR
        flow = self._state.flows.get(record["flow_id"])
        if is_repair and from_path is not None and to_path is not None:
            self._take_repair(flow, record["flow_id"], from_path, to_path, record["at_ns"])
        elif flow is not None:
            self._take_result(flow, record)

    def _take_repair(self, flow: Flow | None, flow_id: str, from_path: int, to_path: int, at_ns: int) -> None:
        if flow is None:
            self._keep_early_repair(flow_id, from_path, to_path, at_ns)
            return
        # A repair from long before this epoch shows where the flow was; it may have moved since.
        epoch_ns = self._state.epoch * NS_PER_MS - EPOCH_SLACK_NS
        if at_ns > epoch_ns or flow.live.path == to_path:
            self._apply_repair(flow, from_path, to_path, at_ns)

    def _take_result(self, flow: Flow, record: ActionReport) -> None:
        move = flow.move
        if move is None or (record["epoch"], record["seq"]) != (self._state.epoch, move.seq):
            return
        if record["outcome"] in NOT_FAILED:
            return
        flow.move, flow.tries = None, flow.tries + 1
        failed = record["outcome"] == ActionOutcome.FAILED
        if failed:
            flow.avoid[move.to_path] = record["at_ns"] + AVOID_NS
        if not failed or flow.tries >= QUICK_TRIES:
            self._state.postpone(flow, record["at_ns"])

    def _keep_early_repair(self, flow_id: str, from_path: int, to_path: int, at_ns: int) -> None:
        """Keep a local repair of a flow until the first report of the flow arrives."""
        earlier = self._early_repairs.pop(flow_id, None)
        if earlier is not None and earlier[1] == from_path:
            from_path = earlier[0]
        self._early_repairs[flow_id] = (from_path, to_path, at_ns)
        if len(self._early_repairs) > MAX_EARLY_REPAIRS:
            del self._early_repairs[next(iter(self._early_repairs))]

    def _apply_repair(self, flow: Flow, from_path: int, to_path: int, at_ns: int) -> None:
        """Treat a local repair by an actuator as a move that policy had decided."""
        state, rules = self._state, self._state.rules
        if flow.home is None:
            flow.home, flow.home_subject = from_path, state.health_of(flow).reason.subject
        flow.home_from_ns = at_ns + rules.hold_down_ns
        state.budget.count_move(flow.live.flow_id, flow.host, at_ns, urgent=True)
        until_ns = at_ns + rules.expires_ns + rules.confirm_ns
        flow.move = Move(to_path, frozenset({from_path, flow.live.path} - {to_path}), until_ns, -1)
        flow.path, flow.route = to_path, flow.routes.get(to_path, NO_ROUTE)
