"""Shows links and alerts in the terminal: links that are DOWN, GREY or FLAPPING, and active alerts.

The command reads `fabric.link-health` and `fabric.alerts` from the log. It prints tables with the worst
first, JSON, a line per event, or a verdict for scripts. It needs neither history nor the web page. Without
fresh evidence it names the missing part, and never reports that all is well.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, cast

from fabrictime.commands.screen import keep_live, table_of, terminal
from fabrictime.state.evidence import Verdict
from fabrictime.state.evidence_reader import EvidenceSettings, EvidenceWatch
from schemas import codec
from schemas.ids import natural
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.records import AlertState, LinkHealth, LinkState, Severity
from schemas.topics import ALERTS, LINK_HEALTH, R, Topic
from schemas.units import seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN: Final = 40
_STATES: Final = (LinkState.DOWN, LinkState.GREY, LinkState.FLAPPING, LinkState.UP, LinkState.UNKNOWN)
_SEVERITIES: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_COLOURS: Final = {
    "DOWN": "red",
    "GREY": "yellow",
    "FLAPPING": "magenta",
    "UP": "green",
    "CRITICAL": "red",
    "WARNING": "yellow",
    "RAISED": "red",
    "CLEARED": "green",
}


class Board(Generic[R]):
    """The newest record of each link-health subject or alert; returns them as rows. Does no I/O."""

    def __init__(self, kind: Kind[R]) -> None:
        self.kind = kind
        self.unreadable = 0
        self._records: dict[str, R] = {}

    def take(self, key: str, record: R | None) -> bool:
        """Process a record of the topic; None is the tombstone of `key`. Return whether the board changed."""
        if record is None:
            return self._records.pop(key, None) is not None
        name, number = self.kind.key(record), self.kind.number(record)
        previous = self._records.get(name)
        if previous is not None and self.kind.number(previous) > number:
            return False
        self._records[name] = record
        return previous is None or self.kind.number(previous) != number

    def rows(self, patterns: Sequence[str] = (), *, everything: bool = False) -> list[R]:
        """Return the records of unhealthy subjects, the worst first; with `everything`, of all subjects.

        `patterns`, if any, select subjects by name.
        """
        rows = [
            r
            for r in self._records.values()
            if (everything or self.kind.wrong(r))
            and (not patterns or _is_named(self.kind.names(r), patterns))
        ]
        return sorted(rows, key=self.kind.order)


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """The differences of `links` and `alerts`: topic, functions of records, columns, line if all is well."""

    topic: Topic[R]
    key: Callable[[R], str]
    number: Callable[[R], int]
    names: Callable[[R], list[str]]
    at_ns: Callable[[R], int]
    wrong: Callable[[R], bool]
    order: Callable[[R], Any]
    line: Callable[[R], str]
    columns: tuple[tuple[str, Callable[[R], str]], ...]
    fine: str


def _is_named(names: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, f"*{pattern}*") for name in names for pattern in patterns)


def _at(at_ns: int | None) -> str:
    return "-" if at_ns is None else f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%m-%d %H:%M:%S}"


def _loss(record: LinkHealth) -> str:
    largest = record["max_packet_bytes"]
    above = [] if largest is None else [f"all above {largest:,} bytes"]
    if record["loss_rate"] is not None:
        low, high = record["loss_rate_low"], record["loss_rate_high"]
        lossy = [
            str(traffic_class["dscp"]) for traffic_class in record["classes"] if traffic_class["is_lossy"]
        ]
        of_class = f" of DSCP {', '.join(lossy)}" if lossy else ""
        above.insert(0, f"{record['loss_rate']:.1%} ({low:.1%} to {high:.1%}){of_class}")
    return ", ".join(above) or "-"


KINDS: Final[Mapping[str, Kind[Any]]] = {
    "links": Kind(
        LINK_HEALTH,
        lambda r: r["subject"],
        lambda r: r["seq"],
        lambda r: [r["subject"], *r["links"]],
        lambda r: r["evaluated_ns"],
        lambda r: r["state"] != LinkState.UP,
        lambda r: (_STATES.index(r["state"]), -r["since_ns"], natural(r["subject"])),
        lambda r: f"{_at(r['evaluated_ns'])} {r['state']} {r['text']}",
        (
            ("state", lambda r: r["state"]),
            ("subject", lambda r: r["subject"]),
            ("since (UTC)", lambda r: _at(r["since_ns"])),
            ("flaps", lambda r: f"{r['flaps_hour']} in 1 h"),
            ("loss", _loss),
            ("paths dead / living", lambda r: f"{r['paths_dead']} / {r['paths_living']}"),
            ("or", lambda r: ", ".join(r["candidates"]) or "-"),
            ("text", lambda r: r["text"]),
        ),
        "no link, NIC or host is known to be anything but UP",
    ),
    "alerts": Kind(
        ALERTS,
        lambda r: r["alert_id"],
        lambda r: r["update"],
        lambda r: [r["subject"], *r["links"], *r["grouped"], *r["nics"]],
        lambda r: r["updated_ns"],
        lambda r: r["state"] == AlertState.RAISED,
        lambda r: (
            r["state"] != AlertState.RAISED,
            _SEVERITIES.index(r["severity"]),
            -r["raised_ns"],
            r["alert_id"],
        ),
        lambda r: f"{_at(r['updated_ns'])} {r['state']} {r['severity']} {r['kind']} {r['text']}",
        (
            ("severity", lambda r: r["severity"] if r["state"] == AlertState.RAISED else r["state"]),
            ("kind", lambda r: r["kind"]),
            ("subject", lambda r: r["subject"]),
            ("raised (UTC)", lambda r: _at(r["raised_ns"])),
            ("cleared", lambda r: _at(r["cleared_ns"])),
            ("with it", lambda r: str(len(r["grouped"])) if r["grouped"] else "-"),
            ("jobs", lambda r: ", ".join(r["jobs"]) or "-"),
            ("text", lambda r: r["text"]),
        ),
        "no alert is active",
    ),
}


# ------------------------------------------------------------------------------------------ the log


class Reader(Generic[R]):
    """Reads one topic without a consumer group and fills a `Board`."""

    def __init__(
        self, cluster: KafkaSettings | str, kind: Kind[R], registry: codec.Registry | None = None
    ) -> None:
        """Connect. Raises ValueError if the log does not answer or the topic does not exist."""
        self.board = Board(kind)
        self._registry = registry
        self._reader = TopicReader.open(cluster, {kind.topic: BEGINNING})

    def close(self) -> None:
        """Close the connection to the log."""
        self._reader.close()

    def catch_up(self) -> None:
        """Read to the topic's end; decode each key's newest record. Raises ValueError without an answer."""
        newest = {message.key: message for message in self._reader.read_to_end()}
        for message in newest.values():
            self._take(message)

    def follow(self, wait_s: float) -> list[R]:
        """Process the messages that arrive within `wait_s`. Return the records that changed the rows."""
        records = (self._take(message) for message in self._reader.poll(wait_s))
        return [record for record in records if record is not None]

    def _take(self, message: Message) -> R | None:
        record = None
        if message.value is not None:
            try:
                record = message.decoded(self.board.kind.topic, self._registry)
            except codec.BadRecord:
                self.board.unreadable += 1
                return None
        return record if self.board.take(message.key, record) else None


# ---------------------------------------------------------------------------------------------- display


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of `links` and `alerts`: names or globs, whether to show healthy or cleared ones, JSON."""

    patterns: tuple[str, ...] = ()
    everything: bool = False
    as_json: bool = field(default=False, kw_only=True)


def main(evidence: EvidenceSettings, kind: Kind[R], query: Wanted) -> list[str]:
    """Print the unhealthy subjects once. Return a line for each of them, and a line if evidence is missing.

    Raises ValueError if the log cannot be read.
    """
    with EvidenceWatch(evidence) as watching:
        with contextlib.closing(Reader(evidence.kafka, kind, evidence.kafka.registry())) as reader:
            reader.catch_up()
        verdict = watching.await_verdict()
    rows = reader.board.rows(query.patterns, everything=query.everything)
    if query.as_json:
        print(as_json(rows, reader.board.unreadable, verdict))
    else:
        terminal(250).print(draw(reader.board, query, verdict))
    wrong = [str(cast("Mapping[str, Any]", row)["text"]) for row in rows if kind.wrong(row)]
    return wrong if verdict.is_fresh else [*wrong, verdict.line]


def watch(evidence: EvidenceSettings, kind: Kind[R], query: Wanted) -> None:
    """Show the unhealthy subjects live until SIGINT. If stdout is no terminal, print a line per change.

    Raises ValueError if the log cannot be read at the start.
    """
    console = terminal(250)
    with (
        contextlib.closing(Reader(evidence.kafka, kind, evidence.kafka.registry())) as reader,
        EvidenceWatch(evidence) as watching,
        contextlib.suppress(KeyboardInterrupt),
    ):
        reader.catch_up()
        if query.as_json or not console.is_terminal:
            _watch_lines(reader, query, watching)

        def drawn() -> RenderableType:
            return draw(reader.board, query, watching.verdict(), max(3, console.size.height - 5))

        keep_live(console, drawn, lambda: reader.follow(0.25))


def _watch_lines(reader: Reader[R], query: Wanted, watching: EvidenceWatch) -> NoReturn:
    """Print a line for each change; on stderr, print a line whenever missing evidence begins or ends."""
    for row in reader.board.rows(query.patterns, everything=query.everything):
        _print_line(row, reader.board.kind, query)
    was_fresh = True
    while True:
        follow(reader, query)
        verdict = watching.verdict()
        if verdict.is_checked and verdict.is_fresh != was_fresh:
            was_fresh = verdict.is_fresh
            print(verdict.line or "evidence is fresh again", file=sys.stderr, flush=True)


def follow(reader: Reader[R], query: Wanted, wait_s: float = 0.25) -> None:
    """Print the changes that arrive within `wait_s`, one line each."""
    for record in reader.follow(wait_s):
        if not query.patterns or _is_named(reader.board.kind.names(record), query.patterns):
            _print_line(record, reader.board.kind, query)


def _print_line(record: R, kind: Kind[R], query: Wanted) -> None:
    print(json.dumps(record, allow_nan=False) if query.as_json else kind.line(record), flush=True)


def as_json(rows: Sequence[object], unreadable: int, verdict: Verdict) -> str:
    """Return one line of JSON: the rows with all fields of their records, and the missing evidence."""
    output = {"unreadable": unreadable, "missing": list(verdict.missing), "rows": list(rows)}
    return json.dumps(output, allow_nan=False)


def draw(board: Board[R], query: Wanted, verdict: Verdict, max_rows: int = SHOWN) -> RenderableType:
    """Return a rich renderable: the counts per state, the worst subjects, and the missing evidence."""
    from rich.console import Group
    from rich.text import Text

    rows = board.rows(query.patterns, everything=query.everything)
    if verdict.is_fresh:
        return _table(board, query, rows, max_rows) if rows else Text(board.kind.fine, "green")
    line = Text(verdict.line, "red" if verdict.missing else "yellow")
    if not rows:
        return line
    return Group(line, Text("the last known state:", "dim"), _table(board, query, rows, max_rows))


def _table(board: Board[R], query: Wanted, rows: Sequence[R], max_rows: int) -> RenderableType:
    """Return a rich renderable of the counts per state and the rows."""
    from rich.console import Group
    from rich.text import Text

    first = board.kind.columns[0][1]
    counts: dict[str, int] = {}
    for row in rows:
        counts[first(row)] = counts.get(first(row), 0) + 1
    parts: list[RenderableType] = [Text(", ".join(f"{n:,} {name}" for name, n in counts.items()), "bold")]
    visible_rows = rows if query.everything and max_rows == SHOWN else rows[:max_rows]
    lines = []
    for row in visible_rows:
        cells = [Text(cell(row)) for _, cell in board.kind.columns]
        cells[0].stylize(_COLOURS.get(cells[0].plain, ""))
        lines.append(cells)
    titles = [title for title, _ in board.kind.columns]
    parts.append(table_of(titles, lines, wrapped=("subject", "or", "jobs", "text")))
    if len(rows) > len(visible_rows):
        parts.append(Text(f"and {len(rows) - len(visible_rows):,} more, no worse than these", "dim"))
    if board.unreadable:
        parts.append(Text(f"{board.unreadable:,} records could not be read", "yellow"))
    oldest_s = time.time() - min(board.kind.at_ns(row) for row in rows) / 1e9
    parts.append(Text(f"the oldest of these was judged {seconds_text(max(0.0, oldest_s))} ago", "dim"))
    return Group(*parts)
