"""The inventory as a prober uses it: its NIC's announcement and the table of peers.

`PeerTable` finds the living NICs by the log's own time. `LookupReader` reads whole topics without a consumer
group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage

from producers.settings import NicSettings
from schemas import codec
from schemas.ids import clock_id, nic_id
from schemas.kafka.partitioning import partition_of
from schemas.records import Nic, Stamp
from schemas.topics import Partitions, Topic

__all__ = ["LookupReader", "PeerTable", "addresses_of", "nic_record"]

_log = logging.getLogger(__name__)


def nic_record(
    nic: NicSettings,
    *,
    run: int,
    probe_port: int,
    phc_index: int | None,
    speed_bps: int | None,
    mtu_bytes: int | None,
    since_ns: int,
    announced_ns: int,
    path_ports: Sequence[int] = (),
    first_hop: str | None = None,
    capabilities: Sequence[str] = (),
    slot: tuple[int, int] = (0, 0),
) -> Nic:
    """Return the announcement of a NIC.

    A test clock is a clock of its own, named by the device. `slot` holds ns per probe slot and paths per
    slot; zeros mean that the prober follows no schedule.
    """
    if nic.clock is not None:
        clock = clock_id(nic.host, nic.device)
    else:
        clock = clock_id(nic.host) if phc_index is None else clock_id(nic.host, f"ptp{phc_index}")
    return {
        "nic": nic_id(nic.host, nic.device),
        "host": nic.host,
        "device": nic.device,
        "shard": nic.shard,
        "rail": nic.rail,
        "rack": nic.rack,
        "addresses": [nic.address],
        "probe_port": probe_port,
        "clock": clock,
        "stamp": Stamp.KERNEL if phc_index is None else Stamp.HARDWARE,
        "speed_bps": speed_bps,
        "mtu_bytes": mtu_bytes,
        "run": run,
        "since_ns": since_ns,
        "announced_ns": announced_ns,
        "capabilities": ["probe.udp", *capabilities],
        "path_ports": list(path_ports),
        "first_hop": first_hop,
        "slot_ns": slot[0],
        "slot_probes": slot[1],
        "ud": None,
        "stamp_error_ns": 0,
    }


class PeerTable:
    """The NICs of the fleet, from inventory messages in any order."""

    def __init__(self, silent_s: float) -> None:
        self._silent_ms = silent_s * 1000
        self._nics: dict[str, tuple[Nic, int]] = {}
        self._newest_ms = 0

    def update(self, name: str, record: Nic | None, append_ms: int) -> None:
        """Apply an announcement; None removes the NIC."""
        self._newest_ms = max(self._newest_ms, append_ms)
        if record is None:
            self._nics.pop(name, None)
        else:
            self._nics[name] = (record, append_ms)

    def alive(self, shard: str) -> dict[str, Nic]:
        """Return the NICs of a shard that answer probes and were announced recently, by log time."""
        return {name: record for name, record in self._lately(shard) if record["addresses"]}

    @property
    def fleet_nics(self) -> int:
        """Number of announced NICs of all shards, including silent ones."""
        return len(self._nics)

    def alive_ud(self, shard: str) -> dict[str, Nic]:
        """Return the same for NICs that answer on UD queue pairs."""
        return {name: record for name, record in self._lately(shard) if record["ud"] is not None}

    def _lately(self, shard: str) -> Iterator[tuple[str, Nic]]:
        oldest = self._newest_ms - self._silent_ms
        for name, (record, append_ms) in self._nics.items():
            if append_ms >= oldest and record["shard"] == shard and record["probe_port"]:
                yield name, record


RecordHandler = Callable[[str, Any, int], None]
"""Handles a message's key, its topic's record (None: removed) and its log append time in ms."""


class LookupReader:
    """Reads whole topics without a consumer group, and nearly without blocking.

    With `from_end`, reading starts at the end of the topics.
    """

    def __init__(
        self,
        config: dict[str, Any],
        handlers: Mapping[Topic, RecordHandler],
        registry: codec.Registry | None,
        from_end: bool = False,
        wants_key: Callable[[str], bool] | None = None,
        key: str | None = None,
    ) -> None:
        """`wants_key` selects messages by key before decoding. `key` selects one key, and only its partition
        is read."""
        self._consumer = Consumer(
            {
                **config,
                "group.id": "fabrictime-prober-lookup",  # librdkafka needs one; offsets are never committed
                "enable.auto.commit": False,
                "auto.offset.reset": "latest" if from_end else "earliest",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 1000,
            }
        )
        self._handlers, self._registry = (
            {topic.name: (topic, handler) for topic, handler in handlers.items()},
            registry,
        )
        self._key, self._wants_key = key, wants_key if key is None else key.__eq__
        self._begin = OFFSET_END if from_end else OFFSET_BEGINNING
        self._assigned = False
        self._assign_at_s = self._warned_at_s = 0.0
        self.rejected = 0

    def poll(self, max_messages: int = 1000) -> bool:
        """Handle the messages that have arrived; return True if there were any."""
        if not self._assigned and not self._assign():
            return False
        try:
            messages: list[KafkaMessage] = self._consumer.consume(max_messages, timeout=0)
        except KafkaException as error:
            self._warn(str(error))
            return False
        for message in messages:
            self._take(message)
        return bool(messages)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _assign(self) -> bool:
        """Read the number of partitions, at most once per second, and assign them."""
        names_to_count = [
            name for name, (topic, _) in self._handlers.items() if topic.partitions is not Partitions.ONE
        ]
        counts = dict.fromkeys(self._handlers, 1)
        if names_to_count:
            now = time.monotonic()
            if now < self._assign_at_s:
                return False
            self._assign_at_s = now + 1
            try:
                for name in names_to_count:
                    found = self._consumer.list_topics(name, timeout=0.2).topics.get(name)
                    counts[name] = 0 if found is None or found.error is not None else len(found.partitions)
            except KafkaException as error:
                self._warn(str(error))
                return False
        if all(counts.values()):
            self._consumer.assign(
                [
                    TopicPartition(name, number, self._begin)
                    for name, count in counts.items()
                    for number in (range(count) if self._key is None else [partition_of(self._key, count)])
                ]
            )
            self._assigned = True
        return self._assigned

    def _take(self, message: KafkaMessage) -> None:
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                self._warn(str(error))
            return
        name = (message.key() or b"").decode(errors="replace")
        if self._wants_key is not None and not self._wants_key(name):
            return
        value = message.value()
        topic, handler = self._handlers[str(message.topic())]
        try:
            record = None if value is None else codec.decode(value, topic.type, self._registry)
            handler(name, record, message.timestamp()[1])
        except codec.BadRecord as bad:
            self.rejected += 1
            self._warn(f"{name}: {bad}")

    def _warn(self, line: str) -> None:
        now = time.monotonic()
        if now - self._warned_at_s > 10 or not self._warned_at_s:
            self._warned_at_s = now
            _log.warning("%s: %s", ", ".join(self._handlers), line)


def addresses_of(records: Iterable[Nic], family_of: str) -> dict[str, tuple[str, int]]:
    """Return (address, port) by name, of the NICs with an address of the same family as `family_of`."""
    six = ":" in family_of
    found: dict[str, tuple[str, int]] = {}
    for record in records:
        fitting = [address for address in record["addresses"] if (":" in address) == six]
        if fitting:
            found[record["nic"]] = (fitting[0], record["probe_port"])
    return found
