"""Prints the decoded records of a topic as they arrive: for each record, a line of JSON or a panel."""

from __future__ import annotations

import base64
import difflib
import json
import math
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NotRequired, TypedDict

from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, END, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.topics import TOPICS

_SHOWN_ELEMENTS: Final = 4
LONGEST_TEXT: Final = 1000


class Line(TypedDict):
    """A message as `tail` prints it."""

    topic: str
    partition: int
    offset: int
    append_ns: int
    key: str | None
    tombstone: NotRequired[bool]
    record: NotRequired[Any]
    error: NotRequired[str]


def main(
    cluster: KafkaSettings | str,
    topic: str,
    *,
    from_beginning: bool,
    limit: int | None,
    as_json: bool,
    registry: codec.Registry | None = None,
) -> None:
    """Print records until `limit`, SIGINT or a closed pipe. Raises ValueError if the topic cannot be read."""
    if topic not in TOPICS:
        close = difflib.get_close_matches(topic, TOPICS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(TOPICS)}"
        raise InputError(f"topic {topic!r}: not in the table of topics, {hint}")
    printed = 0
    try:
        for message in messages(cluster, topic, from_beginning=from_beginning):
            line = describe(message, TOPICS[topic].record, registry)
            if as_json:
                print(json.dumps(line, allow_nan=False), flush=True)
            else:
                _pretty(line)
            printed += 1
            if printed == limit:
                return
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        sys.stderr.close()


def messages(cluster: KafkaSettings | str, topic: str, *, from_beginning: bool) -> Iterator[Message]:
    """Yield the messages of all partitions of a topic, read without a consumer group.

    Raises ValueError if the log does not answer or the topic does not exist.
    """
    with TopicReader.open(cluster, {TOPICS[topic]: BEGINNING if from_beginning else END}) as reader:
        while True:
            yield from reader.poll(0.2, at_once=True)


def describe(message: Message, record: str, registry: codec.Registry | None = None) -> Line:
    """Return a message as a JSON-ready dict: its position in the log, and its `record` or an `error`."""
    line: Line = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "append_ns": message.append_ns,
        "key": None if message.key_bytes is None else message.key,
    }
    if message.value is None:
        return {**line, "tombstone": True}
    try:
        return {**line, "record": _plain(codec.decode(message.value, record, registry))}
    except codec.BadRecord as error:
        return {**line, "error": f"{error.reason}: {error}"}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _pretty(line: Line) -> None:
    from rich.console import Console
    from rich.pretty import Pretty

    when = datetime.fromtimestamp(line["append_ns"] / 1e9, UTC).isoformat(timespec="milliseconds")
    console = Console()
    place = f"{line['topic']}/{line['partition']}@{line['offset']}"
    console.print(f"[bold]{when}[/bold] {place} [cyan]{line['key']}[/cyan]", highlight=False, soft_wrap=True)
    if "error" in line:
        console.print(line["error"], style="red", markup=False)
    elif "record" in line:
        console.print(Pretty(_shortened(line["record"]), max_string=LONGEST_TEXT))


def _shortened(value: Any) -> Any:
    """Return a record with long arrays cut to their first elements and the number of omitted ones."""
    if isinstance(value, dict):
        return {key: _shortened(element) for key, element in value.items()}
    if isinstance(value, list) and len(value) > _SHOWN_ELEMENTS:
        elements = [_shortened(element) for element in value[:_SHOWN_ELEMENTS]]
        return [*elements, f"and {len(value) - _SHOWN_ELEMENTS} more"]
    return value
