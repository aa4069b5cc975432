"""Action entries: each joins a decision with its reports and with the flow's figures before and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fabrictime.state.action_state import ActionState, Record
from fabrictime.state.flow_history import FOREVER_NS, NO_EFFECT, SIDE_NS, Effect, effect
from schemas.reasons import NO_REASON, Reason

S: Final = 1_000_000_000
SETTLED_NS: Final = SIDE_NS + 3 * S
"""Time after which the outcome of an action no longer changes."""
MINUTE_NS: Final = 60 * S
RESERVED: Final = 0.5
"""Share of a minute's moves that the policy reserves for flows whose paths fail."""
ANSWER_NS: Final = 1 * S
"""How long after its expiry a decision may still be answered."""

OUTCOMES: Final = {
    "REVERTED": "undone again",
    "ENDED": "done, its time is over",
    "APPLIED": "done",
    "LOCAL_REPAIR": "done by the host itself: its path was dead and no decision had come",
    "OBSERVED": "not done: the mode is OBSERVE",
    "FAILED": "failed",
    "LIMITED": "not done: its host had done as much as it may in a second",
    "NOT_ALLOWED": "not done: not allowed here",
    "OLD_CONFIG": "not done: decided under a config that is no longer in force",
    "NO_FLOW": "not done: its host has no such flow",
    "EXPIRED": "not done: it came too late",
    "STALE": "not done: there is a newer decision",
    "DUPLICATE": "done before",
    "UNKNOWN": "not known",
    "WAITING": "no answer yet",
    "UNANSWERED": "no actuator answered",
}
"""Outcomes in words. Of several of one decision the one that stands first counts."""
RANK: Final = {name: number for number, name in enumerate(OUTCOMES)}
DONE: Final = frozenset({"REVERTED", "ENDED", "APPLIED", "LOCAL_REPAIR", "DUPLICATE"})


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """One decision and its outcome, or a local repair."""

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
    """When the actuator carried the decision out or refused it, in fabric time."""
    detail: str
    expires_at_ns: int | None
    effect: Effect = NO_EFFECT

    @property
    def done(self) -> bool:
        """True if the flow was changed."""
        return self.outcome in DONE


def entries(state: ActionState, now_ns: int, flow_id: str | None = None) -> list[ActionEntry]:
    """Return the entries of all flows or of one flow, the newest first."""
    found = [
        _decided(decision, state.reports.get(name, {}), now_ns)
        for name, decision in state.decisions.items()
        if flow_id is None or decision["flow_id"] == flow_id
    ]
    for name, reports in state.reports.items():
        report = None if name in state.decisions else reports.get("LOCAL_REPAIR") or _first(reports)
        if report is not None and (flow_id is None or report["flow_id"] == flow_id):
            found.append(_undecided(name, report, reports))
    found.sort(key=lambda each: (-each.at_ns, each.decision_id))
    return found


def with_effects(
    found: Iterable[ActionEntry], state: ActionState, now_ns: int, limit: int = 1 << 30
) -> list[ActionEntry]:
    """Return the first `limit` entries with their effects, each up to the flow's next executed action."""
    listed = list(found)
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
    known = state.effects.get(entry.decision_id)
    if known is None:
        samples = state.flow_history.of(entry.flow_id)
        if not samples:
            return entry
        previous_ns = max((each for each in done_times if each < entry.done_ns), default=0)
        next_ns = min((each for each in done_times if each > entry.done_ns), default=FOREVER_NS)
        known = effect(samples, entry.at_ns, entry.done_ns, previous_ns, next_ns)
        if now_ns > entry.done_ns + SETTLED_NS:
            state.keep_effect(entry.decision_id, known)
    return replace(entry, effect=known)


def _first(reports: Mapping[str, Record]) -> Record | None:
    return min(reports.values(), key=lambda each: RANK.get(each["outcome"], len(RANK)), default=None)


def _ranked(reports: Mapping[str, Record]) -> tuple[str, ...]:
    return tuple(sorted(reports, key=lambda name: RANK.get(name, len(RANK))))


def _decided(decision: Record, reports: Mapping[str, Record], now_ns: int) -> ActionEntry:
    report = _first(reports)
    if report is not None:
        outcome = report["outcome"]
    elif now_ns < decision["expires_at_ns"] + ANSWER_NS:
        outcome = "WAITING"
    else:
        outcome = "UNANSWERED"
    # An expired lease or a reverted action was applied first. That report has the method and the duration.
    applied = reports.get("APPLIED", report)
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


def _undecided(name: str, report: Record, reports: Mapping[str, Record]) -> ActionEntry:
    """Return the entry of a local repair, or of a report whose decision is too old to be known."""
    return ActionEntry(
        name,
        report["at_ns"] - report["took_ns"],
        report["host"],
        report["flow_id"],
        report["action"],
        report["from_path"],
        report["to_path"],
        report["rate_bps"],
        "DOWN" if report["outcome"] == "LOCAL_REPAIR" else "UNKNOWN",
        NO_REASON,
        report["detail"],
        report["outcome"],
        _ranked(reports),
        report["how"],
        report["took_ns"],
        report["at_ns"],
        report["detail"],
        None,
    )


# --------------------------------------------------------------------------------------------------- words


def flow_text(flow_id: str) -> str:
    """Return a readable name of a flow: its host and its socket or queue pair, without the boot id."""
    host, _, rest = flow_id.partition("/")
    return f"{host} {rest.partition('/')[2] or rest}"


def cause_text(kind: str, reason: Reason) -> str:
    """Return the cause of a decision in words."""
    words = CAUSES.get(kind, kind)
    if kind in ("DOWN", "GREY", "HEALED"):
        return f"{arrow(reason.subject)} {words}" if reason.subject else f"its path {words}"
    if kind in ("COLLISION", "INCAST", "DRAINED"):
        return f"{words} {arrow(reason.subject)}" if reason.window_id else words
    return words


def what_text(deed: ActionEntry | SuppressedAction) -> str:
    """Return the action of a decision in words."""
    words = ACTIONS.get(deed.action, deed.action)
    if isinstance(deed, SuppressedAction):
        return words
    if deed.action in MOVES:
        ports = [_port(deed.from_path), _port(deed.to_path)]
        return f"{words}, port {ports[0]} → {ports[1]}"
    return words if deed.rate_bps is None else f"{words}, at most {bps_text(deed.rate_bps)}"


def _port(path: int | None) -> str:
    return "?" if path is None else str(path)


def took_text(deed: ActionEntry) -> str:
    """Return how long it took: from the decision until it was done, and the effector's part of it."""
    if deed.done_ns is None:
        return "—"
    if not deed.done or not deed.kind or deed.done_ns < deed.at_ns:
        return delay_text(deed.took_ns)
    return f"{delay_text(deed.done_ns - deed.at_ns)}, {delay_text(deed.took_ns)} of it {deed.how or 'done'}"


def held_text(held: SuppressedAction, now_ns: int) -> str:
    """Return why something is held back and for how long, in words."""
    return f"{WHYS.get(held.cause, held.cause)}; for {seconds_text((now_ns - held.since_ns) / 1e9)}"


def reason_of_held(held: SuppressedAction) -> str:
    """Return the reason of a suppressed action, in words."""
    if held.reason.window_id is not None:
        return f"a queue stands at {arrow(held.reason.subject)}"
    if held.kind == "DELAY":
        return CAUSES["DELAY"]
    subject = arrow(held.reason.subject)
    return f"{subject} is in trouble" if held.action != "RESTORE" else f"{subject} healed"


def actions_address(**choice: Any) -> str:
    """Return the address of the tab Actions with a choice."""
    query = urlencode({key: value for key, value in choice.items() if value})
    return f"/actions?{query}" if query else "/actions"


def ways_on(kind: str, reason: Reason, alerts: Iterable[Record]) -> list[tuple[str, str]]:
    """Return (label, address) of the page that shows the cause of a decision."""
    ways: list[tuple[str, str]] = []
    subject = ""
    if kind in ("DOWN", "GREY", "HEALED") and reason.subject:
        subject = reason.subject
        if "<>" in subject:
            ways.append((f"{arrow(subject)} in the fabric", fabric_address(link=subject.replace("<>", ">"))))
        else:
            host = subject.partition("/")[0]
            ways.append((f"{host} in the fabric", fabric_address(node=host)))
    elif kind in ("COLLISION", "INCAST", "DRAINED") and reason.window_id:
        subject = reason.subject
        ways.append((f"queue at {arrow(subject)}", f"/contention?{urlencode({'window': reason.window_id})}"))
    if subject:
        for alert in alerts:
            if subject == alert["subject"] or subject in alert["links"] or subject in alert["grouped"]:
                address = f"/alerts?{urlencode({'alert': alert['alert_id']})}"
                ways.append((f"alert: {alert['text']}"[:90], address))
                break
    return ways


# ------------------------------------------------------------------------------------ mode, limits, counts


def mode_text(state: ActionState) -> str:
    """Return the mode in force, its author and its time."""
    mode = state.mode()
    words = "ACT: decisions are carried out" if mode.act else "OBSERVE: decisions are told, nothing is done"
    words += f"; set by {mode.by} at {time_text(mode.since_ns)}" if mode.by else "; nobody has set a mode"
    apart = state.apart()
    if apart:
        named = ", ".join(apart[:6]) + (f" and {len(apart) - 6} more" if len(apart) > 6 else "")
        words += f". Otherwise at {named}: {'OBSERVE' if mode.act else 'ACT'}"
    return words


def time_text(ns: int) -> str:
    """Return a time of day, with the date where it is another day's."""
    at, now = datetime.fromtimestamp(ns / 1e9, UTC), datetime.now(UTC)
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True, slots=True)
class Used:
    """How much of a limit is used: a shard's moves within a minute, or a host's actions within a second."""

    name: str
    what: str
    used: int
    most: int

    @property
    def share(self) -> float:
        """0 to 1 and above; 1 where nothing may be done."""
        return self.used / self.most if self.most else 1.0


def limits_used(state: ActionState, now_ns: int) -> list[Used]:
    """Return the use of limits: of each shard, and of the busiest host. Decisions and local repairs count, as
    in the policy."""
    moved: dict[str, set[str]] = {}
    recent: dict[str, list[int]] = {}
    for record in (*state.decisions.values(), *_reflexes(state)):
        if record["at_ns"] > now_ns - MINUTE_NS:
            recent.setdefault(record["host"], []).append(record["at_ns"])
            shard_of = record["shard"] or (next(iter(state.shards)) if len(state.shards) == 1 else "")
            if record["action"] in MOVES and shard_of:
                moved.setdefault(shard_of, set()).add(record["flow_id"])
    share = state.limits("*").max_moved_share
    found = []
    for name in sorted({*state.shards, *moved}):
        shard = state.shards.get(name)
        flows = 0 if shard is None else shard.flows
        most = max(1, int(share * flows)) if share > 0 else 0
        found.append(Used(name, "flows moved within the minute", len(moved.get(name, ())), most))
    busy = [
        Used(
            host,
            "most actions within a second of the last minute",
            _densest(times),
            state.limits(host).max_actions_per_s,
        )
        for host, times in recent.items()
    ]
    busy.sort(key=lambda each: (-each.share, each.name))
    return found + busy[:3]


def _reflexes(state: ActionState) -> list[Record]:
    return [reports["LOCAL_REPAIR"] for reports in state.reports.values() if "LOCAL_REPAIR" in reports]


def _densest(times: list[int]) -> int:
    times.sort()
    most = begin = 0
    for end, at_ns in enumerate(times):
        while times[begin] <= at_ns - S:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def counts(found: Iterable[ActionEntry]) -> Counter[str]:
    """Return the number of decisions per outcome."""
    return Counter(deed.outcome for deed in found)


def counts_text(found: Mapping[str, int]) -> str:
    """Return outcomes with how many decisions came to each, the good ones first."""
    order = sorted(found, key=lambda name: RANK.get(name, len(RANK)))
    return ", ".join(f"{found[name]:,} {name}" for name in order)


# ------------------------------------------------------------------------------------------- one flow, rows


def names(text: str, flow_id: str) -> bool:
    """Whether `text` names a flow: its id, or a part of it, as `h3` or `sock:17`."""
    return text == flow_id or text in flow_id or text in flow_text(flow_id)


def only(text: str | None, flow_ids: Iterable[str]) -> str | None:
    """Return the one flow that `text` names; None where it names none, or several."""
    if text is None:
        return None
    found = {each for each in flow_ids if names(text, each)}
    return text if text in found else found.pop() if len(found) == 1 else None


def figures(deed: ActionEntry) -> list[tuple[str, str]]:
    """Return a decision as names and values."""
    told = deed.effect
    rows = [
        ("because", cause_text(deed.kind, deed.reason)),
        ("what", what_text(deed)),
        ("outcome", OUTCOMES.get(deed.outcome, deed.outcome) + (f": {deed.detail}" if deed.detail else "")),
        ("decided", f"{time_text(deed.at_ns)} UTC"),
        ("time taken", took_text(deed)),
        ("rate", before_after(told.before_bps, told.after_bps, bps_text)),
        ("round trip", before_after(told.before_rtt_ns, told.after_rtt_ns, delay_text)),
    ]
    if len(deed.outcomes) > 1:
        rows.append(("reports", ", ".join(deed.outcomes)))
    if told.left or told.took:
        rows.append(("links left", ", ".join(map(arrow, told.left)) or "—"))
        rows.append(("links taken", ", ".join(map(arrow, told.took)) or "—"))
    return [*rows, ("decision", deed.decision_id)]


def before_after(before: float | None, after: float | None, text: Callable[[float], str]) -> str:
    """Return two figures side by side."""
    return "—" if before is None and after is None else f"{_told(before, text)} → {_told(after, text)}"


def _told(value: float | None, text: Callable[[float], str]) -> str:
    return "?" if value is None else text(value)


def row(deed: ActionEntry) -> dict[str, Any]:
    """Return a decision's row."""
    return {
        "id": deed.decision_id,
        "at": time_text(deed.at_ns),
        "flow": flow_text(deed.flow_id),
        "flow_id": deed.flow_id,
        "cause": cause_text(deed.kind, deed.reason),
        "what": what_text(deed),
        "outcome": deed.outcome,
        "words": OUTCOMES.get(deed.outcome, deed.outcome),
        "took": "—" if deed.done_ns is None or not deed.done else delay_text(deed.done_ns - deed.at_ns),
        "rate": before_after(deed.effect.before_bps, deed.effect.after_bps, bps_text),
        "delay": before_after(deed.effect.before_rtt_ns, deed.effect.after_rtt_ns, delay_text),
        "good": "done" if deed.done else "open" if deed.outcome in ("WAITING", "OBSERVED") else "not",
    }


def as_record(deed: ActionEntry) -> dict[str, Any]:
    """Return a deed as plain values, for JSON."""
    return {
        **asdict(deed),
        "reason": deed.reason._asdict(),
        "effect": deed.effect._asdict(),
        "outcome_text": OUTCOMES.get(deed.outcome, ""),
        "cause": cause_text(deed.kind, deed.reason),
        "took": took_text(deed),
    }


def trail_frame(
    samples: Sequence[Sample], found: Iterable[ActionEntry], flow_id: str, now_ns: int, span_ns: int
) -> dict[str, Any]:
    """Return one flow's last `span_ns` for the browser: rate and round trip, its path, and marks where it was
    acted on; times in ms. A gap in the reports is a null."""
    least = now_ns - span_ns
    t: list[int] = []
    rate: list[float | None] = []
    rtt: list[int | None] = []
    limit: list[int | None] = []
    path: list[int | None] = []
    before: Sample | None = None
    for each in samples:
        if each.end_ns < least:
            continue
        if before is not None and each.start_ns > before.end_ns + 2 * S:
            t.append(before.end_ns // 1_000_000 + 1)
            for column in (rate, rtt, limit, path):
                column.append(None)
        t.append(each.end_ns // 1_000_000)
        rate.append(round(each.rate_bps))
        rtt.append(each.rtt_ns)
        limit.append(each.limit_bps)
        path.append(each.path)
        before = each
    marks = [
        [
            (deed.done_ns if deed.done and deed.done_ns is not None else deed.at_ns) // 1_000_000,
            deed.kind,
            what_text(deed),
            deed.outcome,
            cause_text(deed.kind, deed.reason),
            int(deed.done),
            deed.decision_id,
        ]
        for deed in found
        if deed.at_ns >= least
    ]
    return {
        "flow": flow_id,
        "from": least // 1_000_000,
        "to": now_ns // 1_000_000,
        "t": t,
        "rate": rate,
        "rtt": rtt,
        "limit": limit,
        "path": path,
        "marks": marks,
    }


class Slice(NamedTuple):
    """A tenant's guarantee and the rate of its flows."""

    tenant: str
    guarantee_bps: int
    ceiling_bps: int | None
    flows: int
    rate_bps: float


@dataclass(frozen=True, slots=True)
class Paces:
    """Flows that are held to a rate, and tenants with a slice. `paced`: (flow, its rate, its limit), the
    slowest limit first."""

    paced: list[tuple[str, float, int]]
    slices: list[Slice]


def paces(flows: Mapping[str, Record], configs: Mapping[str, Record]) -> Paces:
    """Return current paces and slices, from flow reports and configurations."""
    held = [
        (name, flow["rate_bps"], flow["rate_limit_bps"])
        for name, flow in flows.items()
        if flow["rate_limit_bps"] is not None
    ]
    held.sort(key=lambda each: (each[2], each[0]))
    promised: dict[str, tuple[int, int | None]] = {}
    for _, record in sorted(configs.items(), reverse=True):  # everyone's last: it goes before
        for each in record["slices"]:
            promised[each["tenant"]] = (each["guarantee_bps"], each["ceiling_bps"])
    found = []
    for tenant, (guarantee, ceiling) in sorted(promised.items()):
        own = [flow["rate_bps"] for flow in flows.values() if flow["tenant"] == tenant]
        found.append(Slice(tenant, guarantee, ceiling, len(own), sum(own)))
    return Paces(held, found)
