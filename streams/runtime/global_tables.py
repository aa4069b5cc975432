"""What every worker must know, as read-only views: the inventory, the newest clocks, the links of paths.

In: whole compacted topics, read by consumers without a group. Out: `Inventory`, `ClockTable`, and views of other
modules that `GlobalTableReader` fills alike.
A stage starts when its views have reached the end offsets seen at their start; the views themselves know no
Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from native.core import ClockLine
from schemas import codec
from schemas.sanity import MAX_NS, sound_offsets
from schemas.topics import CLOCK_OFFSETS, INVENTORY, TOPICS, Topic
from streams.clock.solver import HOLDOVER, SYNCED, UNSYNCED
from streams.delays.records import Member

__all__ = [
    "ClockTable",
    "GlobalTable",
    "GlobalTableReader",
    "Inventory",
    "partition_count",
    "read_last",
    "read_tail",
    "split_host",
]

log = logging.getLogger(__name__)

Record = dict[str, Any]
OnRefused = Callable[[ConsumerRecord, codec.BadRecord], None]

OFFSETS_TAIL: Final = 1000
"""Newest records of each partition of the offsets topic that are read at the start: some minutes at least.
The whole topic keeps a day of every second for replays."""
STALE_NS_PER_S: Final = 50.0
"""ns a second by which a bound grows while a line is carried on."""


def split_host(nic: str) -> str:
    """Return the host of a NIC id, or the id itself where it has no host."""
    return nic.partition("/")[0]


class Inventory:
    """NIC to member, from `Nic` records."""

    topic: Final = INVENTORY.name

    def __init__(self, default_shard: str) -> None:
        self.default_shard = default_shard
        self.members: dict[str, Member] = {}
        self.speeds_bps: dict[str, int] = {}
        """NIC to its port's rate, of those that say it."""
        self.probe_slots: dict[str, tuple[int, int]] = {}
        """NIC to (ns from one of its prober's turns to the next, paths in each), of those that take turns."""
        self._stamp_error_ns: dict[str, int] = {}
        self.version = 0

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        registry: codec.Registry | None = None,
        append_ns: int = MAX_NS,
    ) -> None:
        """Take one message. Raises BadRecord."""
        if value is None:
            name = None if key is None else key.decode("utf-8", "replace")
            if name is not None and self.members.pop(name, None) is not None:
                self._stamp_error_ns.pop(name, None)
                self.speeds_bps.pop(name, None)
                self.probe_slots.pop(name, None)
                self.version += 1
            return
        nic = codec.decode(value, "Nic", registry)
        member = Member(nic["nic"], nic["host"], nic["shard"], nic["clock"], nic["rail"], nic["rack"])
        if self.members.get(nic["nic"]) != member:
            self.members[nic["nic"]] = member
            self.version += 1
        if nic["speed_bps"]:
            self.speeds_bps[nic["nic"]] = nic["speed_bps"]
        else:
            self.speeds_bps.pop(nic["nic"], None)
        self._stamp_error_ns[nic["nic"]] = nic["stamp_error_ns"]
        takes = nic["slot_ns"] and nic["slot_probes"] and nic["probe_port"]
        pace = (nic["slot_ns"], nic["slot_probes"]) if takes else None
        if self.probe_slots.get(nic["nic"]) != pace:
            self.version += 1
            if pace is None:
                del self.probe_slots[nic["nic"]]
            else:
                self.probe_slots[nic["nic"]] = pace

    def member(self, nic: str) -> Member:
        """Return what is known of a NIC; an unknown one is of the default shard and a clock of its own."""
        found = self.members.get(nic)
        return found if found is not None else Member(nic, split_host(nic), self.default_shard, nic)

    def shards(self) -> list[str]:
        """Return every shard, the default one first."""
        others = {member.shard for member in self.members.values()} - {self.default_shard}
        return [self.default_shard, *sorted(others)] if self.default_in_use() else sorted(others)

    def default_in_use(self) -> bool:
        """Return whether the default shard has NICs, or nothing else is known."""
        return not self.members or any(m.shard == self.default_shard for m in self.members.values())

    def clock_of(self) -> dict[str, str]:
        """Return NIC to clock."""
        return {name: member.clock for name, member in self.members.items()}

    def stamp_errors_ns(self) -> dict[str, int]:
        """Return clock to what its stamps may be off by, of its best NIC; clocks that say so alone."""
        found: dict[str, int] = {}
        for name, member in self.members.items():
            error_ns = self._stamp_error_ns.get(name, 0)
            found[member.clock] = min(error_ns, found.get(member.clock, error_ns))
        return {clock: error_ns for clock, error_ns in found.items() if error_ns}


@dataclass(slots=True)
class _Clock:
    model: ClockLine
    state: str
    window: int
    end_log_ns: int


@dataclass(slots=True)
class _Shard:
    window: int = -1
    parts: dict[int, Record] = field(default_factory=dict)


class ClockTable:
    """Clock to its newest line, and the newest records of each shard, from `ClockOffsets`."""

    topic: Final = CLOCK_OFFSETS.name

    def __init__(self, inventory: Inventory, holdover_s: float, window_ns: int = 1_000_000_000) -> None:
        self.log_offset_ns = 0
        self._window_ns = window_ns
        self._newest_window = -1
        self._inventory = inventory
        self._holdover_ns = round(holdover_s * 1e9)
        self._clocks: dict[str, _Clock] = {}
        self._shards: dict[str, _Shard] = {}
        self._previous: dict[str, _Shard] = {}
        self._models: dict[str, ClockLine] = {}
        self._models_version: tuple[int, int] = (-1, -1)
        self.version = 0

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        registry: codec.Registry | None = None,
        append_ns: int = MAX_NS,
    ) -> None:
        """Take one message that the log took at `append_ns`. Raises BadRecord for what no solver makes."""
        if value is None:
            return
        record, left_out = sound_offsets(
            codec.decode(value, "ClockOffsets", registry), append_ns, self._window_ns
        )
        if left_out:
            log.warning("%s: window %d: %d clocks no clock can be", self.topic, record["window"], left_out)
        window = record["window"]
        shard = self._shards.setdefault(record["shard"], _Shard())
        if window > shard.window:
            if len(shard.parts) and len(shard.parts) == next(iter(shard.parts.values()))["parts"]:
                self._previous[record["shard"]] = shard
            shard = self._shards[record["shard"]] = _Shard(window)
        if window == shard.window:
            shard.parts[record["part"]] = record
        if window >= self._newest_window:
            self._newest_window = window
            self.log_offset_ns = record["log_offset_ns"]
        end_log_ns = record["window_end_ns"] - record["log_offset_ns"]
        for clock in record["clocks"]:
            known = self._clocks.get(clock["clock"])
            if known is None or known.window <= window:
                model = ClockLine(clock["at_ns"], clock["offset_ns"], clock["drift_ppb"], clock["bound_ns"])
                self._clocks[clock["clock"]] = _Clock(model, clock["state"], window, end_log_ns)
        self.version += 1

    def newest(self, shard: str) -> list[Record]:
        """Return the parts of the newest window of `shard` whose parts are all there; empty where there is
        none."""
        for found in (self._shards.get(shard), self._previous.get(shard)):
            if found is not None and found.parts:
                parts = next(iter(found.parts.values()))["parts"]
                if len(found.parts) == parts:
                    return [found.parts[part] for part in sorted(found.parts)]
        return []

    def state_of(self, nic: str, log_now_ns: int) -> str:
        """Return how far a NIC's clock can be trusted at a log time."""
        found = self._clocks.get(self._inventory.member(nic).clock)
        if found is None or found.state == UNSYNCED:
            return UNSYNCED
        age_ns = log_now_ns - found.end_log_ns
        if age_ns > self._holdover_ns:
            return UNSYNCED
        return SYNCED if found.state == SYNCED and age_ns < 10_000_000_000 else HOLDOVER

    def models(self) -> Mapping[str, ClockLine]:
        """Return NIC to clock line, of every NIC whose clock can be used."""
        version = (self.version, self._inventory.version)
        if self._models_version != version:
            newest = max((clock.end_log_ns for clock in self._clocks.values()), default=0)
            usable = {
                name: clock.model
                for name, clock in self._clocks.items()
                if clock.state != UNSYNCED and newest - clock.end_log_ns <= self._holdover_ns
            }
            models = dict(usable)
            for nic, member in self._inventory.members.items():
                if member.clock in usable:
                    models[nic] = usable[member.clock]
            self._models, self._models_version = models, version
        return self._models


class GlobalTable(Protocol):
    """A view as a consumer fills it."""

    @property
    def topic(self) -> str:
        """The topic whose messages it takes."""

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        registry: codec.Registry | None = None,
        append_ns: int = MAX_NS,
    ) -> None:
        """Take one message that the log took at `append_ns`. Raises BadRecord."""


class GlobalTableReader:
    """Keeps one view filled from its topic until stopped."""

    def __init__(
        self,
        view: GlobalTable,
        bootstrap: str,
        refused: OnRefused,
        *,
        tail: int | None = None,
        since_s: float | None = None,
        registry: codec.Registry | None = None,
    ) -> None:
        """`tail`: begin with so many messages of each partition; `since_s`: with those of so many s."""
        self.view = view
        self.caught_up = asyncio.Event()
        self._bootstrap = bootstrap
        self._refused = refused
        self._tail = tail
        self._since_s = since_s
        self._registry = registry

    async def run(self) -> None:
        """Fill the view; returns only by cancellation."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=250
        )
        await consumer.start()
        try:
            partitions = await _partitions(consumer, self.view.topic)
            missing = await _seek(consumer, partitions, self._tail, self._since_s)
            if not missing:
                self.caught_up.set()
            async for message in consumer:
                try:
                    self.view.take(message.key, message.value, self._registry, message.timestamp * 1_000_000)
                except codec.BadRecord as error:
                    self._refused(message, error)
                if missing:
                    tp = TopicPartition(message.topic, message.partition)
                    if message.offset + 1 >= missing.get(tp, message.offset + 2):
                        del missing[tp]
                    if not missing:
                        self.caught_up.set()
        finally:
            await consumer.stop()


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> list[TopicPartition]:
    while True:
        # the public partitions_for_topic() knows subscribed topics alone
        numbers = (await consumer._client.fetch_all_metadata()).partitions_for_topic(topic)
        if numbers:
            partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            return partitions
        log.info("waiting for topic %s", topic)
        await asyncio.sleep(0.5)


async def _seek(
    consumer: AIOKafkaConsumer,
    partitions: list[TopicPartition],
    tail: int | None,
    since_s: float | None = None,
) -> dict[TopicPartition, int]:
    """Set the consumer to where reading begins; return the end offsets of the partitions that hold
    anything."""
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    first = dict(begins)
    if since_s is not None:
        since_ms = round((time.time() - since_s) * 1000)
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        first = {tp: ends[tp] if found[tp] is None else found[tp].offset for tp in partitions}
    for tp in partitions:
        consumer.seek(tp, first[tp] if tail is None else max(first[tp], ends[tp] - tail))
    return {tp: ends[tp] for tp in partitions if ends[tp] > first[tp]}


async def partition_count(bootstrap: str, topic: str) -> int:
    """Return how many partitions a topic has, waiting for it to exist."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    await consumer.start()
    try:
        return len(await _partitions(consumer, topic))
    finally:
        await consumer.stop()


async def read_tail(
    bootstrap: str,
    topic: str,
    tail: int | None,
    registry: codec.Registry | None = None,
    check: Callable[[Record, int], Record] | None = None,
    since_s: float | None = None,
) -> list[Record]:
    """Return the newest records of a topic, at most `tail` a partition or of so many s, up to the end seen at
    the start; what cannot be read is left out, and what `check` (of a record and its append time) refuses
    with BadRecord."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=250
    )
    name = TOPICS[topic].record
    await consumer.start()
    try:
        missing = await _seek(consumer, await _partitions(consumer, topic), tail, since_s)
        records = []
        refused = 0
        while missing:
            for messages in (await consumer.getmany(timeout_ms=250)).values():
                for message in messages:
                    if message.value is not None:
                        try:
                            record = codec.decode(message.value, name, registry)
                            if check is not None:
                                record = check(record, message.timestamp * 1_000_000)
                            records.append(record)
                        except codec.BadRecord as error:
                            last, refused = error, refused + 1
            for tp in list(missing):
                if await consumer.position(tp) >= missing[tp]:
                    del missing[tp]
        if refused:
            log.warning("%s: %d records left out, the last: %s", topic, refused, last)
        return records
    finally:
        await consumer.stop()


async def read_last(
    bootstrap: str,
    topic: Topic,
    registry: codec.Registry | None = None,
    by: Callable[[Record], str] | None = None,
) -> dict[str, tuple[Record, int]]:
    """Return the newest record of each key of a topic, or of each `by` of its records, and its append time in
    ns, up to the end seen at the start; what cannot be read is left out."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, fetch_max_wait_ms=250
    )
    values: dict[bytes, tuple[bytes, int]] = {}
    records: dict[str, tuple[Record, int]] = {}

    def keep(name: str | None, value: bytes, append_ns: int) -> None:
        try:
            record = codec.decode(value, topic.record, registry)
        except codec.BadRecord as error:
            log.warning("%s: a record left out: %s", topic.name, error)
            return
        records[by(record) if by is not None else str(name)] = (record, append_ns)

    await consumer.start()
    try:
        missing = await _seek(consumer, await _partitions(consumer, topic.name), None)
        while missing:
            for messages in (await consumer.getmany(timeout_ms=250)).values():
                for message in messages:
                    append_ns = message.timestamp * 1_000_000
                    if message.key is None:
                        continue
                    if message.value is None:
                        values.pop(message.key, None)
                    elif by is None:
                        values[message.key] = (message.value, append_ns)
                    else:
                        keep(None, message.value, append_ns)
            for tp in list(missing):
                if await consumer.position(tp) >= missing[tp]:
                    del missing[tp]
    finally:
        await consumer.stop()
    for key, (value, append_ns) in values.items():
        keep(key.decode("utf-8", "replace"), value, append_ns)
    return records
