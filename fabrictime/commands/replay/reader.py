"""Reads intervals of a log for a replay: all partitions at one pace, with progress on stderr."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from schemas.input_error import InputError
from schemas.kafka.message import Message, Place
from schemas.kafka.reader import END, SILENT_S, LogUnavailable, Start, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.topics import TOPICS, Topic

S: Final = 1_000_000_000
AHEAD_NS: Final = 10 * S
"""How far one partition may be read ahead of the others, ns. Messages that are ahead wait in memory."""
MAX_MESSAGES: Final = 1000
"""Largest number of messages per poll."""
WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of the log's append time, ns."""

    from_ns: int
    to_ns: int

    @property
    def seconds(self) -> float:
        """Length of the interval, s."""
        return (self.to_ns - self.from_ns) / S


def parse_time(text: str, now_s: float) -> int:
    """Return a time as ns since the Unix epoch. Raises ValueError.

    `text` is `2026-03-01T12:00:00` (UTC unless it has a zone), seconds since the epoch, `10m` for ten minutes
    ago, or `now`.
    """
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
            raise InputError(
                f"time {text!r}: expected 2026-03-01T12:00:00, seconds since the epoch, 10m for ten minutes"
                " ago, or now"
            ) from None
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds < 4e9:
        raise InputError(f"time {text!r}: expected 0 to 4e9 seconds since the epoch")
    return round(seconds * 1e9)


def read_interval(
    cluster: KafkaSettings | str, starts: Mapping[Topic, Start], to_ns: int
) -> Iterator[tuple[list[Message], int]]:
    """Yield (messages, append time up to which all partitions have been read), up to `to_ns`.

    Partitions are read at the same pace. Raises ValueError if the log does not answer.
    """
    with TopicReader.open(cluster, starts) as reader:
        read = {place: starts[TOPICS[place[0]]].since_ns or 0 for place in reader.assigned}
        paused: set[Place] = set()
        silent_s = 0.0
        while read:
            messages, places, began_s = list[Message](), len(read), time.monotonic()
            polled = reader.poll(WAIT_S, MAX_MESSAGES)
            for message in polled:
                place, append_ns = message.place, message.append_ns
                if append_ns < to_ns and place in read:
                    read[place] = max(read[place], append_ns)
                    messages.append(message)
                elif read.pop(place, None) is not None:
                    reader.pause([place])
            for place in read.keys() - reader.behind:
                del read[place]
            silent_s = 0.0 if polled or len(read) < places else silent_s + time.monotonic() - began_s
            if silent_s > SILENT_S:
                raise LogUnavailable(f"log: no answer for {SILENT_S:g} s")
            mark_ns = min(read.values(), default=to_ns)
            ahead = {place for place in read if read[place] > mark_ns + AHEAD_NS}
            if ahead - paused:
                reader.pause(ahead - paused)
            if behind := (paused & read.keys()) - ahead:
                reader.resume(behind)
            paused = ahead
            yield messages, mark_ns


def partition_counts(cluster: KafkaSettings | str, topics: Iterable[Topic]) -> Mapping[str, int]:
    """Return the number of partitions by topic name. Raises ValueError if the log does not answer."""
    with TopicReader.open(cluster, dict.fromkeys(topics, END)) as reader:
        return Counter(topic for topic, _ in reader.assigned)


@contextlib.contextmanager
def shown(span: Span) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a replay on stderr, if that is a terminal; yield the function that reports it."""
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
