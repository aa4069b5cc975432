"""Shows the fleet's clocks in the terminal, read from the log: neither history nor the page is needed.

Inputs are the `ClockOffsets` of the newest windows and the inventory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.clock_table import SUSPECTS_SHOWN, Wanted, as_json, draw, plain
from fabrictime.state.clocks import Fleet, Picture
from schemas import codec
from schemas.kafka.reader import BEGINNING, Message, TopicReader, back, tail
from schemas.kafka.settings import KafkaSettings
from schemas.messages import decode_message
from schemas.topics import CLOCK_OFFSETS, INVENTORY

if TYPE_CHECKING:
    from rich.console import RenderableType

LAST_MESSAGES: Final = 64
"""Messages of each partition that count if none is recent."""
STATES_DECODED: Final = 200_000
"""Clock states that a start decodes at most, the newest first: older events stay unknown in a large fleet."""


class Reader:
    """Follows both topics without a group and fills a `Fleet`."""

    def __init__(self, cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> None:
        """Create the client without connecting."""
        self.fleet = Fleet()
        self._registry = registry
        self._reader = TopicReader(cluster, {INVENTORY: BEGINNING})

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
                nic = decode_message(INVENTORY, message.key, message.value, self._registry)
                self.fleet.add_nic(nic["nic"], nic, message.append_ns)
                return 0
            record = decode_message(CLOCK_OFFSETS, message.key, message.value, self._registry)
        except codec.BadRecord:
            self.fleet.unreadable += 1
            return 0
        self.fleet.add(record, message.append_ns)
        return len(record["clocks"])


def main(cluster: KafkaSettings | str, wanted: Wanted, *, registry: codec.Registry | None = None) -> Picture:
    """Print the clocks once and return them. Raises ValueError where the log cannot be read."""
    reader = Reader(cluster, registry)
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


def watch(cluster: KafkaSettings | str, wanted: Wanted, *, registry: codec.Registry | None = None) -> None:
    """Show the clocks live until SIGINT; a line a window where stdout is no terminal.

    Raises ValueError where the log cannot be read at the start; a log that goes away later shows as age.
    """
    from rich.console import Console

    console = Console()
    reader = Reader(cluster, registry)
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
