"""Texts and table rows for action entries and suppressed actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from fabrictime.state.action_entries import AUDIT, RANK, ActionEntry
from fabrictime.state.action_state import MOVES, ActionState, SuppressedAction
from fabrictime.state.labels import arrow
from schemas.reasons import Reason
from schemas.units import bps_text, delay_text, seconds_text

LINK_CAUSES: Final = frozenset({"DOWN", "GREY", "HEALED"})
"""Causes whose reason is a LinkHealth record."""
QUEUE_CAUSES: Final = frozenset({"COLLISION", "INCAST", "DRAINED"})
"""Causes whose reason is a contention window."""

OUTCOMES: Final = {
    "REVERTED": "reverted",
    "ENDED": "done, and its lease has ended",
    "APPLIED": "done",
    "LOCAL_REPAIR": "local repair: the path was dead and no decision had arrived",
    "OBSERVED": "not done: the mode is OBSERVE",
    "FAILED": "failed",
    "LIMITED": "not done: a limit prevents it",
    "NOT_ALLOWED": "not done: this host does not allow the action",
    "OLD_CONFIG": "not done: the decision used a config that is no longer in force",
    "NO_FLOW": "not done: the host has no such flow",
    "EXPIRED": "not done: the decision arrived after its expiry",
    "STALE": "not done: a newer decision exists",
    "DUPLICATE": "done before",
    "UNKNOWN": "unknown",
    "WAITING": "no answer yet",
    "UNANSWERED": "no actuator answered",
}

CAUSES: Final = {
    "DOWN": "is down",
    "GREY": "loses packets",
    "HEALED": "is healthy again",
    "COLLISION": "flows collide at",
    "DELAY": "high delay on a path without a known route",
    "INCAST": "incast at",
    "DRAINED": "the queue has drained at",
    "SLICE": "tenant shares",
    "AUDIT": "audit of",
    "UNKNOWN": "unknown cause",
}

LIMIT_TEXTS: Final = {
    "PROTECTED": "the job is protected (protected_jobs)",
    "NOT_ALLOWED": "this action is not allowed (allowed_actions)",
    "ACTIONS_PER_S": "action budget: the host's actions per second (max_actions_per_s)",
    "MOVED_SHARE": "action budget: the share of flows moved per minute (max_moved_share)",
    "NO_LIVING_PATH": "no other living path is known",
    "NO_BETTER_PATH": "no other path is better",
    "COOL_DOWN": "the flow moved recently (cool-down)",
    "WAITING": "an earlier decision is not yet carried out; the policy retries later",
    "NOT_MOVABLE": "the flow endpoint does not allow a move",
}
"""Text of the reason for which the policy suppressed an action, by limit."""

ACTIONS: Final = {
    "REROUTE": "move",
    "RESTORE": "move back",
    "PACE": "pace",
    "UNPACE": "end pacing",
    "SLICE": "limit to the tenant's share",
    "DRAIN": "drain the node",
    "RESUME": "resume the node",
    "UNKNOWN": "unknown",
}


def flow_text(flow_id: str) -> str:
    """Return a flow's host and endpoint from its id, without the boot id."""
    host, _, rest = flow_id.partition("/")
    return f"{host} {rest.partition('/')[2] or rest}"


def ends_text(entry: ActionEntry) -> str:
    """Return NIC and peer of a decision's flow; empty for an action without a decision."""
    return "" if entry.expires_at_ns is None else entry.text.partition(": ")[0]


def cause_text(kind: str, reason: Reason) -> str:
    """Return the cause of a decision as text."""
    cause = CAUSES.get(kind, kind)
    if kind in LINK_CAUSES:
        return f"{arrow(reason.subject)} {cause}" if reason.subject else f"its path {cause}"
    if kind in QUEUE_CAUSES:
        return f"{cause} {arrow(reason.subject)}" if reason.window_id else cause
    return f"{cause} {reason.subject}" if kind == AUDIT else cause


def action_text(entry: ActionEntry | SuppressedAction) -> str:
    """Return an action as text, with its paths or its rate."""
    action = ACTIONS.get(entry.action, entry.action)
    if isinstance(entry, SuppressedAction):
        return action
    if entry.action in MOVES:
        return f"{action}, port {_path_text(entry.from_path)} → {_path_text(entry.to_path)}"
    return action if entry.rate_bps is None else f"{action}, at most {bps_text(entry.rate_bps)}"


def _path_text(path: int | None) -> str:
    return "?" if path is None else str(path)


def _total_ns(entry: ActionEntry) -> int | None:
    """Return the ns from a decision to its execution, or only the effector's part if the clocks disagree."""
    if entry.done_ns is None or entry.done_ns < entry.at_ns:
        return entry.took_ns
    return entry.done_ns - entry.at_ns


def duration_text(entry: ActionEntry) -> str:
    """Return as text the time from a decision to its execution, and the effector's part of this time."""
    if entry.done_ns is None or (not entry.took_ns and not entry.done):
        return "—"
    if not entry.done or not entry.kind or entry.done_ns < entry.at_ns:
        return delay_text(entry.took_ns)
    total = delay_text(entry.done_ns - entry.at_ns)
    return f"{total}, {delay_text(entry.took_ns)} of it {entry.how or 'done'}" if entry.took_ns else total


def suppressed_text(action: SuppressedAction, now_ns: int) -> str:
    """Return as text the limit that suppresses an action, and for how long it has been suppressed."""
    age_s = (now_ns - action.since_ns) / 1e9
    return f"{LIMIT_TEXTS.get(action.cause, action.cause)}; for {seconds_text(age_s)}"


def suppressed_cause(action: SuppressedAction) -> str:
    """Return the reason for which the policy wanted a suppressed action, as text."""
    subject = arrow(action.reason.subject)
    if action.reason.window_id is not None:
        return f"a queue persists at {subject}"
    if action.kind == "DELAY":
        return CAUSES["DELAY"]
    return f"{subject} is not healthy" if action.action != "RESTORE" else f"{subject} has recovered"


def mode_text(state: ActionState) -> str:
    """Return as text the mode in force, its author and time, and the hosts with a different mode."""
    mode = state.mode()
    text = "ACT: decisions are carried out" if mode.act else "OBSERVE: decisions are only published"
    text += f"; set by {mode.by} at {time_text(mode.since_ns)}" if mode.by else "; the default"
    exceptions = state.exceptions()
    if exceptions:
        more = f" and {len(exceptions) - 6} more" if len(exceptions) > 6 else ""
        named = ", ".join(exceptions[:6]) + more
        text += f". Exceptions ({'OBSERVE' if mode.act else 'ACT'}): {named}"
    return text


def time_text(ns: int) -> str:
    """Return a time of day in UTC, with the date unless it is today."""
    at, now = datetime.fromtimestamp(ns / 1e9, UTC), datetime.now(UTC)
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def counts_text(count_by_outcome: Mapping[str, int], label: Callable[[str], str] = str) -> str:
    """Return as text the number of decisions by outcome, ordered by `RANK`. `label` formats an outcome."""
    order = sorted(count_by_outcome, key=lambda name: RANK.get(name, len(RANK)))
    return ", ".join(f"{count_by_outcome[name]:,} {label(name)}" for name in order)


def matches(text: str, flow_id: str) -> bool:
    """Return whether `text` is a flow's id or a part of it, such as `h3` or `sock:17`."""
    return text == flow_id or text in flow_id or text in flow_text(flow_id)


def only_match(text: str | None, flow_ids: Iterable[str]) -> str | None:
    """Return the one flow that `text` matches, or None if it matches none or several."""
    if text is None:
        return None
    matching_ids = {flow_id for flow_id in flow_ids if matches(text, flow_id)}
    return text if text in matching_ids else matching_ids.pop() if len(matching_ids) == 1 else None


def figures(entry: ActionEntry) -> list[tuple[str, str]]:
    """Return an action entry's fields as names and texts."""
    effect = entry.effect
    outcome = OUTCOMES.get(entry.outcome, entry.outcome)
    rows = [
        ("cause", cause_text(entry.kind, entry.reason)),
        ("action", action_text(entry)),
        ("outcome", outcome + (f": {entry.detail}" if entry.detail else "")),
        ("decided", f"{time_text(entry.at_ns)} UTC"),
        ("duration", duration_text(entry)),
        ("rate", before_after(effect.before_bps, effect.after_bps, bps_text)),
        ("round trip", before_after(effect.before_rtt_ns, effect.after_rtt_ns, delay_text)),
    ]
    if len(entry.outcomes) > 1:
        rows.append(("reports", ", ".join(entry.outcomes)))
    if effect.left or effect.taken:
        rows.append(("links left", ", ".join(map(arrow, effect.left)) or "—"))
        rows.append(("links taken", ", ".join(map(arrow, effect.taken)) or "—"))
    return [*rows, ("decision", entry.decision_id)]


def before_after(before: float | None, after: float | None, text: Callable[[float], str]) -> str:
    """Return as text the figures before and after an action, side by side. `text` formats a figure."""
    if before is None and after is None:
        return "—"
    return f"{'unknown' if before is None else text(before)} → {'unknown' if after is None else text(after)}"


def table_row(entry: ActionEntry) -> dict[str, Any]:
    """Return the table row of an action entry, as text by column."""
    effect = entry.effect
    duration = "—" if entry.done_ns is None or not entry.done else delay_text(_total_ns(entry))
    status = "done" if entry.done else "open" if entry.outcome in ("WAITING", "OBSERVED") else "not"
    return {
        "id": entry.decision_id,
        "at": time_text(entry.at_ns),
        "flow": flow_text(entry.flow_id),
        "ends": ends_text(entry),
        "flow_id": entry.flow_id,
        "cause": cause_text(entry.kind, entry.reason),
        "action": action_text(entry),
        "outcome": entry.outcome,
        "outcome_text": OUTCOMES.get(entry.outcome, entry.outcome),
        "took": duration,
        "rate": before_after(effect.before_bps, effect.after_bps, bps_text),
        "delay": before_after(effect.before_rtt_ns, effect.after_rtt_ns, delay_text),
        "status": status,
    }


def as_record(entry: ActionEntry) -> dict[str, Any]:
    """Return an action entry as plain values for JSON."""
    return {
        **asdict(entry),
        "reason": entry.reason._asdict(),
        "effect": entry.effect._asdict(),
        "outcome_text": OUTCOMES.get(entry.outcome, ""),
        "cause": cause_text(entry.kind, entry.reason),
        "took": duration_text(entry),
    }
