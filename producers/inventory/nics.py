"""The inventory as a prober sees it: what it announces of its NIC, and which peers there are.

In: records of fabric.inventory with their log append times. Out: `Nic` records, and the NICs alive by the
log's own time. `LookupReader` is the thin Kafka side: a groupless reader of a whole topic.
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
from schemas.topics import Partitions, Topic

__all__ = ["LookupReader", "PeerTable", "addresses_of", "nic_record"]

_log = logging.getLogger(__name__)

Record = dict[str, Any]


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
    pace: tuple[int, int] = (0, 0),
) -> Record:
    """Return what a prober announces of its NIC. A test clock is a clock of its own, named by the device.
    `pace`: ns from one of its turns to the next and paths in each; 0: it takes none."""
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
        "stamp": "KERNEL" if phc_index is None else "HARDWARE",
        "speed_bps": speed_bps,
        "mtu_bytes": mtu_bytes,
        "run": run,
        "since_ns": since_ns,
        "announced_ns": announced_ns,
        "capabilities": ["probe.udp", *capabilities],
        "path_ports": list(path_ports),
        "first_hop": first_hop,
        "slot_ns": pace[0],
        "slot_probes": pace[1],
        "ud": None,
        "stamp_error_ns": 0,
    }


class PeerTable:
    """Who is in the fleet, from the inventory's messages in any order."""

    def __init__(self, silent_s: float) -> None:
        self._silent_ms = silent_s * 1000
        self._nics: dict[str, tuple[Record, int]] = {}
        self._newest_ms = 0

    def take(self, name: str, record: Record | None, append_ms: int) -> None:
        """Note an announcement, or with `record` None that the NIC was removed."""
        self._newest_ms = max(self._newest_ms, append_ms)
        if record is None:
            self._nics.pop(name, None)
        else:
            self._nics[name] = (record, append_ms)

    def alive(self, shard: str) -> dict[str, Record]:
        """Return the NICs of a shard that answer probes and were announced lately, by log time."""
        return {name: record for name, record in self._lately(shard) if record["addresses"]}

    @property
    def fleet(self) -> int:
        """How many NICs there are, of all shards, announced lately or not."""
        return len(self._nics)

    def alive_ud(self, shard: str) -> dict[str, Record]:
        """Return the same of those that answer on UD queue pairs."""
        return {name: record for name, record in self._lately(shard) if record["ud"] is not None}

    def _lately(self, shard: str) -> Iterator[tuple[str, Record]]:
        oldest = self._newest_ms - self._silent_ms
        for name, (record, append_ms) in self._nics.items():
            if append_ms >= oldest and record["shard"] == shard and record["probe_port"]:
                yield name, record


RecordHandler = Callable[[str, Record | None, int], None]
"""Takes a message's key, its record (None: removed) and its log append time, ms."""


class LookupReader:
    """Reads whole topics into views, without a group and almost without blocking.

    `tail`: begin at the end instead, where only what is new matters.
    """

    def __init__(
        self,
        config: dict[str, Any],
        views: Mapping[Topic, RecordHandler],
        registry: codec.Registry | None,
        tail: bool = False,
        only: Callable[[str], bool] | None = None,
        key: str | None = None,
    ) -> None:
        """`only`: whether messages of a key are wanted; others are not even decoded. `key`: the one that is,
        whose partition alone is read then."""
        self._consumer = Consumer(
            {
                **config,
                "group.id": "fabrictime-prober-lookup",  # librdkafka wants one; nothing is ever committed
                "enable.auto.commit": False,
                "auto.offset.reset": "latest" if tail else "earliest",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 1000,
            }
        )
        self._views, self._registry = {topic.name: (topic, take) for topic, take in views.items()}, registry
        self._key, self._only = key, only if key is None else key.__eq__
        self._begin = OFFSET_END if tail else OFFSET_BEGINNING
        self._assigned = False
        self._ask_at = self._warned_at = 0.0
        self.rejected = 0

    def poll(self, most: int = 1000) -> bool:
        """Take what has come; return whether there was anything."""
        if not self._assigned and not self._assign():
            return False
        try:
            messages: list[KafkaMessage] = self._consumer.consume(most, timeout=0)
        except KafkaException as error:
            self._warn(str(error))
            return False
        for message in messages:
            self._take(message)
        return bool(messages)

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()

    def _assign(self) -> bool:
        """Ask how many partitions the topics have, at most once a second, and read them."""
        asked = [name for name, (topic, _) in self._views.items() if topic.partitions is not Partitions.ONE]
        counts = dict.fromkeys(self._views, 1)
        if asked:
            now = time.monotonic()
            if now < self._ask_at:
                return False
            self._ask_at = now + 1
            try:
                for name in asked:
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
        if self._only is not None and not self._only(name):
            return
        value = message.value()
        topic, view = self._views[str(message.topic())]
        try:
            record = None if value is None else codec.decode(value, topic.record, self._registry)
            view(name, record, message.timestamp()[1])
        except codec.BadRecord as bad:
            self.rejected += 1
            self._warn(f"{name}: {bad}")

    def _warn(self, line: str) -> None:
        now = time.monotonic()
        if now - self._warned_at > 10 or not self._warned_at:
            self._warned_at = now
            _log.warning("%s: %s", ", ".join(self._views), line)


def addresses_of(records: Iterable[Record], family_of: str) -> dict[str, tuple[str, int]]:
    """Return name to (address, port) of those that have an address of the same family as `family_of`."""
    six = ":" in family_of
    found: dict[str, tuple[str, int]] = {}
    for record in records:
        fitting = [address for address in record["addresses"] if (":" in address) == six]
        if fitting:
            found[record["nic"]] = (fitting[0], record["probe_port"])
    return found
