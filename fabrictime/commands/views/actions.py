"""Shows decisions in the terminal: cause, outcome, and suppressed actions.

The command reads `fabric.decisions`, `fabric.actions`, `fabric.policy-cycles` and `fabric.config` from the
log. It prints a table with the newest first, JSON, or a line per event. It needs no history or page.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.screen import keep_live, table_of, terminal
from fabrictime.state import action_entries, action_limits, action_text
from fabrictime.state.action_entries import ActionEntry
from fabrictime.state.action_state import CYCLES_BACK_S, ActionState, SuppressedAction
from fabrictime.state.simulated_time_reader import fabric_now_ns
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, Start, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.records import ActionReport, Decision
from schemas.topics import ACTIONS, CONFIG, DECISIONS, FLOWS, POLICY_CYCLES, TOPICS, Topic
from schemas.units import delay_text, seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN: Final = 60
COLOURS: Final = {"done": "green", "open": "cyan", "not": "yellow"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of `actions`: names or globs, the interval, whether only suppressed actions are shown."""

    patterns: tuple[str, ...] = ()
    since_s: float = 300.0
    suppressed: bool = False
    as_json: bool = field(default=False, kw_only=True)


class Acts:
    """Decisions, outcomes and suppressed actions, collected from messages."""

    def __init__(self, registry: codec.Registry | None = None) -> None:
        self.state = ActionState(lambda value: codec.decode(value, FLOWS.type, registry))
        self.unreadable = 0
        self._registry = registry

    def take(self, message: Message) -> Any:
        """Process a message and return its record; None for a tombstone or an unreadable message."""
        record = None
        if message.value is not None:
            try:
                record = message.decoded(TOPICS[message.topic], self._registry)
            except codec.BadRecord:
                self.unreadable += 1
                return None
        self.state.take(message.topic, message.key, record)
        return record

    def entries(self, query: Wanted, now_ns: int) -> list[ActionEntry]:
        """Return the decisions that the options select, the newest first."""
        minimum = now_ns - round(query.since_s * 1e9)
        entries = action_entries.entries(self.state, now_ns)
        return [entry for entry in entries if entry.at_ns >= minimum and _named(entry, query.patterns)]

    def suppressed(self, query: Wanted) -> list[SuppressedAction]:
        """Return the suppressed actions, beginning with the one that has been suppressed for longest."""
        return [action for action in self.state.suppressed() if _named(action, query.patterns)]


def _named(subject: ActionEntry | SuppressedAction, patterns: Sequence[str]) -> bool:
    names = (subject.flow_id, action_text.flow_text(subject.flow_id), str(subject.reason))
    return not patterns or any(fnmatchcase(name, f"*{pattern}*") for name in names for pattern in patterns)


def main(cluster: KafkaSettings | str, query: Wanted, *, registry: codec.Registry | None = None) -> None:
    """Print decisions and suppressed actions. Raises ValueError if the log cannot be read."""
    acts = Acts(registry)
    with _reader(cluster, query) as reader:
        for message in reader.read_to_end():
            acts.take(message)
    now_ns = fabric_now_ns(cluster, registry)
    if query.as_json:
        print(as_json(acts, query, now_ns))
        return
    terminal(250).print(draw(acts, query, now_ns))


def watch(cluster: KafkaSettings | str, query: Wanted, *, registry: codec.Registry | None = None) -> None:
    """Show decisions and suppressed actions live until SIGINT. Without a terminal, print a line per event.

    Raises ValueError if the log cannot be read at the start.
    """
    console, acts = terminal(250), Acts(registry)
    with _reader(cluster, query) as reader, contextlib.suppress(KeyboardInterrupt):
        for message in reader.read_to_end():
            acts.take(message)
        if query.as_json or not console.is_terminal:
            previous: set[SuppressedAction] = set()
            for entry in reversed(acts.entries(query, time.time_ns())):
                _print_entry(entry, query)
            while True:
                previous = _print_suppressed(acts, query, previous)
                for message in reader.poll(0.25):
                    _print_news(acts, acts.take(message), message.topic, query)

        def drawn() -> RenderableType:
            return draw(acts, query, time.time_ns(), max(3, console.size.height - 8))

        def follow() -> None:
            for message in reader.poll(0.25):
                acts.take(message)

        keep_live(console, drawn, follow)


def _reader(cluster: KafkaSettings | str, query: Wanted) -> TopicReader:
    recent = back(query.since_s)
    starts: dict[Topic[Any], Start] = {
        CONFIG: BEGINNING,
        DECISIONS: recent,
        ACTIONS: recent,
        POLICY_CYCLES: back(CYCLES_BACK_S),
    }
    return TopicReader.open(cluster, starts)


def _print_news(acts: Acts, record: Decision | ActionReport | None, topic: str, query: Wanted) -> None:
    """Print a line for a decision or an outcome."""
    if record is None or topic not in (DECISIONS.name, ACTIONS.name):
        return
    now_ns = time.time_ns()
    for entry in action_entries.entries(acts.state, now_ns, record["flow_id"]):
        if entry.decision_id == record["decision_id"] and _named(entry, query.patterns):
            _print_entry(entry, query)


def _print_entry(entry: ActionEntry, query: Wanted) -> None:
    if query.suppressed:
        return
    print(
        json.dumps(action_text.as_record(entry), allow_nan=False) if query.as_json else _line(entry),
        flush=True,
    )


def _line(entry: ActionEntry) -> str:
    took = "" if entry.done_ns is None else f" after {delay_text(entry.done_ns - entry.at_ns)}"
    more = f" ({entry.detail})" if entry.detail else ""
    action = action_text.action_text(entry)
    return (
        f"{action_text.time_text(entry.at_ns)} {entry.outcome} {entry.flow_id}: {action}; "
        f"{action_text.cause_text(entry.kind, entry.reason)}{took}{more}"
    )


def _print_suppressed(acts: Acts, query: Wanted, previous: set[SuppressedAction]) -> set[SuppressedAction]:
    suppressed = acts.suppressed(query)
    for action in suppressed:
        if action not in previous:
            print(
                json.dumps(suppressed_record(action), allow_nan=False)
                if query.as_json
                else f"{action_text.time_text(action.since_ns)} HELD {action.flow_id}: "
                f"{action_text.action_text(action)}; "
                f"{action_text.LIMIT_TEXTS.get(action.cause, action.cause)}",
                flush=True,
            )
    return set(suppressed)


def suppressed_record(suppressed: SuppressedAction) -> dict[str, Any]:
    """Return a suppressed action as a JSON-ready dict."""
    return {
        **suppressed._asdict(),
        "reason": suppressed.reason._asdict(),
        "cause_text": action_text.LIMIT_TEXTS.get(suppressed.cause, suppressed.cause),
        "reason_text": action_text.suppressed_cause(suppressed),
    }


def as_json(acts: Acts, query: Wanted, now_ns: int) -> str:
    """Return mode, limits, decisions and suppressed actions as one line of JSON."""
    mode = acts.state.mode()
    output: dict[str, object] = {
        "unreadable": acts.unreadable,
        "mode": {
            "act": mode.act,
            "by": mode.by,
            "since_ns": mode.since_ns,
            "exceptions": acts.state.exceptions(),
        },
        "limits": [
            {"of": usage.name, "limit": usage.limit, "used": usage.used, "max": usage.max}
            for usage in action_limits.limits_used(acts.state, now_ns)
        ],
        "suppressed": [suppressed_record(action) for action in acts.suppressed(query)],
    }
    if not query.suppressed:
        output["decisions"] = [action_text.as_record(entry) for entry in acts.entries(query, now_ns)]
    return json.dumps(output, allow_nan=False)


def draw(acts: Acts, query: Wanted, now_ns: int, max_rows: int = SHOWN) -> RenderableType:
    """Return mode, limits, decisions and suppressed actions as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    act = acts.state.mode().act
    parts: list[RenderableType] = [Text(action_text.mode_text(acts.state), "bold green" if act else "bold")]
    used = action_limits.limits_used(acts.state, now_ns)
    if used:
        parts.append(
            Text("; ".join(f"{usage.name}: {usage.used:,} of {usage.max:,} {usage.limit}" for usage in used))
        )
    if not query.suppressed:
        entries = acts.entries(query, now_ns)
        parts += decided(entries, f"within {seconds_text(query.since_s)}", max_rows)
    parts += suppressed_rows(acts.suppressed(query), acts.state, now_ns, max_rows)
    if acts.unreadable:
        parts.append(Text(f"{acts.unreadable:,} records could not be read", "yellow"))
    return Group(*parts)


def decided(
    entries: Sequence[ActionEntry], when: str, max_rows: int, *, effects: bool = False
) -> list[RenderableType]:
    """Return a table of decisions for rich. `when`: the interval in words; `effects`: add their effects."""
    from rich.text import Text

    if not entries:
        return [Text(f"nothing was decided {when}", "green")]
    columns = [
        ("at", "at (UTC)"),
        ("flow", "flow"),
        ("action", "action"),
        ("outcome", "outcome"),
        ("took", "took"),
    ]
    if effects:
        columns = [columns[0], *columns[2:], ("rate", "rate"), ("delay", "round trip")]
    rows = []
    for entry in entries[:max_rows]:
        row = action_text.table_row(entry)
        cells = {name: Text(str(row[name])) for name, _ in columns}
        cells["outcome"].stylize(COLOURS[row["status"]])
        more = "" if not entry.detail else f" ({entry.detail})"
        rows.append((*cells.values(), Text(row["cause"] + more)))
    table = table_of([*(title for _, title in columns), "cause"], rows, wrapped=("cause",))
    counted = action_text.counts_text(action_entries.counts(entries))
    parts: list[RenderableType] = [Text(f"{counted} {when}", "bold"), table]
    if len(entries) > max_rows:
        parts.append(Text(f"and {len(entries) - max_rows:,} older", "dim"))
    return parts


def suppressed_rows(
    suppressed: Sequence[SuppressedAction], state: ActionState, now_ns: int, max_rows: int
) -> list[RenderableType]:
    """Return the table of suppressed actions as rich renderables."""
    from rich.text import Text

    if not suppressed:
        published = any(shard.suppressed is not None for shard in state.shards.values())
        return [
            Text("no action is suppressed", "green")
            if published
            else Text("the policy has not published its suppressed actions", "yellow")
        ]
    titles = ("flow", "action", "cause", "suppressed by")
    rows = [
        (
            action_text.flow_text(action.flow_id),
            action_text.action_text(action),
            action_text.suppressed_cause(action),
            action_text.suppressed_text(action, now_ns),
        )
        for action in suppressed[:max_rows]
    ]
    table = table_of(titles, rows, wrapped=titles[1:])
    parts: list[RenderableType] = [Text(f"{len(suppressed):,} suppressed", "bold"), table]
    if len(suppressed) > max_rows:
        parts.append(Text(f"and {len(suppressed) - max_rows:,} more", "dim"))
    return parts
