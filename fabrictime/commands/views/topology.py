"""Shows the traced fabric in the terminal, read from the log: a drawing, JSON, or a topology file.

Inputs are `PathMaps`, the inventory, and the topology file if one is configured.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabrictime.commands.screen import keep_live, terminal
from fabrictime.commands.views.topology_table import draw, json_of
from fabrictime.state.clocks import ANNOUNCED_S
from fabrictime.state.traced_fabric import Picture, file_of, picture_of
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.records import Nic
from schemas.topics import INVENTORY, PATHS
from schemas.topology import Topology, TopologyError, TopologySource
from streams.runtime.route_table import RouteTable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fabrictime.runtime.config import Config

WATCH_S: Final = 1.0


class Reader:
    """Reads path maps and the inventory without a consumer group."""

    def __init__(self, cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> None:
        """Connect. Raises ValueError if the log does not answer or a topic does not exist."""
        self.book = RouteTable()
        self.unreadable = 0
        self._nics: dict[str, tuple[Nic, int]] = {}
        self._registry = registry
        self._reader = TopicReader.open(cluster, {PATHS: BEGINNING, INVENTORY: BEGINNING})

    def close(self) -> None:
        """Close the connection to the log."""
        self._reader.close()

    def catch_up(self) -> None:
        """Read both topics to their end. Raises ValueError if the log stops answering."""
        for message in self._reader.read_to_end():
            self._take(message)

    def follow(self, wait_s: float) -> bool:
        """Process the messages that arrive within `wait_s`. Return whether any arrived."""
        messages = self._reader.poll(wait_s)
        for message in messages:
            self._take(message)
        return bool(messages)

    def _take(self, message: Message) -> None:
        try:
            if message.topic == PATHS.name:
                self.book.take(message.key_bytes, message.value, self._registry)
            elif message.value is None:
                self._nics.pop(message.key, None)
            else:
                record = message.decoded(INVENTORY, self._registry)
                self._nics[record["nic"]] = (record, message.append_ns // 1_000_000)
        except codec.BadRecord:
            self.unreadable += 1

    def nics(self) -> dict[str, Nic]:
        """Return the announcements of NICs that are alive, by NIC id."""
        oldest_ms = (time.time() - ANNOUNCED_S) * 1e3
        return {
            name: record
            for name, (record, append_ms) in self._nics.items()
            if append_ms >= oldest_ms and record["probe_port"]
        }

    def picture(self, topology: Topology | None) -> Picture:
        """Return the fabric as traced by the messages read so far; `topology` supplies names and rates."""
        return picture_of(self.book, self.nics(), topology, self.unreadable)


def main(
    cluster: KafkaSettings | str,
    *,
    topology: Topology | None = None,
    as_json: bool = False,
    file: Path | None = None,
    registry: codec.Registry | None = None,
) -> Picture:
    """Print the fabric once, or write it to `file`; return it. Raises ValueError, or OSError for the file."""
    with contextlib.closing(Reader(cluster, registry)) as reader:
        reader.catch_up()
    picture = reader.picture(topology)
    if file is not None:
        file.write_text(file_of(picture).model_dump_json(indent=1) + "\n", encoding="utf-8")
    elif as_json:
        print(json_of(picture))
    else:
        terminal(200).print(draw(picture))
    return picture


def source_of(config: Config) -> TopologySource:
    """Return the topology file of the settings, else that of the data directory's `up`, else none.

    Raises TopologyError if the file cannot be used.
    """
    path: Path | None = config.value("probes", "topology_file")
    if path is None:
        own = config.up.data_directory / "run" / "topology.json"
        path = own if own.is_file() else None
    return TopologySource(None if path is None else Path(path))


def watch(
    cluster: KafkaSettings | str, source: TopologySource, *, registry: codec.Registry | None = None
) -> None:
    """Show the fabric live until SIGINT. Raises ValueError if the log cannot be read at the start."""

    def drawn() -> RenderableType:
        with contextlib.suppress(TopologyError):  # an unusable file: the former content stays
            source.refresh()
        return draw(reader.picture(source.topology))

    with contextlib.closing(Reader(cluster, registry)) as reader, contextlib.suppress(KeyboardInterrupt):
        reader.catch_up()
        keep_live(terminal(200), drawn, lambda: reader.follow(WATCH_S))
