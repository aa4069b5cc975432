"""Reads the current records that the checks of the fabric evaluate from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, Start, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.records import Nic
from schemas.topics import (
    AUDIT,
    AUDIT_RUNS,
    CLOCK_OFFSETS,
    COLLECTIVES,
    DELAYS,
    FLOW_ROUTES,
    LINK_HEALTH,
    PATHS,
    QUEUES,
    Topic,
)
from schemas.topology import Topology
from streams.audit.fabric.records import FabricRecords
from streams.audit.hosts.part_history import PART_FACTS, PartHistory
from streams.audit.hosts.trends import HISTORY_DAYS

RECENT_S: Final = 30.0
"""Largest age of delays, queues, clocks and operations that are evaluated: at least ten windows."""
_WHOLE: Final[tuple[Topic, ...]] = (PATHS, FLOW_ROUTES, LINK_HEALTH, AUDIT_RUNS)
_RECENT: Final[tuple[Topic, ...]] = (DELAYS, QUEUES, CLOCK_OFFSETS, COLLECTIVES)
_NEWEST: Final = (PATHS.name, FLOW_ROUTES.name, LINK_HEALTH.name)
"""Topics from which only the newest record of each key is evaluated."""
_PART_FACTS: Final = [name.encode() for name in PART_FACTS]
"""Names of facts in an encoded audit result."""


class Entry(NamedTuple):
    """A message of the log. A `record` of None means that the message deletes its key."""

    topic: str
    key: str
    record: Any


def fabric_of(
    nics: Sequence[Nic], entries: Iterable[Entry], topology: Topology, *, before_ns: int, peers: int
) -> FabricRecords:
    """Return the records of a fabric. `before_ns` is this run's time, `peers` the number of peers per NIC."""
    newest: dict[str, dict[str, Any]] = {name: {} for name in _NEWEST}
    windows: dict[str, list[Any]] = {topic.name: [] for topic in _RECENT}
    since_ns, history = 0, PartHistory()
    for topic, key, record in entries:
        if topic in newest:
            newest[topic].pop(key, None)
            if record is not None:
                newest[topic][key] = record
        elif record is None:
            continue
        elif topic == AUDIT.name:
            history.take(record)
        elif topic in windows:
            windows[topic].append(record)
        elif not record["hosts"] and record["requested_ns"] < before_ns:
            since_ns = max(since_ns, record["requested_ns"])
    records: Mapping[str, list[Any]] = {name: list(of_key.values()) for name, of_key in newest.items()}
    return FabricRecords(
        nics=nics,
        paths=records[PATHS.name],
        routes=records[FLOW_ROUTES.name],
        delays=windows[DELAYS.name],
        offsets=windows[CLOCK_OFFSETS.name],
        health=records[LINK_HEALTH.name],
        collectives=windows[COLLECTIVES.name],
        queues=windows[QUEUES.name],
        topology=topology,
        since_ns=since_ns,
        full_mesh=peers >= len(nics) - 1,
        history=history,
    )


def read_fabric(
    cluster: KafkaSettings, nics: Sequence[Nic], topology: Topology, *, before_ns: int, peers: int
) -> FabricRecords:
    """Read the fabric's topics to their end, and return the records. Raises LogUnavailable."""
    starts: dict[Topic, Start] = {
        **dict.fromkeys(_WHOLE, BEGINNING),
        **dict.fromkeys(_RECENT, back(RECENT_S)),
        AUDIT: back(HISTORY_DAYS * 86_400.0),
    }
    with TopicReader.open(cluster, starts) as reader:
        messages = filter(_is_evaluated, reader.read_to_end())
        entries = (
            Entry(message.topic, message.key, record)
            for message, record in reader.decoded(messages, cluster.registry())
        )
        return fabric_of(nics, entries, topology, before_ns=before_ns, peers=peers)


def _is_evaluated(message: Message) -> bool:
    """Return whether a message is decoded. Of weeks of audit results, only those with facts on parts are."""
    value = message.value
    return message.topic != AUDIT.name or (value is not None and any(name in value for name in _PART_FACTS))
