"""Decisions in the terminal: what was decided of late, why, what came of it, and what is held back.

In: `fabric.decisions`, `fabric.actions`, `fabric.policy-cycles` and `fabric.config`, straight from the log. Out: a
table with the newest first, JSON, or lines as things happen. It needs neither history nor the page.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from fabrictime.state import action_entries
from fabrictime.state.action_entries import ActionEntry
from fabrictime.state.action_state import ActionState, SuppressedAction
from fabrictime.state.units import delay_text, seconds_text
from schemas import codec
from schemas.kafka.reader import BEGINNING, Message, TopicReader, back
from schemas.topics import ACTIONS, CONFIG, DECISIONS, FLOWS, POLICY_CYCLES, TOPICS

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Acts", "Wanted", "main", "watch"]

ROUNDS_BACK_S: Final = 30.0
"""Rounds tell again what is held back within this."""
SHOWN: Final = 60
COLOURS: Final = {"done": "green", "open": "cyan", "not": "yellow"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call asks for: names or globs of flows, hosts or links; how far back; only what is held back."""

    patterns: tuple[str, ...] = ()
    since_s: float = 300.0
    held: bool = False
    as_json: bool = field(default=False, kw_only=True)


class Acts:
    """What is decided and done, filled from messages."""

    def __init__(self, registry: codec.Registry | None = None) -> None:
        self.state = ActionState(lambda value: codec.decode(value, FLOWS.record, registry))
        self.unreadable = 0
        self._registry = registry

    def take(self, taken: Message) -> codec.Record | None:
        """Take a message; return its record, None where it has none or cannot be read."""
        record = None
        if taken.value is not None:
            try:
                record = codec.decode(taken.value, TOPICS[taken.topic].record, self._registry)
            except codec.BadRecord:
                self.unreadable += 1
                return None
        self.state.take(taken.topic, taken.key, record)
        return record

    def deeds(self, wanted: Wanted, now_ns: int) -> list[ActionEntry]:
        """Return the wanted decisions, the newest first."""
        least = now_ns - round(wanted.since_s * 1e9)
        found = action_entries.deeds(self.state, now_ns)
        return [deed for deed in found if deed.at_ns >= least and _named(deed, wanted.patterns)]

    def held(self, wanted: Wanted) -> list[SuppressedAction]:
        """Return what is held back, what is so for longest first."""
        return [each for each in self.state.held() if _named(each, wanted.patterns)]


def _named(what: ActionEntry | SuppressedAction, patterns: Sequence[str]) -> bool:
    names = (what.flow_id, action_entries.flow_text(what.flow_id), str(what.reason))
    return not patterns or any(fnmatchcase(name, f"*{each}*") for name in names for each in patterns)


def main(bootstrap: str, wanted: Wanted, *, registry: codec.Registry | None = None) -> None:
    """Print what was decided and what is held back. Raises ValueError where the log cannot be read."""
    acts = Acts(registry)
    reader = _reader(bootstrap, wanted)
    try:
        for taken in reader.read_to_end():
            acts.take(taken)
    finally:
        reader.close()
    if wanted.as_json:
        print(as_json(acts, wanted, time.time_ns()))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=250)
    console.print(draw(acts, wanted, time.time_ns()), highlight=False)


def watch(bootstrap: str, wanted: Wanted, *, registry: codec.Registry | None = None) -> None:
    """Show it live until SIGINT; a line for each thing that happens where stdout is no terminal.

    Raises ValueError where the log cannot be read at the start.
    """
    from rich.console import Console

    console = Console()
    acts = Acts(registry)
    reader = _reader(bootstrap, wanted)
    try:
        for taken in reader.read_to_end():
            acts.take(taken)
        if wanted.as_json or not console.is_terminal:
            shown: set[SuppressedAction] = set()
            for deed in reversed(acts.deeds(wanted, time.time_ns())):
                _print_deed(deed, wanted)
            while True:
                shown = _print_held(acts, wanted, shown)
                for taken in reader.poll(0.25):
                    _print_news(acts, acts.take(taken), taken.topic, wanted)
        from rich.live import Live

        now_ns = time.time_ns
        with Live(draw(acts, wanted, now_ns()), console=console, auto_refresh=False, screen=True) as live:
            while True:
                for taken in reader.poll(0.25):
                    acts.take(taken)
                room = max(3, console.size.height - 8)
                live.update(draw(acts, wanted, now_ns(), room), refresh=True)
    except KeyboardInterrupt:
        return
    finally:
        reader.close()


def _reader(bootstrap: str, wanted: Wanted) -> TopicReader:
    recent = back(wanted.since_s)
    starts = {CONFIG: BEGINNING, DECISIONS: recent, ACTIONS: recent, POLICY_CYCLES: back(ROUNDS_BACK_S)}
    return TopicReader.open(bootstrap, starts)


def _print_news(acts: Acts, record: codec.Record | None, topic: str, wanted: Wanted) -> None:
    """Print what a message told: a decision, or what came of one."""
    if record is None or topic not in (DECISIONS.name, ACTIONS.name):
        return
    now_ns = time.time_ns()
    for deed in action_entries.deeds(acts.state, now_ns, record["flow_id"]):
        if deed.decision_id == record["decision_id"] and _named(deed, wanted.patterns):
            _print_deed(deed, wanted)


def _print_deed(deed: ActionEntry, wanted: Wanted) -> None:
    if wanted.held:
        return
    print(
        json.dumps(action_entries.as_record(deed), allow_nan=False) if wanted.as_json else _line(deed),
        flush=True,
    )


def _line(deed: ActionEntry) -> str:
    took = "" if deed.done_ns is None else f" after {delay_text(deed.done_ns - deed.at_ns)}"
    more = f" ({deed.detail})" if deed.detail else ""
    return (
        f"{action_entries.time_text(deed.at_ns)} {deed.outcome} {deed.flow_id}: {action_entries.what_text(deed)}; "
        f"{action_entries.cause_text(deed.kind, deed.reason)}{took}{more}"
    )


def _print_held(acts: Acts, wanted: Wanted, shown: set[SuppressedAction]) -> set[SuppressedAction]:
    held = acts.held(wanted)
    for each in held:
        if each not in shown:
            print(
                json.dumps(held_record(each), allow_nan=False) if wanted.as_json
                else f"{action_entries.time_text(each.since_ns)} HELD {each.flow_id}: "
                f"{action_entries.what_text(each)}; {action_entries.WHYS.get(each.cause, each.cause)}",
                flush=True,
            )  # fmt: skip
    return set(held)


def held_record(held: SuppressedAction) -> dict[str, Any]:
    """Return what is held back as plain values, for JSON."""
    return {
        **held._asdict(), "reason": held.reason._asdict(), "why_text": action_entries.WHYS.get(held.cause, held.cause),
        "because": action_entries.reason_of_held(held),
    }  # fmt: skip


def as_json(acts: Acts, wanted: Wanted, now_ns: int) -> str:
    """Return mode, limits, decisions and what is held back as one line of JSON."""
    mode = acts.state.mode()
    found: dict[str, Any] = {
        "unreadable": acts.unreadable,
        "mode": {"act": mode.act, "by": mode.by, "since_ns": mode.since_ns, "apart": acts.state.apart()},
        "limits": [
            {"of": each.name, "what": each.what, "used": each.used, "most": each.most}
            for each in action_entries.limits_used(acts.state, now_ns)
        ],
        "held": [held_record(each) for each in acts.held(wanted)],
    }
    if not wanted.held:
        found["decisions"] = [action_entries.as_record(deed) for deed in acts.deeds(wanted, now_ns)]
    return json.dumps(found, allow_nan=False)


def draw(acts: Acts, wanted: Wanted, now_ns: int, room: int = SHOWN) -> RenderableType:
    """Return what rich prints: mode, limits, decisions and what is held back."""
    from rich.console import Group
    from rich.text import Text

    act = acts.state.mode().act
    parts: list[RenderableType] = [
        Text(action_entries.mode_text(acts.state), "bold green" if act else "bold")
    ]
    used = action_entries.limits_used(acts.state, now_ns)
    if used:
        parts.append(
            Text("; ".join(f"{each.name}: {each.used:,} of {each.most:,} {each.what}" for each in used))
        )
    if not wanted.held:
        deeds = acts.deeds(wanted, now_ns)
        parts += decided(deeds, f"within {seconds_text(wanted.since_s)}", room)
    parts += held_back(acts.held(wanted), acts.state, now_ns, room)
    if acts.unreadable:
        parts.append(Text(f"{acts.unreadable:,} records could not be read", "yellow"))
    return Group(*parts)


def decided(
    deeds: Sequence[ActionEntry], when: str, room: int, *, effects: bool = False
) -> list[RenderableType]:
    """Return decisions as rich prints them."""
    from rich.table import Table
    from rich.text import Text

    if not deeds:
        return [Text(f"nothing was decided {when}", "green")]
    table = Table(box=None, pad_edge=False)
    columns = [
        ("at", "at (UTC)"),
        ("flow", "flow"),
        ("what", "what"),
        ("outcome", "outcome"),
        ("took", "took"),
    ]
    if effects:
        columns = [columns[0], *columns[2:], ("rate", "rate"), ("delay", "round trip")]
    for _, title in (*columns, ("cause", "because")):
        table.add_column(title, no_wrap=title != "because")
    for deed in deeds[:room]:
        row = action_entries.row(deed)
        cells = [Text(str(row[name])) for name, _ in columns]
        cells[[name for name, _ in columns].index("outcome")].stylize(COLOURS[row["good"]])
        more = "" if not deed.detail else f" ({deed.detail})"
        table.add_row(*cells, Text(row["cause"] + more))
    counted = action_entries.counts_text(action_entries.counts(deeds))
    found: list[RenderableType] = [Text(f"{counted} {when}", "bold"), table]
    if len(deeds) > room:
        found.append(Text(f"and {len(deeds) - room:,} older", "dim"))
    return found


def held_back(
    held: Sequence[SuppressedAction], state: ActionState, now_ns: int, room: int
) -> list[RenderableType]:
    """Return what is held back as rich prints it."""
    from rich.table import Table
    from rich.text import Text

    if not held:
        told = any(shard.held is not None for shard in state.shards.values())
        return [
            Text("nothing is held back", "green") if told
            else Text("policy has not told what it holds back", "yellow")
        ]  # fmt: skip
    table = Table(box=None, pad_edge=False)
    for title in ("flow", "would", "because", "held back"):
        table.add_column(title, no_wrap=title in ("flow", "would"))
    for each in held[:room]:
        table.add_row(
            Text(action_entries.flow_text(each.flow_id)), Text(action_entries.what_text(each)),
            Text(action_entries.reason_of_held(each)), Text(action_entries.held_text(each, now_ns)),
        )  # fmt: skip
    found: list[RenderableType] = [Text(f"{len(held):,} held back", "bold"), table]
    if len(held) > room:
        found.append(Text(f"and {len(held) - room:,} more", "dim"))
    return found
