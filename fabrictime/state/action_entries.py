"""Action entries: each joins a decision, its reports, and the flow's figures before and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fabrictime.state.action_state import ActionState
from fabrictime.state.flow_history import FOREVER_NS, NO_EFFECT, SIDE_NS, Effect, effect
from schemas.reasons import NO_REASON, Reason
from schemas.records import ActionOutcome, ActionReport, Decision, FlowAction, ReasonKind

NS_PER_S: Final = 1_000_000_000
SETTLED_NS: Final = SIDE_NS + 3 * NS_PER_S
"""Age, ns, from which an action's effect is final: the compared interval, and the delay of late reports."""
ANSWER_NS: Final = NS_PER_S
"""How long after a decision's expiry a report may still answer it, ns."""

OUTCOMES: Final = (
    ActionOutcome.REVERTED,
    ActionOutcome.ENDED,
    ActionOutcome.APPLIED,
    ActionOutcome.LOCAL_REPAIR,
    ActionOutcome.OBSERVED,
    ActionOutcome.FAILED,
    ActionOutcome.LIMITED,
    ActionOutcome.NOT_ALLOWED,
    ActionOutcome.OLD_CONFIG,
    ActionOutcome.NO_FLOW,
    ActionOutcome.EXPIRED,
    ActionOutcome.STALE,
    ActionOutcome.DUPLICATE,
    ActionOutcome.UNKNOWN,
    "WAITING",
    "UNANSWERED",
)
"""Outcomes by precedence: of several outcomes of one decision, the first one counts."""
RANK: Final[dict[str, int]] = {name: number for number, name in enumerate(OUTCOMES)}
DONE: Final = frozenset(
    {
        ActionOutcome.REVERTED,
        ActionOutcome.ENDED,
        ActionOutcome.APPLIED,
        ActionOutcome.LOCAL_REPAIR,
        ActionOutcome.DUPLICATE,
    }
)
AUDIT: Final = "AUDIT"
"""Kind of the reason of node actions; it refers to the host."""
NODE_ACTIONS: Final = frozenset({FlowAction.DRAIN, FlowAction.RESUME})


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """One decision and its outcome, or one local repair."""

    decision_id: str
    at_ns: int
    host: str
    flow_id: str
    action: str
    from_path: int | None
    to_path: int | None
    rate_bps: int | None
    kind: str
    reason: Reason
    text: str
    outcome: str
    outcomes: tuple[str, ...]
    how: str
    took_ns: int | None
    done_ns: int | None
    """Time at which the actuator carried the decision out or refused it, in fabric time; None if not yet."""
    detail: str
    expires_at_ns: int | None
    effect: Effect = NO_EFFECT

    @property
    def done(self) -> bool:
        """Whether the flow was changed."""
        return self.outcome in DONE


def entries(state: ActionState, now_ns: int, flow_id: str | None = None) -> list[ActionEntry]:
    """Return the action entries of the flow `flow_id` (None: of all flows), the newest first."""
    action_entries = [
        _decided(decision, state.reports.get(name, {}), now_ns)
        for name, decision in state.decisions.items()
        if flow_id is None or decision["flow_id"] == flow_id
    ]
    for name, reports in state.reports.items():
        report = (
            None if name in state.decisions else reports.get(ActionOutcome.LOCAL_REPAIR) or _first(reports)
        )
        if report is not None and (flow_id is None or report["flow_id"] == flow_id):
            action_entries.append(_undecided(name, report, reports))
    action_entries.sort(key=lambda entry: (-entry.at_ns, entry.decision_id))
    return action_entries


def with_effects(
    action_entries: Iterable[ActionEntry], state: ActionState, now_ns: int, limit: int = 1 << 30
) -> list[ActionEntry]:
    """Return the first `limit` entries with their effects. An effect ends at the flow's next action."""
    listed = list(action_entries)
    done_times: dict[str, list[int]] = {}
    for entry in listed:
        if entry.done and entry.done_ns is not None:
            done_times.setdefault(entry.flow_id, []).append(entry.done_ns)
    return [_with_effect(entry, state, done_times.get(entry.flow_id, []), now_ns) for entry in listed[:limit]]


def _with_effect(
    entry: ActionEntry, state: ActionState, done_times: Sequence[int], now_ns: int
) -> ActionEntry:
    if not entry.done or entry.done_ns is None:
        return entry
    flow_effect = state.effects.get(entry.decision_id)
    if flow_effect is None:
        samples = state.flow_history.of(entry.flow_id)
        if not samples:
            return entry
        previous_ns = max(
            (done_time_ns for done_time_ns in done_times if done_time_ns < entry.done_ns), default=0
        )
        next_ns = min(
            (done_time_ns for done_time_ns in done_times if done_time_ns > entry.done_ns), default=FOREVER_NS
        )
        flow_effect = effect(samples, entry.at_ns, entry.done_ns, previous_ns, next_ns)
        if now_ns > entry.done_ns + SETTLED_NS:
            state.keep_effect(entry.decision_id, flow_effect)
    return replace(entry, effect=flow_effect)


def _first(reports: Mapping[ActionOutcome, ActionReport]) -> ActionReport | None:
    return min(reports.values(), key=lambda report: RANK.get(report["outcome"], len(RANK)), default=None)


def _ranked(reports: Mapping[ActionOutcome, ActionReport]) -> tuple[str, ...]:
    return tuple(sorted(reports, key=lambda name: RANK.get(name, len(RANK))))


def _decided(decision: Decision, reports: Mapping[ActionOutcome, ActionReport], now_ns: int) -> ActionEntry:
    report = _first(reports)
    if report is not None:
        outcome: str = report["outcome"]
    elif now_ns < decision["expires_at_ns"] + ANSWER_NS:
        outcome = "WAITING"
    else:
        outcome = "UNANSWERED"
    # An expired lease or a reverted action was applied first, and its APPLIED report has method and duration.
    applied = reports.get(ActionOutcome.APPLIED, report)
    return ActionEntry(
        decision["decision_id"],
        decision["at_ns"],
        decision["host"],
        decision["flow_id"],
        decision["action"],
        decision["from_path"],
        decision["to_path"],
        decision["rate_bps"],
        decision["reason"]["kind"],
        Reason.from_record(decision["reason"]),
        decision["text"],
        outcome,
        _ranked(reports),
        "" if applied is None else applied["how"],
        None if applied is None else applied["took_ns"],
        None if applied is None else applied["at_ns"],
        "" if report is None else report["detail"],
        decision["expires_at_ns"],
    )


def _undecided(name: str, report: ActionReport, reports: Mapping[ActionOutcome, ActionReport]) -> ActionEntry:
    """Return the entry of a report without a known decision: a node action, a local repair, or any other."""
    is_repair = report["outcome"] == ActionOutcome.LOCAL_REPAIR
    is_node = report["action"] in NODE_ACTIONS
    return ActionEntry(
        name,
        report["at_ns"] - report["took_ns"],
        report["host"],
        report["flow_id"],
        report["action"],
        report["from_path"],
        report["to_path"],
        report["rate_bps"],
        AUDIT if is_node else ReasonKind.DOWN if is_repair else ReasonKind.UNKNOWN,
        Reason(report["host"]) if is_node else NO_REASON,
        report["detail"],
        report["outcome"],
        _ranked(reports),
        report["how"],
        report["took_ns"],
        report["at_ns"],
        report["detail"],
        None,
    )


def counts(action_entries: Iterable[ActionEntry]) -> Counter[str]:
    """Return the number of action entries by outcome."""
    return Counter(entry.outcome for entry in action_entries)
