"""Replays alert detection over an interval of the log and compares with the published alerts.

The replay reads the inputs of alerts from as far back as a new owner would, and `fabric.alerts`. The result
is a line per alert and per difference. Nothing is published. Beyond the compaction lag (24 h) the inputs are
only as complete as the log.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from fabrictime.commands.links import KINDS
from fabrictime.state.units import seconds_text
from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.kafka.reader import SILENT_S, LogUnavailable, TopicReader, since
from schemas.kafka.settings import KafkaSettings
from schemas.records import Alert
from schemas.topics import ALERTS, CLOCK_OFFSETS, CONFIG, DELAYS, LINK_HEALTH, LINKS, TOPICS, Topic
from schemas.topology import Topology
from streams.alerts.ordered_inputs import AlertInputs, read_from
from streams.runtime.live_config import LiveConfig

__all__ = [
    "Difference",
    "LogReader",
    "Replayed",
    "Span",
    "as_json",
    "compare",
    "lines_of",
    "main",
    "parse_time",
    "read_all",
    "shown",
]

R = TypeVar("R")
Alerts = dict[tuple[str, int], tuple[Alert, int]]
"""(alert id, update) to the record and its time, ns of append time."""

MS: Final = 1_000_000
S: Final = 1_000_000_000
AFTER_NS: Final = 10 * S
"""ns after the end within which a worker must have published its alerts."""
EDGE_NS: Final = 2 * S
"""ns before the end in which alerts may not have been published yet."""
AHEAD_NS: Final = 10 * S
"""ns by which one partition may be read ahead of the others; messages ahead wait in memory."""
STEP_NS: Final = S
"""Resolution of the evaluation times."""
CHECK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Span:
    """A time of the log, ns of append time."""

    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of the replay. `fields`: name to (as published, as replayed); empty if one of both does
    not exist."""

    alert_id: str
    update: int
    kind: str
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def line(self) -> str:
        """Return it as one line."""
        more = "; ".join(
            f"{name} {live!r}, replayed {again!r}" for name, (live, again) in self.fields.items()
        )
        return f"{self.alert_id} update {self.update}: {self.kind}" + (f": {more}" if more else "")


@dataclass(slots=True)
class Replayed:
    """The result of a replay."""

    span: Span
    alerts: list[Alert]
    """Alerts of the interval as replayed, in the order of their evaluation."""
    differences: list[Difference]
    published: int
    messages: int
    took_s: float


def parse_time(text: str, now_s: float) -> int:
    """Return ns since the Unix epoch: of `2026-03-01T12:00:00` (UTC where it names no zone), of seconds since
    the epoch, of `10m` for ten minutes ago, or of `now`. Raises ValueError."""
    from fabrictime.commands.options import duration_s

    text = text.strip()
    if text == "now":
        return round(now_s * 1e9)
    if text[-1:] in "smh":
        return round((now_s - duration_s(text)) * 1e9)
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"time {text!r}: expected 2026-03-01T12:00:00, seconds since the epoch, 10m for ten minutes"
                " ago, or now"
            ) from None
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e9)
    if not 0 <= seconds < 4e9:
        raise ValueError(f"time {text!r}: expected 0 to 4e9 seconds since the epoch")
    return round(seconds * 1e9)


def compare(span: Span, live: Alerts, again: Alerts) -> list[Difference]:
    """Return the differences between published and replayed alerts, by identity; alerts outside the interval
    only help to find counterparts."""
    found = []
    for identity in sorted(live.keys() | again.keys()):
        was, replayed = live.get(identity), again.get(identity)
        if replayed is None:
            if was is not None and span.from_ns <= was[1] < span.to_ns:
                found.append(Difference(*identity, "was published, and is not replayed"))
        elif was is None:
            if span.from_ns <= replayed[1] < span.to_ns - EDGE_NS:
                found.append(Difference(*identity, "is replayed, and was not published"))
        elif was[0] != replayed[0] and (span.from_ns <= was[1] < span.to_ns):
            new = dict(replayed[0])
            fields = {
                name: (value, new.get(name)) for name, value in was[0].items() if value != new.get(name)
            }
            found.append(Difference(*identity, "differs", fields))
    return found


class LogReader:
    """Reads partitions from given times on, evenly, and reports up to when all of them have been read."""

    def __init__(self, cluster: KafkaSettings | str) -> None:
        self._reader = TopicReader(cluster, {})

    def close(self) -> None:
        """Leave the log."""
        self._reader.close()

    def read(self, since_ns: Mapping[str, int], to_ns: int) -> Iterator[tuple[list[Message], int]]:
        """Yield (messages, append time up to which every partition has been read), up to `to_ns`.

        `since_ns`: start time of each topic. Raises ValueError if the log does not answer.
        """
        reader = self._reader
        reader.starts = {TOPICS[topic]: since(from_ns) for topic, from_ns in since_ns.items()}
        reader.connect()
        read = {place: since_ns[place[0]] for place in reader.assigned}
        paused: set[Place] = set()
        received_s = time.monotonic()
        while read:
            found = []
            for message in reader.poll(0.1, 1000):
                received_s = time.monotonic()
                if message.place not in read:
                    continue
                if message.append_ns >= to_ns:
                    del read[message.place]
                    reader.pause([message.place])
                    continue
                read[message.place] = max(read[message.place], message.append_ns)
                found.append(message)
            for place in read.keys() - reader.behind:
                del read[place]
                received_s = time.monotonic()
            mark_ns = min(read.values(), default=to_ns)
            ahead = {place for place in read if read[place] > mark_ns + AHEAD_NS}
            if ahead - paused:
                reader.pause(ahead - paused)
            if behind := (paused & read.keys()) - ahead:
                reader.resume(behind)
            paused = ahead
            yield found, mark_ns
            if time.monotonic() - received_s > SILENT_S:
                raise LogUnavailable(f"log: no answer for {SILENT_S:g} s")


def read_all(
    cluster: KafkaSettings | str,
    topic: Topic[R],
    to_ns: int,
    registry: codec.Registry | None,
    since_ns: int = 0,
) -> Iterator[tuple[Message, R]]:
    """Yield a topic's records of an interval with their messages; unreadable ones are left out."""
    log = LogReader(cluster)
    try:
        for messages, _ in log.read({topic.name: since_ns}, to_ns):
            for message in messages:
                if message.value is not None:
                    with contextlib.suppress(codec.BadRecord):
                        yield message, message.decoded(topic, registry)
    finally:
        log.close()


def main(
    cluster: KafkaSettings | str,
    span: Span,
    *,
    topology: Topology | None = None,
    registry: codec.Registry | None = None,
    window_ns: int = S,
    default_shard: str = "fabric",
    progress: Callable[[int, int], None] = lambda messages, at_ns: None,
) -> Replayed:
    """Replay an interval as a worker would that takes over at its start, and compare.

    `progress` gets the number of messages and the time reached. Raises ValueError if the log cannot be read.
    """
    began_s = time.monotonic()
    past: dict[str, Alert] = {}
    live: Alerts = {}
    for message, record in read_all(cluster, ALERTS, span.to_ns + AFTER_NS, registry):
        live[record["alert_id"], record["update"]] = (record, message.append_ns)
        if message.append_ns < span.from_ns:
            known = past.get(record["alert_id"])
            if known is None or known["update"] <= record["update"]:
                past[record["alert_id"]] = record
    config = LiveConfig()
    for message, _ in read_all(cluster, CONFIG, span.from_ns, registry):
        with contextlib.suppress(codec.BadRecord):
            config.take(message.key.encode(), message.value, registry, message.append_ns)
    longest_s = max((rule["for_s"] for rule in config.latency_rules()), default=0.0)
    since = read_from(span.from_ns, config.thresholds(), longest_s)
    again: Alerts = {}
    alerts: list[Alert] = []
    taken, looked_s = 0, 0.0
    consumer: AlertInputs | None = None
    waiting: list[Message] = []
    log = LogReader(cluster)

    def evaluate(consumer: AlertInputs, to_ns: int) -> None:
        for _, record in consumer.evaluate(to_ns) + consumer.evaluate_delays(to_ns):
            again[record["alert_id"], record["update"]] = (record, to_ns)
            if to_ns > span.from_ns:
                alerts.append(record)

    def begin() -> AlertInputs:
        made = AlertInputs(
            past.values(),
            default_shard=default_shard,
            topology=topology,
            registry=registry,
            window_ns=window_ns,
            events_from_ns=since[LINKS.name],
            delays_from_ns=since[DELAYS.name],
            log_offset_ns=_log_offset_ns(waiting, registry),
        )
        last: dict[str, Message] = {}
        for message in sorted(waiting):
            if message.topic == LINK_HEALTH.name and message.append_ns < since[LINK_HEALTH.name]:
                last[message.key] = message
            else:
                made.add(message)
        for message in last.values():
            made.add(message)
        return made

    evaluated_ns = span.from_ns
    try:
        for messages, mark_ns in log.read(since | {LINK_HEALTH.name: 0}, span.to_ns):
            taken += len(messages)
            if consumer is None:
                waiting += messages
                if mark_ns >= span.from_ns:
                    consumer = begin()
                    evaluate(consumer, evaluated_ns)
            else:
                for message in messages:
                    consumer.add(message)
            while consumer is not None and evaluated_ns + STEP_NS < mark_ns:
                evaluated_ns += STEP_NS
                evaluate(consumer, evaluated_ns)
            if time.monotonic() - looked_s >= CHECK_S:
                looked_s = time.monotonic()
                progress(taken, mark_ns)
        if consumer is None:
            consumer = begin()
            evaluate(consumer, evaluated_ns)
        evaluate(consumer, span.to_ns - 1)
    finally:
        log.close()
    progress(taken, span.to_ns)
    return Replayed(
        span,
        alerts,
        compare(span, live, again),
        sum(span.from_ns <= at_ns < span.to_ns for _, at_ns in live.values()),
        taken,
        time.monotonic() - began_s,
    )


def _log_offset_ns(messages: Iterable[Message], registry: codec.Registry | None) -> int:
    """Return fabric time minus append time, from the first clocks."""
    for message in sorted(m for m in messages if m.topic == CLOCK_OFFSETS.name):
        with contextlib.suppress(codec.BadRecord):
            if message.value is not None:
                return int(codec.decode(message.value, CLOCK_OFFSETS.record, registry)["log_offset_ns"])
    return 0


# ---------------------------------------------------------------------------------------------- display


def as_json(found: Replayed) -> str:
    """Return the result as one line of JSON."""
    return json.dumps(
        {
            "from_ns": found.span.from_ns,
            "to_ns": found.span.to_ns,
            "messages": found.messages,
            "took_s": round(found.took_s, 3),
            "published": found.published,
            "alerts": found.alerts,
            "differences": [
                {
                    "alert_id": d.alert_id,
                    "update": d.update,
                    "kind": d.kind,
                    "fields": {name: {"published": a, "replayed": b} for name, (a, b) in d.fields.items()},
                }
                for d in found.differences
            ],
        },
        allow_nan=False,
    )


def lines_of(found: Replayed) -> list[str]:
    """Return the result as lines: each alert of the interval, each difference, the total."""
    lines = [KINDS["alerts"].line(record) for record in found.alerts]
    lines += [f"DIFFERENT {each.line()}" for each in found.differences]
    span_s = (found.span.to_ns - found.span.from_ns) / S
    verdict = f"{len(found.differences)} differ" if found.differences else "all the same"
    lines.append(
        f"{seconds_text(span_s)} of the log, {found.messages:,} messages in {found.took_s:.1f} s: "
        f"{found.published} records of alerts were published, {len(found.alerts)} replayed: {verdict}"
    )
    return lines


@contextlib.contextmanager
def shown(span: Span) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr, where that is a terminal, how far a replay has come."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), *Progress.get_default_columns()[1:3], TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=span.to_ns - span.from_ns)

        def progress(messages: int, at_ns: int) -> None:
            done = max(0, min(at_ns, span.to_ns) - span.from_ns)
            bar.update(task, completed=done, description=f"{messages:,} messages")

        yield progress
