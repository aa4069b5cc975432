"""The inventory as a prober sees it: what it announces of its NIC, and which peers there are.

In: records of fabric.inventory with their log append times. Out: `Nic` records, and the NICs alive by the
log's own time. `InventoryReader` is the thin Kafka side: a groupless reader of the whole compacted topic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from producers.settings import NicSettings
from schemas import codec
from schemas.ids import clock_id, nic_id
from schemas.topics import INVENTORY

__all__ = ["InventoryReader", "Roster", "nic_record"]

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
) -> Record:
    """Return what a prober announces of its NIC. A test clock is a clock of its own, named by the device."""
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
        "capabilities": ["probe.udp"],
    }


class Roster:
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
        oldest = self._newest_ms - self._silent_ms
        return {
            name: record
            for name, (record, append_ms) in self._nics.items()
            if append_ms >= oldest
            and record["shard"] == shard
            and record["probe_port"]
            and record["addresses"]
        }


class InventoryReader:
    """Reads fabric.inventory into a `Roster`, without a group and without ever blocking."""

    def __init__(
        self, config: dict[str, Any], roster: Roster, registry: codec.Registry | None = None
    ) -> None:
        self._consumer = Consumer({
            **config,
            "group.id": "fabrictime-prober-lookup",  # librdkafka wants one; nothing is ever committed
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 1000,
        })  # fmt: skip
        self._roster = roster
        self._registry = registry
        self._consumer.assign([TopicPartition(INVENTORY.name, 0, 0)])
        self._warned_at = 0.0
        self.rejected = 0

    def poll(self, most: int = 1000) -> bool:
        """Take what has come; return whether there was anything."""
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

    def _take(self, message: KafkaMessage) -> None:
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                self._warn(str(error))
            return
        name = (message.key() or b"").decode(errors="replace")
        value = message.value()
        try:
            record = None if value is None else codec.decode(value, INVENTORY.record, self._registry)
        except codec.BadRecord as bad:
            self.rejected += 1
            self._warn(f"{INVENTORY.name}: {name}: {bad}")
            return
        self._roster.take(name, record, message.timestamp()[1])

    def _warn(self, line: str) -> None:
        now = time.monotonic()
        if now - self._warned_at > 10 or not self._warned_at:
            self._warned_at = now
            _log.warning("inventory: %s", line)


def addresses_of(records: Iterable[Record], family_of: str) -> dict[str, tuple[str, int]]:
    """Return name to (address, port) of those that have an address of the same family as `family_of`."""
    six = ":" in family_of
    found: dict[str, tuple[str, int]] = {}
    for record in records:
        fitting = [address for address in record["addresses"] if (":" in address) == six]
        if fitting:
            found[record["nic"]] = (fitting[0], record["probe_port"])
    return found
