"""Reads and writes the inventory for a prober: the announcement of its own NIC, and the table of peers.

`PeerTable` determines the living NICs from the arrival of their announcements. `LookupReader` reads whole
topics without a consumer group.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from producers.settings import NicSettings
from schemas import codec
from schemas.ids import clock_id, nic_id
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, END, LogUnavailable, TopicMissing, TopicReader
from schemas.kafka.settings import KafkaSettings, service_options
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.records import Nic, Stamp
from schemas.topics import Topic
from schemas.unexpected import DATA_ERRORS, refusal

_log = logging.getLogger(__name__)

PAST_S: Final = 10.0
"""Time after the first announcement within which a reader receives announcements from before its start."""
ASSIGN_TIMEOUT_S: Final = 0.2
"""Longest time for which a prober waits for the log's metadata."""


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
    networks: Sequence[str] = (),
    egress: str | None = None,
) -> Nic:
    """Return the announcement of a NIC for the inventory.

    A NIC with a test clock has a clock of its own, which is identified by the device. `slot` holds ns per
    probe slot and paths per slot; zeros mean that the prober follows no schedule.
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
        "networks": list(networks),
        "egress": egress,
        "simulation_pace": None,
    }


class _Announced(NamedTuple):
    """A NIC's newest announcement, with its arrival time by the reader's clock."""

    record: Nic
    at_s: float
    past_ms: int | None
    """Append time, ms; None unless it was received at the reader's start."""


class PeerTable:
    """The NICs of the fleet. The inventory messages may arrive in any order.

    A NIC is alive for `silent_s` after the arrival of its announcement, by this reader's own clock. Log time
    is used only at the reader's start, when it receives all past announcements: announcements much older than
    their median are ignored. Later it is not used, because a wrong append time stays in the compacted topic.
    """

    def __init__(self, silent_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._silent_s, self._now_s = silent_s, now_s
        self._nics: dict[str, _Announced] = {}
        self._start_s: float | None = None
        self._median_ms: float | None = None

    def update(self, name: str, record: Nic | None, append_ms: int) -> None:
        """Apply an announcement of the NIC `name`; a record of None removes the NIC."""
        at_s = self._now_s()
        if self._start_s is None:
            self._start_s = at_s
        if record is None:
            self._nics.pop(name, None)
        else:
            is_past = at_s - self._start_s < PAST_S
            self._nics[name] = _Announced(record, at_s, append_ms if is_past else None)
        self._median_ms = None

    def alive(self, shard: str) -> dict[str, Nic]:
        """Return the NICs of a shard that answer probes and were announced recently."""
        return {name: record for name, record in self._lately(shard) if record["addresses"]}

    @property
    def fleet_nics(self) -> int:
        """Number of announced NICs of all shards, including NICs that are silent."""
        return len(self._nics)

    def alive_ud(self, shard: str) -> dict[str, Nic]:
        """Return the NICs of a shard that answer probes on UD queue pairs and were announced recently."""
        return {name: record for name, record in self._lately(shard) if record["ud"] is not None}

    def _lately(self, shard: str) -> Iterator[tuple[str, Nic]]:
        oldest_s = self._now_s() - self._silent_s
        oldest_ms = self._median_past_ms() - self._silent_s * 1000
        for name, (record, at_s, past_ms) in self._nics.items():
            is_recent = at_s >= oldest_s and (past_ms is None or past_ms >= oldest_ms)
            if is_recent and record["shard"] == shard and record["probe_port"]:
                yield name, record

    def _median_past_ms(self) -> float:
        """Return the median append time, ms, of announcements received at the start; 0 if there are none."""
        if self._median_ms is None:
            past = [nic.past_ms for nic in self._nics.values() if nic.past_ms is not None]
            self._median_ms = statistics.median_low(past) if past else 0.0
        return self._median_ms


RecordHandler = Callable[[str, Any, int], None]
"""Handles a message: its key, its topic's record (None for a tombstone) and its log append time in ms."""


class LookupReader:
    """Reads whole topics without a consumer group; its calls rarely block."""

    def __init__(
        self,
        cluster: KafkaSettings,
        handlers: Mapping[Topic, RecordHandler],
        registry: codec.Registry | None,
        from_end: Collection[Topic] = (),
        wants_key: Mapping[Topic, Callable[[str], bool]] | None = None,
        keys: Mapping[Topic, Collection[str]] | None = None,
    ) -> None:
        """Start reading the topics of `handlers`, which maps topics to the functions that receive records.

        Topics in `from_end` are read from their end on. `wants_key` selects messages of a topic by key before
        decoding. `keys` holds the keys, and so the partitions, of a topic that is not read in full.
        """
        self._reader = TopicReader(
            cluster,
            {topic: END if topic in from_end else BEGINNING for topic in handlers},
            partition_keys=keys,
            fetch_wait_ms=1000,
            options={
                **service_options(cluster),
                "auto.offset.reset": "error",  # the reader begins again at each topic's own start
            },
        )
        self._wants_key: dict[str, Callable[[str], bool]] = {
            topic.name: wants for topic, wants in (wants_key or {}).items()
        }
        for topic, names in (keys or {}).items():
            self._wants_key[topic.name] = frozenset(names).__contains__
        self._handlers, self._registry = (
            {topic.name: handler for topic, handler in handlers.items()},
            registry,
        )
        self._assigned = False
        self._assign_at_s = self._warned_at_s = 0.0
        self.rejected = 0
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield a metric: the number of messages that were rejected."""
        yield Sample("fabrictime_records_rejected_total", self.rejected)

    def poll(self, max_messages: int = 1000) -> bool:
        """Pass arrived messages to their handlers; return whether any had arrived."""
        if not self._assigned and not self._assign():
            return False
        try:
            messages = self._reader.poll(0, max_messages)
        except LogUnavailable as error:
            self._warn(str(error))
            return False
        selected = [message for message in messages if self._is_selected(message)]
        for message, record in self._reader.decoded(selected, self._registry, self._on_reject):
            try:
                self._handlers[message.topic](message.key, record, message.append_ns // 1_000_000)
            except DATA_ERRORS as error:
                self._on_reject(message, refusal(error))
        return bool(messages)

    def close(self) -> None:
        """Close the Kafka consumer."""
        SOURCES.remove(self.samples)
        self._reader.close()

    def _is_selected(self, message: Message) -> bool:
        wants_key = self._wants_key.get(message.topic)
        return wants_key is None or wants_key(message.key)

    def _assign(self) -> bool:
        """Assign all topics once they exist; try at most once per second. Return whether all are assigned."""
        now_s = time.monotonic()
        if now_s < self._assign_at_s:
            return False
        self._assign_at_s = now_s + 1
        try:
            self._reader.connect(ASSIGN_TIMEOUT_S)
        except TopicMissing:
            return False
        except LogUnavailable as error:
            self._warn(str(error))
            return False
        self._assigned = True
        return True

    def _on_reject(self, message: Message, bad: codec.BadRecord) -> None:
        self.rejected += 1
        self._warn(f"{message.key}: {bad}")

    def _warn(self, line: str) -> None:
        now = time.monotonic()
        if now - self._warned_at_s > 10 or not self._warned_at_s:
            self._warned_at_s = now
            _log.warning("%s: %s", ", ".join(self._handlers), line)


def addresses_of(records: Iterable[Nic], family_of: str) -> dict[str, tuple[str, int]]:
    """Return, by NIC name, (address, probe port) of NICs with an address of `family_of`'s family.

    If `family_of` is link-local, only link-local addresses are returned.
    """
    kind = _kind_of(family_of)
    addresses: dict[str, tuple[str, int]] = {}
    for record in records:
        fitting = [address for address in record["addresses"] if _kind_of(address) == kind]
        if fitting:
            addresses[record["nic"]] = (fitting[0], record["probe_port"])
    return addresses


def _kind_of(address: str) -> str:
    """Return the kind of an IP address; NICs with addresses of the same kind can reach each other."""
    if ":" not in address:
        return "IPv4"
    return "link-local" if address[:3].lower() in ("fe8", "fe9", "fea", "feb") else "IPv6"
