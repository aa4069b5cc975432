"""Formats the fleet's clocks as a table for the terminal, as one line, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.screen import table_of
from fabrictime.state.clocks import STATES, ClockLine, Picture, SuspectLine, ns_text
from schemas.topics import CLOCK_OFFSETS
from schemas.units import seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

WORST: Final = 20
"""Number of clocks that are listed if there are more than `ALL_UP_TO`."""
ALL_UP_TO: Final = 40
SUSPECTS_SHOWN: Final = 12
_COLOURS: Final = {"SYNCED": "green", "HOLDOVER": "yellow", "UNSYNCED": "red", "ABSENT": "red"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of `clock`: globs of clocks and hosts, number of rows, interval of events."""

    patterns: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    worst: int | None = None
    everything: bool = False
    since_s: float = 60.0
    as_json: bool = field(default=False, kw_only=True)

    def lines(self, clocks: int) -> int:
        """Return the number of clocks to list, out of `clocks` clocks."""
        if self.everything or (self.worst is None and clocks <= ALL_UP_TO):
            return clocks
        return WORST if self.worst is None else self.worst


def as_json(picture: Picture) -> str:
    """Return the snapshot as one line of JSON: summary, shards, clocks, suspects."""
    return json.dumps(
        {
            "summary": picture.summary(),
            "events_since_ns": picture.since_ns,
            "unreadable": picture.unreadable,
            "shards": [asdict(line) for line in picture.shards],
            "clocks": [asdict(line) for line in picture.clocks],
            "suspects": [asdict(line) for line in picture.suspects],
        },
        allow_nan=False,
    )


def plain(picture: Picture) -> str:
    """Return the figures of the fleet's clocks as one line of text."""
    return "; ".join(text for text, _ in _summary(picture))


def draw(picture: Picture, query: Wanted, max_rows: int | None = None) -> RenderableType:
    """Return a rich renderable of the fleet's figures, the worst clocks and the suspect pairs."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(text, style) for text, style in _summary(picture)]
    if picture.clocks:
        count = query.lines(len(picture.clocks))
        count = count if max_rows is None else min(count, max_rows)
        parts += [Text(""), _clock_table(picture, count)]
        more = len(picture.clocks) - count
        if more > 0:
            hint = "" if max_rows is not None else "; --all lists them"
            parts.append(Text(f"and {more:,} more clocks, no worse than these{hint}", "dim"))
    if picture.suspects:
        parts += [Text(""), _suspect_table(picture.suspects)]
        more = len(picture.suspects) - SUSPECTS_SHOWN
        if more > 0:
            parts.append(Text(f"and {more:,} more suspect pairs, less asymmetric; --json lists them", "dim"))
    return Group(*parts)


def _summary(picture: Picture) -> list[tuple[str, str]]:
    """Return the lines above the tables, each as (text, style)."""
    no_window = f"no window of clocks in {CLOCK_OFFSETS.name} yet: a worker must run"
    if not picture.clocks:
        named = "no clock matches the given names"
        return [(named if picture.shards else f"{no_window}, and two hosts must probe each other", "yellow")]
    figures = picture.summary()
    lines = [_states_text(figures)]
    if figures["bound_worst_ns"] is not None:
        median, worst = ns_text(figures["bound_median_ns"]), ns_text(figures["bound_worst_ns"])
        lines.append(
            (f"error bound {median} in the median, worst {worst} at {figures['bound_worst_clock']}", "")
        )
    if not picture.shards:
        return [*lines, (no_window, "yellow")]
    lines.append(_timescale_text(figures, len(picture.shards)))
    suspects = figures["suspects"]
    age = f"newest window {seconds_text(picture.age_s or 0.0)} ago" if picture.is_fresh else "no fresh window"
    lines.append((f"{suspects:,} suspect pair{_s(suspects)}; {age}", ""))
    lines += [
        (f"shard {line.shard}: what you see is its last state; its newest window is {doubt}", "red")
        for line in picture.shards
        if (doubt := line.doubt()) is not None
    ]
    if picture.unreadable:
        lines.append((f"{picture.unreadable:,} records could not be read", "yellow"))
    return lines


def _states_text(figures: Mapping[str, Any]) -> tuple[str, str]:
    counts = {state: figures[state.lower()] for state in reversed(STATES)}
    states = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    prefix = "" if figures["fresh"] else "last known "
    return f"{figures['clocks']:,} clock{_s(figures['clocks'])}: {prefix}{states}", "bold"


def _timescale_text(figures: Mapping[str, Any], shards: int) -> tuple[str, str]:
    references = [
        "the ensemble of all clocks" if name == "ensemble" else f"clock {name}"
        for name in figures["references"]
    ]
    domains = figures["domains"]
    text = f"fabric time follows {' and '.join(references)}; {domains} domain{_s(domains)}"
    if domains > 1:
        text += " whose clocks cannot be compared"
    return text, "yellow" if domains > shards else ""


def _s(count: int) -> str:
    """Return the plural ending of a noun: '' for a count of 1, else 's'."""
    return "s" if count != 1 else ""


def _clock_table(picture: Picture, count: int) -> RenderableType:
    several = len({line.domain for line in picture.clocks if line.domain is not None}) > 1
    figures = ("+- bound", "offset", "drift ppm", "+- sigma", "pairs", "residual")
    titles = ("clock", "state", *figures, "last event (UTC)", *(["domain"] if several else []))
    rows = []
    for line in picture.clocks[:count]:
        pairs = "-" if line.pairs is None else str(line.pairs)
        residual = ns_text(line.residual_ns if line.pairs else None)
        cells: list[str | Text] = [
            line.clock,
            _state(line.state),
            ns_text(line.bound_ns),
            _signed_ns(line.offset_ns),
            _ppm(line.drift_ppb, "+"),
            _ppm(line.drift_sigma_ppb),
            pairs,
            residual,
            event_text(line),
        ]
        rows.append([*cells, *([line.domain or "-"] if several else [])])
    return table_of(titles, rows, right=figures)


def _suspect_table(suspects: Iterable[SuspectLine]) -> RenderableType:
    figures = ("asymmetry", "+- sigma", "weight left")
    rows = [
        (
            f"{row.prober} > {row.peer}",
            _signed_ns(row.asymmetry_ns),
            ns_text(row.sigma_ns),
            f"{row.weight:.0%}",
        )
        for row in list(suspects)[:SUSPECTS_SHOWN]
    ]
    return table_of(("suspect pair", *figures), rows, right=figures)


_EVENT_FIGURE: Final[Mapping[str, Callable[[float], str]]] = {
    "STEP": lambda ns: f" {_signed_ns(ns)}",
    "MERGED": lambda ns: f" {_signed_ns(ns)}",
    "RATE_CHANGE": lambda ns: f" {ns:+,.1f} ppb",
    "FALSETICKER": lambda ns: f" {ns_text(ns)} rms",
}


def event_text(line: ClockLine) -> str:
    """Return a clock's last event as '14:02:11 STEP +1.50 us' (UTC); '-' if none is known."""
    if line.event is None or line.event_at_ns is None:
        return "-"
    at = datetime.fromtimestamp(line.event_at_ns / 1e9, UTC)
    figure = _EVENT_FIGURE.get(line.event)
    return f"{at:%H:%M:%S} {line.event}{'' if figure is None else figure(line.event_ns or 0.0)}"


def _state(state: str) -> Text:
    from rich.text import Text

    return Text(state, _COLOURS.get(state, "red"))


def _signed_ns(ns: float | None) -> str:
    return "-" if ns is None else f"{'+' if ns > 0 else ''}{ns_text(ns)}"


def _ppm(ppb: float | None, sign: str = "") -> str:
    return "-" if ppb is None else f"{ppb / 1e3:{sign}.4f}"
