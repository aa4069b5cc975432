"""The fleet's clocks in the terminal: which is off by how much, and how well that is known.

In: `ClockOffsets` of the newest windows and the inventory, straight from the log. Out: a table with the worst
clocks first and the suspect pairs, JSON, or a verdict for scripts. It needs neither history nor the page.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from fabrictime.state.units import delay_text, seconds_text
from schemas import codec
from schemas.ids import natural
from schemas.kafka.reader import BEGINNING, Message, TopicReader, back, tail
from schemas.records import ClockEvent, ClockOffsets, ClockState, Nic
from schemas.topics import CLOCK_OFFSETS, INVENTORY

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

LAST_MESSAGES: Final = 64
"""Messages of each partition that count if none is recent."""
"""A log that answers nothing for this long while there is more to read counts as gone."""

MAX_AGE_S: Final = 10.0
"""A newest window older than this is out of date: a check fails."""

ANNOUNCED_S: Final = 95.0
"""A NIC that has not announced itself for this long (it does every 30 s) is not missed any more."""

WORST: Final = 20
"""Clocks that are listed where all would be more than `ALL_UP_TO`."""
ALL_UP_TO: Final = 40
SUSPECTS_SHOWN: Final = 12
STATES_DECODED: Final = 200_000
"""Clock states that a start decodes at most, the newest first: older events stay unknown in a large fleet."""

STATES: Final = ("ABSENT", "UNSYNCED", "HOLDOVER", "SYNCED")
"""The worst first. ABSENT: its NICs announce themselves and the newest window has nothing of it."""
_WINDOWS_KEPT: Final = 4
_COLOURS: Final = {"SYNCED": "green", "HOLDOVER": "yellow", "UNSYNCED": "red", "ABSENT": "red"}


@dataclass(frozen=True, slots=True)
class ClockLine:
    """One clock in its shard's newest window; figures are None for an ABSENT one.

    Add `offset_ns` to the clock's reading to get fabric time. `event` is the last event, of the window that
    began at `event_at_ns` (fabric time); `event_ns` as in `ClockOffsets`.
    """

    clock: str
    hosts: tuple[str, ...]
    nics: int
    state: str
    shard: str | None = None
    domain: str | None = None
    offset_ns: float | None = None
    drift_ppb: float | None = None
    drift_sigma_ppb: float | None = None
    bound_ns: float | None = None
    pairs: int | None = None
    residual_ns: float | None = None
    event: str | None = None
    event_ns: float | None = None
    event_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SuspectLine:
    """A pair whose path looks asymmetric; `weight`: the share of its weight that the solver kept, 0 to 1."""

    shard: str
    prober: str
    peer: str
    asymmetry_ns: float
    sigma_ns: float
    weight: float


@dataclass(frozen=True, slots=True)
class ShardLine:
    """A shard's newest whole window, its end in fabric time, and how long ago the log took it."""

    shard: str
    window: int
    window_end_ns: int
    age_s: float
    reference: str
    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """The clocks, the worst first; the suspect pairs, the most asymmetric first; the shards by name.

    Events are known since `since_ns` (log append time).
    """

    clocks: list[ClockLine]
    suspects: list[SuspectLine]
    shards: list[ShardLine]
    since_ns: int | None
    unreadable: int

    def count(self, state: str) -> int:
        """Return how many clocks are in a state."""
        return sum(line.state == state for line in self.clocks)

    def bounds_ns(self) -> list[float]:
        """Return the bounds of the clocks that may be used."""
        usable = ("SYNCED", "HOLDOVER")
        return [c.bound_ns for c in self.clocks if c.bound_ns is not None and c.state in usable]

    @property
    def age_s(self) -> float | None:
        """Age of the shard's window that is furthest behind; None without a window."""
        return max((line.age_s for line in self.shards), default=None)

    def summary(self) -> dict[str, Any]:
        """Return the fleet's figures; bounds in ns over SYNCED and HOLDOVER clocks."""
        bounds = self.bounds_ns()
        widest = max((c for c in self.clocks if c.bound_ns in bounds), key=_bound, default=None)
        return {
            "clocks": len(self.clocks),
            **{state.lower(): self.count(state) for state in reversed(STATES)},
            "bound_median_ns": statistics.median(bounds) if bounds else None,
            "bound_worst_ns": max(bounds, default=None),
            "bound_worst_clock": None if widest is None else widest.clock,
            "suspects": len(self.suspects),
            "domains": sum(len(line.domains) for line in self.shards),
            "references": sorted({line.reference for line in self.shards}),
            "age_s": self.age_s,
        }

    def wrong(self, bound_us: float | None, max_age_s: float = MAX_AGE_S) -> list[str]:
        """Return a line for each reason why the fleet is not in time; none: it is."""
        if not self.clocks:
            return ["no clock that is asked for is in a window, expected at least one"]
        found = [
            f"shard {line.shard}: its newest window is {seconds_text(line.age_s)} old, "
            f"expected at most {max_age_s:g} s"
            for line in self.shards
            if line.age_s > max_age_s
        ]
        for line in self.clocks:
            if line.state != "SYNCED":
                found.append(f"clock {line.clock}: {line.state}, expected SYNCED")
            elif bound_us is not None and _bound(line) > bound_us * 1e3:
                found.append(
                    f"clock {line.clock}: bound {_ns(line.bound_ns)}, expected at most {_ns(bound_us * 1e3)}"
                )
        return found


class Fleet:
    """The content of the two topics so far. Pure: records in, snapshots out."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.since_ns: int | None = None
        self._nics: dict[str, tuple[str, str, int]] = {}
        """NIC to (clock, host, append time of its newest announcement)."""
        self._windows: dict[str, dict[int, dict[int, tuple[ClockOffsets, int]]]] = {}
        """Shard to window to part to (record, append time)."""
        self._events: dict[tuple[str, str], tuple[int, str, float, int]] = {}

    def add_nic(self, nic: str, record: Nic | None, append_ns: int) -> None:
        """Take an announcement that the log took at `append_ns`; None: the NIC is gone."""
        if record is None:
            self._nics.pop(nic, None)
        else:
            self._nics[nic] = (record["clock"], record["host"], append_ns)

    def add(self, record: ClockOffsets, append_ns: int) -> None:
        """Take a `ClockOffsets` that the log took at `append_ns`; their order does not matter."""
        self.since_ns = append_ns if self.since_ns is None else min(self.since_ns, append_ns)
        shard, window = record["shard"], record["window"]
        windows = self._windows.setdefault(shard, {})
        windows.setdefault(window, {})[record["part"]] = (record, append_ns)
        if len(windows) > _WINDOWS_KEPT:
            del windows[min(windows)]
        for clock in record["clocks"]:
            if clock["event"] != ClockEvent.NONE:
                key = (shard, clock["clock"])
                if key not in self._events or self._events[key][0] <= window:
                    self._events[key] = (window, clock["event"], clock["event_ns"], record["window_start_ns"])

    def newest(self) -> dict[str, int]:
        """Return each shard's newest whole window."""
        return {
            shard: max(whole)
            for shard, windows in self._windows.items()
            if (whole := [w for w, parts in windows.items() if len(parts) >= _parts(parts)])
        }

    def picture(
        self, patterns: Sequence[str] = (), hosts: Sequence[str] = (), now_ns: int | None = None
    ) -> Picture:
        """Return the clocks whose name matches one of `patterns` and whose host matches one of `hosts`;
        without either, all."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        homes: dict[str, list[str]] = {}
        announced: set[str] = set()
        for clock, host, append_ns in self._nics.values():
            homes.setdefault(clock, []).append(host)
            if now_ns - append_ns < ANNOUNCED_S * 1e9:
                announced.add(clock)
        clocks: list[ClockLine] = []
        shards: list[ShardLine] = []
        suspects: list[SuspectLine] = []
        for shard, window in sorted(self.newest().items()):
            parts = self._windows[shard][window]
            records = [parts[part][0] for part in sorted(parts)]
            age_s = max(0.0, (now_ns - max(append_ns for _, append_ns in parts.values())) / 1e9)
            domains = sorted({record["domain"] for record in records if record["clocks"]})
            shards.append(
                ShardLine(
                    shard, window, records[0]["window_end_ns"], age_s, records[0]["reference"], tuple(domains)
                )
            )
            for record in records:
                clocks += [self._line(shard, record["domain"], row, homes) for row in record["clocks"]]
                suspects += [SuspectLine(shard, **row) for row in record["suspects"]]
        there = {line.clock for line in clocks}
        clocks += [
            ClockLine(clock, tuple(sorted(set(of))), len(of), "ABSENT")
            for clock, of in homes.items()
            if clock in announced - there
        ]
        chosen = [line for line in clocks if _chosen(line, patterns, hosts)]
        if patterns or hosts:
            names = {line.clock for line in chosen}
            ours = {nic for nic, (clock, _, _) in self._nics.items() if clock in names} | names
            suspects = [row for row in suspects if row.prober in ours or row.peer in ours]
        chosen.sort(key=lambda line: (STATES.index(line.state), -_bound(line), natural(line.clock)))
        suspects.sort(key=lambda row: (-abs(row.asymmetry_ns), row.prober, row.peer))
        return Picture(chosen, suspects, shards, self.since_ns, self.unreadable)

    def _line(
        self, shard: str, domain: str, row: ClockState, homes: Mapping[str, Sequence[str]]
    ) -> ClockLine:
        of = homes.get(row["clock"], ())
        _, event, event_ns, event_at_ns = self._events.get((shard, row["clock"]), (0, None, None, None))
        return ClockLine(
            row["clock"],
            tuple(sorted(set(of))) or (row["clock"].partition("/")[0],),
            len(of),
            row["state"],
            shard,
            domain,
            row["offset_ns"],
            row["drift_ppb"],
            row["drift_sigma_ppb"],
            row["bound_ns"],
            row["pairs"],
            row["residual_ns"],
            event,
            event_ns,
            event_at_ns,
        )


def _parts(parts: Mapping[int, tuple[ClockOffsets, int]]) -> int:
    return next(iter(parts.values()))[0]["parts"]


def _chosen(line: ClockLine, patterns: Sequence[str], hosts: Sequence[str]) -> bool:
    named = not patterns or any(fnmatchcase(line.clock, pattern) for pattern in patterns)
    there = not hosts or any(fnmatchcase(host, pattern) for host in line.hosts for pattern in hosts)
    return named and there


def _bound(line: ClockLine) -> float:
    return line.bound_ns or 0.0


# ------------------------------------------------------------------------------------------ the log


class Reader:
    """Follows both topics without a group and fills a `Fleet`."""

    def __init__(self, bootstrap: str, registry: codec.Registry | None = None) -> None:
        """Create the client without connecting."""
        self.fleet = Fleet()
        self._registry = registry
        self._reader = TopicReader(bootstrap, {INVENTORY: BEGINNING})

    def close(self) -> None:
        """Leave the log."""
        self._reader.close()

    def catch_up(self, since_s: float) -> None:
        """Read the inventory and the offsets of the last `since_s`, else the last ones that exist.

        Raises ValueError if the log does not answer or a topic does not exist.
        """
        self._reader.starts[CLOCK_OFFSETS] = back(since_s)
        messages = self._to_the_end()
        if not messages:
            self._reader.starts[CLOCK_OFFSETS] = tail(LAST_MESSAGES)
            messages = self._to_the_end()
        self._decode_newest_first(messages)

    def _to_the_end(self) -> list[Message]:
        """Connect and return the messages of `fabric.clock.offsets` up to its end; take the inventory at
        once."""
        self._reader.connect()
        found = []
        for message in self._reader.read_to_end():
            if message.topic == INVENTORY.name:
                self._take(message)
            else:
                found.append(message)
        return found

    def _decode_newest_first(self, messages: list[Message]) -> None:
        messages.sort(key=lambda message: message.append_ns, reverse=True)
        states = 0
        for message in messages:
            states += self._take(message)
            if states > STATES_DECODED:
                break

    def follow(self, wait_s: float) -> bool:
        """Process messages for `wait_s`; return whether a window of clocks arrived."""
        offsets = False
        for message in self._reader.poll(wait_s):
            offsets |= message.topic == CLOCK_OFFSETS.name
            self._take(message)
        return offsets

    def _take(self, message: Message) -> int:
        """Take one message; return the number of clocks in it."""
        if message.topic == INVENTORY.name and message.value is None:
            self.fleet.add_nic(message.key, None, 0)
            return 0
        if message.value is None:
            return 0
        try:
            if message.topic == INVENTORY.name:
                nic = codec.decode(message.value, INVENTORY.type, self._registry)
                self.fleet.add_nic(nic["nic"], nic, message.append_ns)
                return 0
            record = codec.decode(message.value, CLOCK_OFFSETS.type, self._registry)
        except codec.BadRecord:
            self.fleet.unreadable += 1
            return 0
        self.fleet.add(record, message.append_ns)
        return len(record["clocks"])


# ---------------------------------------------------------------------------------------------- display


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of a call: globs of clocks and hosts, number of lines, interval of events."""

    patterns: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    worst: int | None = None
    everything: bool = False
    since_s: float = 60.0
    as_json: bool = field(default=False, kw_only=True)

    def lines(self, clocks: int) -> int:
        """Return how many of `clocks` are listed."""
        if self.everything or (self.worst is None and clocks <= ALL_UP_TO):
            return clocks
        return WORST if self.worst is None else self.worst


def main(bootstrap: str, wanted: Wanted, *, registry: codec.Registry | None = None) -> Picture:
    """Print the clocks once and return them. Raises ValueError where the log cannot be read."""
    reader = Reader(bootstrap, registry)
    try:
        reader.catch_up(wanted.since_s)
    finally:
        reader.close()
    found = reader.fleet.picture(wanted.patterns, wanted.hosts)
    if wanted.as_json:
        print(as_json(found))
    else:
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console = Console(width=200)
        console.print(draw(found, wanted), highlight=False)
    return found


def watch(bootstrap: str, wanted: Wanted, *, registry: codec.Registry | None = None) -> None:
    """Show the clocks live until SIGINT; a line a window where stdout is no terminal.

    Raises ValueError where the log cannot be read at the start; a log that goes away later shows as age.
    """
    from rich.console import Console

    console = Console()
    reader = Reader(bootstrap, registry)
    try:
        reader.catch_up(wanted.since_s)
        if wanted.as_json or not console.is_terminal:
            _watch_lines(reader, wanted)
        else:
            _watch_screen(reader, wanted, console)
    except KeyboardInterrupt:
        return
    finally:
        reader.close()


def _watch_lines(reader: Reader, wanted: Wanted) -> None:
    shown: dict[str, int] | None = None
    while True:
        newest = reader.fleet.newest()
        if newest != shown:
            shown = newest
            found = reader.fleet.picture(wanted.patterns, wanted.hosts)
            print(as_json(found) if wanted.as_json else plain(found), flush=True)
        reader.follow(0.5)


def _watch_screen(reader: Reader, wanted: Wanted, console: Any) -> None:
    from rich.live import Live

    def drawn() -> RenderableType:
        found = reader.fleet.picture(wanted.patterns, wanted.hosts)
        max_rows = max(3, console.size.height - 8 - min(len(found.suspects) + 2, SUSPECTS_SHOWN + 3))
        return draw(found, wanted, max_rows)

    with Live(drawn(), console=console, auto_refresh=False, screen=True) as live:
        while True:
            reader.follow(0.5)
            live.update(drawn(), refresh=True)


def as_json(found: Picture) -> str:
    """Return the whole picture as one line of JSON: summary, shards, clocks, suspects."""
    return json.dumps(
        {
            "summary": found.summary(),
            "events_since_ns": found.since_ns,
            "unreadable": found.unreadable,
            "shards": [asdict(line) for line in found.shards],
            "clocks": [asdict(line) for line in found.clocks],
            "suspects": [asdict(line) for line in found.suspects],
        },
        allow_nan=False,
    )


def plain(found: Picture) -> str:
    """Return the fleet's figures as one line."""
    return "; ".join(text for text, _ in _summary(found))


def draw(found: Picture, wanted: Wanted, max_rows: int | None = None) -> RenderableType:
    """Return the figures of the fleet, the worst clocks and the suspect pairs for rich."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(text, style) for text, style in _summary(found)]
    if found.clocks:
        count = wanted.lines(len(found.clocks))
        count = count if max_rows is None else min(count, max_rows)
        parts += [Text(""), _clock_table(found, count)]
        more = len(found.clocks) - count
        if more > 0:
            hint = "" if max_rows is not None else "; --all lists them"
            parts.append(Text(f"and {more:,} more clocks, no worse than these{hint}", "dim"))
    if found.suspects:
        parts += [Text(""), _suspect_table(found.suspects)]
        more = len(found.suspects) - SUSPECTS_SHOWN
        if more > 0:
            parts.append(Text(f"and {more:,} more suspect pairs, less asymmetric; --json lists them", "dim"))
    return Group(*parts)


def _summary(found: Picture) -> list[tuple[str, str]]:
    figures = found.summary()
    if not found.clocks:
        text = (
            "no clock matches the given names"
            if found.shards
            else (
                f"no window of clocks in {CLOCK_OFFSETS.name} yet: a worker must run, and two hosts must "
                "probe each other"
            )
        )
        return [(text, "yellow")]
    states = ", ".join(
        f"{figures[state.lower()]:,} {state}" for state in reversed(STATES) if figures[state.lower()]
    )
    lines = [(f"{figures['clocks']:,} clock{'s' * (figures['clocks'] != 1)}: {states}", "bold")]
    if figures["bound_worst_ns"] is not None:
        lines.append(
            (
                f"error bound {_ns(figures['bound_median_ns'])} in the median, worst "
                f"{_ns(figures['bound_worst_ns'])} at {figures['bound_worst_clock']}",
                "",
            )
        )
    if not found.shards:
        lines.append((f"no window of clocks in {CLOCK_OFFSETS.name} yet: a worker must run", "yellow"))
        return lines
    follows = " and ".join(
        "the ensemble of all clocks" if name == "ensemble" else f"clock {name}"
        for name in figures["references"]
    )
    domains = figures["domains"]
    text = f"fabric time follows {follows}; {domains} domain{'s' * (domains != 1)}"
    if domains > 1:
        text += " whose clocks cannot be compared"
    lines.append((text, "yellow" if domains > len(found.shards) else ""))
    suspects, age_s = figures["suspects"], seconds_text(found.age_s or 0.0)
    text = f"{suspects:,} suspect pair{'s' * (suspects != 1)}; newest window {age_s} ago"
    lines.append((text, ""))
    for line in found.shards:
        if line.age_s > MAX_AGE_S:
            age = seconds_text(line.age_s)
            lines.append((f"shard {line.shard}: what you see is its last state, {age} old", "red"))
    if found.unreadable:
        lines.append((f"{found.unreadable:,} records could not be read", "yellow"))
    return lines


def _clock_table(found: Picture, count: int) -> RenderableType:
    from rich.table import Table

    several = len({line.domain for line in found.clocks if line.domain is not None}) > 1
    table = Table(box=None, pad_edge=False)
    table.add_column("clock", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for title in ("+- bound", "offset", "drift ppm", "+- sigma", "pairs", "residual"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("last event (UTC)", no_wrap=True)
    if several:
        table.add_column("domain", no_wrap=True)
    for line in found.clocks[:count]:
        pairs = "-" if line.pairs is None else str(line.pairs)
        residual = _ns(line.residual_ns if line.pairs else None)
        cells: list[str | Text] = [
            line.clock,
            _state(line.state),
            _ns(line.bound_ns),
            _signed_ns(line.offset_ns),
            _ppm(line.drift_ppb, "+"),
            _ppm(line.drift_sigma_ppb),
            pairs,
            residual,
            event_text(line),
        ]
        table.add_row(*cells, *([line.domain or "-"] if several else []))
    return table


def _suspect_table(suspects: Iterable[SuspectLine]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("suspect pair", no_wrap=True)
    for title in ("asymmetry", "+- sigma", "weight left"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in list(suspects)[:SUSPECTS_SHOWN]:
        table.add_row(
            f"{row.prober} > {row.peer}", _signed_ns(row.asymmetry_ns), _ns(row.sigma_ns), f"{row.weight:.0%}"
        )
    return table


_EVENT_FIGURE: Final[Mapping[str, Callable[[float], str]]] = {
    "STEP": lambda ns: f" {_signed_ns(ns)}",
    "MERGED": lambda ns: f" {_signed_ns(ns)}",
    "RATE_CHANGE": lambda ns: f" {ns:+,.1f} ppb",
    "FALSETICKER": lambda ns: f" {_ns(ns)} rms",
}


def event_text(line: ClockLine) -> str:
    """Return a clock's last event as '14:02:11 STEP +1.50 us' (UTC); '-' where none was seen."""
    if line.event is None or line.event_at_ns is None:
        return "-"
    at = datetime.fromtimestamp(line.event_at_ns / 1e9, UTC)
    figure = _EVENT_FIGURE.get(line.event)
    return f"{at:%H:%M:%S} {line.event}{'' if figure is None else figure(line.event_ns or 0.0)}"


def _state(state: str) -> Text:
    from rich.text import Text

    return Text(state, _COLOURS.get(state, "red"))


def _ns(ns: float | None) -> str:
    """Return a time as people read it in a terminal: '3.21 ns', '1.50 us'; '-' for None."""
    return "-" if ns is None else delay_text(ns).replace("µ", "u")


def _signed_ns(ns: float | None) -> str:
    return "-" if ns is None else f"{'+' if ns > 0 else ''}{_ns(ns)}"


def _ppm(ppb: float | None, sign: str = "") -> str:
    return "-" if ppb is None else f"{ppb / 1e3:{sign}.4f}"
