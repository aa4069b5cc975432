"""Shows the fleet's clocks in the terminal, read from the log: neither history nor the page is needed.

Inputs are the `ClockOffsets` of the newest windows and the NICs' announcements (the inventory).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.screen import keep_live, terminal
from fabrictime.commands.views.clock_table import SUSPECTS_SHOWN, Wanted, as_json, draw, plain
from fabrictime.state.clocks import Fleet, Picture
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, TopicReader, back, check_reachable, tail
from schemas.kafka.settings import KafkaSettings
from schemas.records import ClockOffsets
from schemas.topics import CLOCK_OFFSETS, INVENTORY

if TYPE_CHECKING:
    from rich.console import RenderableType

LAST_MESSAGES: Final = 64
"""Number of messages of each partition that are read if none is recent."""
FRESH_WAIT_S: Final = 3.0
"""How long a call waits for a new window if the newest one is out of date or in the future, s."""
STATES_DECODED: Final = 200_000
"""Maximum of clock states decoded at the start, newest first; a large fleet's older events stay unknown."""


class Reader:
    """Reads clock offsets and the inventory without a consumer group, and fills a `Fleet`."""

    def __init__(self, cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> None:
        """Create the client without connecting. Raises ValueError if no broker listens at the address."""
        check_reachable(cluster)
        self.fleet = Fleet()
        self._registry = registry
        self._reader = TopicReader(cluster, {INVENTORY: BEGINNING})

    def close(self) -> None:
        """Close the connection to the log."""
        self._reader.close()

    def catch_up(self, since_s: float) -> None:
        """Read the inventory and the clock offsets of the last `since_s`, or the newest if all are older.

        Raises ValueError if the log does not answer or a topic does not exist.
        """
        self._reader.starts[CLOCK_OFFSETS] = back(since_s)
        messages = self._to_the_end()
        if not messages:
            self._reader.starts[CLOCK_OFFSETS] = tail(LAST_MESSAGES)
            messages = self._to_the_end()
        self._decode_newest_first(messages)

    def _to_the_end(self) -> list[Message]:
        """Connect, add the inventory to the fleet, and return all messages of `fabric.clock.offsets`."""
        self._reader.connect()
        messages = []
        for message in self._reader.read_to_end():
            if message.topic == INVENTORY.name:
                self._take_nic(message)
            else:
                messages.append(message)
        return messages

    def _decode_newest_first(self, messages: list[Message]) -> None:
        """Decode each partition's newest messages, up to `STATES_DECODED` clock states, for the fleet.

        The records are added in the log's order, because append times may have stepped back.
        """
        after = Counter(message.place for message in messages)
        ranked: list[tuple[int, Message]] = []
        for message in messages:
            after[message.place] -= 1
            ranked.append((after[message.place], message))
        ranked.sort(key=lambda item: item[0])
        states, records = 0, []
        for _, message in ranked:
            record = self._decoded(message)
            if record is not None:
                records.append((record, message.append_ns))
                states += len(record["clocks"])
            if states > STATES_DECODED:
                break
        for record, append_ns in reversed(records):
            self.fleet.add(record, append_ns)

    def follow(self, wait_s: float) -> bool:
        """Add the messages that arrive within `wait_s`. Return whether any held clock offsets."""
        offsets = False
        for message in self._reader.poll(wait_s):
            if message.topic == INVENTORY.name:
                self._take_nic(message)
                continue
            offsets = True
            record = self._decoded(message)
            if record is not None:
                self.fleet.add(record, message.append_ns, time.monotonic())
        return offsets

    def await_fresh(self, wait_s: float) -> None:
        """Wait for a new window for at most `wait_s`, unless the newest window is up to date."""
        end_s = time.monotonic() + wait_s
        while self.fleet.newest() and time.monotonic() < end_s and not self.fleet.picture().is_fresh:
            self.follow(0.2)

    def _decoded(self, message: Message) -> ClockOffsets | None:
        """Return the record of a clock-offsets message; None for a tombstone or an unreadable message."""
        if message.value is None:
            return None
        try:
            return message.decoded(CLOCK_OFFSETS, self._registry)
        except codec.BadRecord:
            self.fleet.unreadable += 1
            return None

    def _take_nic(self, message: Message) -> None:
        """Add a message of the inventory to the fleet."""
        if message.value is None:
            self.fleet.add_nic(message.key, None, 0)
            return
        try:
            record = message.decoded(INVENTORY, self._registry)
        except codec.BadRecord:
            self.fleet.unreadable += 1
            return
        self.fleet.add_nic(record["nic"], record, message.append_ns)


def main(cluster: KafkaSettings | str, query: Wanted, *, registry: codec.Registry | None = None) -> Picture:
    """Print the clocks once and return them. Raises ValueError if the log cannot be read."""
    with contextlib.closing(Reader(cluster, registry)) as reader:
        reader.catch_up(query.since_s)
        reader.await_fresh(FRESH_WAIT_S)
    picture = reader.fleet.picture(query.patterns, query.hosts)
    if query.as_json:
        print(as_json(picture))
    else:
        terminal(200).print(draw(picture, query))
    return picture


def watch(cluster: KafkaSettings | str, query: Wanted, *, registry: codec.Registry | None = None) -> None:
    """Show the clocks live until SIGINT. If stdout is no terminal, print a line per window.

    Raises ValueError if the log cannot be read at the start. If reading fails later, the shown age grows.
    """
    console = terminal(200)
    with contextlib.closing(Reader(cluster, registry)) as reader, contextlib.suppress(KeyboardInterrupt):
        reader.catch_up(query.since_s)
        if query.as_json or not console.is_terminal:
            _watch_lines(reader, query)
        else:
            _watch_screen(reader, query, console)


def _watch_lines(reader: Reader, query: Wanted) -> None:
    previous: dict[str, int] | None = None
    while True:
        newest = reader.fleet.newest()
        if newest != previous:
            previous = newest
            picture = reader.fleet.picture(query.patterns, query.hosts)
            print(as_json(picture) if query.as_json else plain(picture), flush=True)
        reader.follow(0.5)


def _watch_screen(reader: Reader, query: Wanted, console: Any) -> None:
    def drawn() -> RenderableType:
        picture = reader.fleet.picture(query.patterns, query.hosts)
        max_rows = max(3, console.size.height - 8 - min(len(picture.suspects) + 2, SUSPECTS_SHOWN + 3))
        return draw(picture, query, max_rows)

    keep_live(console, drawn, lambda: reader.follow(0.5))
