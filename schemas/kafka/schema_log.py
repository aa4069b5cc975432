"""The topic `fabric.schemas`: the schemas of all versions of fabrictime that write to a log.

`fabrictime topics create` publishes the schemas of its version there, before a process of that version
writes. So an older process reads records of a newer one, by Avro's schema resolution. The key is the
fingerprint in hexadecimal digits, the value the schema as JSON: no other schema is needed to read it.

`LogSchemas` reads the topic when a message needs it. A reader in an event loop holds its messages back until
then, so that a slow log costs time and no record. `FollowedSchemas` gets each message from a consumer that
follows the topic, so a process that must not wait has the schemas before the records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from typing import Any, Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, LogUnavailable, TopicReader
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.metrics.base import Sample
from schemas.topics import SCHEMAS

READ_EVERY_S: Final = 10.0
"""Least time between two reads: messages with made-up fingerprints must not keep a process reading. Each
complete read without the schema doubles it, up to `MAX_FACTOR` times."""
MAX_FACTOR: Final = 16
WAIT_S: Final = 2.0
"""Age of a read until which `LogSchemas.schema_of` waits for it. A slower one serves later messages."""
HOLD_S: Final = 6.0
"""Longest time for which a reader's messages wait for reads: a slow log must not hold up the detection of
dead links for long, and a worker that takes no message for `streams.stall_s` ends."""
RETRY_S: Final = 1.0
"""Time after a read that failed until the next one, while messages wait."""

_log = logging.getLogger(__name__)


def read_schemas(cluster: KafkaSettings | str) -> dict[bytes, Mapping[str, Any]]:
    """Return the topic's schemas by fingerprint; log a warning for each invalid message.

    Raises LogUnavailable.
    """
    schemas: dict[bytes, Mapping[str, Any]] = {}
    with TopicReader.open(cluster, {SCHEMAS: BEGINNING}) as reader:
        for message in reader.read_to_end():
            try:
                schemas[bytes.fromhex(message.key)] = json.loads(message.value or b"")
            except (ValueError, RecursionError) as error:
                _log.warning("%s@%d: no schema: %s", SCHEMAS.name, message.offset, error)
    return schemas


class SchemaUnread(OSError):
    """The needed schema has not been read from the topic, or is not there; the record itself may be valid."""


class FollowedSchemas:
    """Implements `codec.Registry` with the messages of the topic that a consumer passes on."""

    def __init__(self) -> None:
        """Start without any schema."""
        self._texts: dict[bytes, bytes] = {}

    def take(self, message: Message) -> None:
        """Store a message of the topic. Its text is parsed when a record needs the schema."""
        with contextlib.suppress(ValueError):
            self._texts[bytes.fromhex(message.key)] = message.value or b""

    def id_of(self, name: str, schema: Mapping[str, Any]) -> None:
        """Return None, because our messages carry fingerprints instead of ids."""

    def schema_of(self, schema_id: int | bytes) -> Mapping[str, Any]:
        """Return the schema with this fingerprint.

        Raises SchemaUnread if it has not arrived, KeyError for an invalid schema or a registry's id.
        """
        if isinstance(schema_id, int):
            raise KeyError(f"schema {schema_id}: no schema registry is set")
        if schema_id not in self._texts:
            raise SchemaUnread(f"{SCHEMAS.name}: schema {schema_id.hex()} has not arrived")
        try:
            schema: Mapping[str, Any] = json.loads(self._texts[schema_id])
        except (ValueError, RecursionError) as error:
            raise KeyError(f"{SCHEMAS.name}: schema {schema_id.hex()}: {error}") from error
        return schema


class LogSchemas:
    """Implements `codec.Registry`: reads the topic when a message needs a schema that is not known yet."""

    def __init__(self, cluster: KafkaSettings | str) -> None:
        """Store the cluster's settings; the first message with an unknown schema starts a read."""
        self._cluster = as_settings(cluster)
        self._schemas: dict[bytes, Mapping[str, Any]] = {}
        self._read_s = -READ_EVERY_S
        self._factor = 1
        self._hold_end_s = -READ_EVERY_S
        """Monotonic time until which messages wait."""
        self._is_complete = True
        """Whether the last read reached the end of the topic."""
        self._reading: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waited = 0

    def samples(self) -> Iterator[Sample]:
        """Yield, as a metric, the number of messages that waited for a read of the topic."""
        yield Sample("fabrictime_schema_waits_total", self._waited)

    def id_of(self, name: str, schema: Mapping[str, Any]) -> None:
        """Return None, because our messages carry fingerprints instead of ids."""

    def schema_of(self, schema_id: int | bytes) -> Mapping[str, Any]:
        """Return the schema with this fingerprint. Raises KeyError if it is missing or not read in time."""
        if isinstance(schema_id, int):
            raise KeyError(f"schema {schema_id}: no schema registry is set")
        reading = self._read_for({schema_id})
        if reading is not None:
            reading.join(max(0.0, self._read_s + WAIT_S - time.monotonic()))
        return self._schemas[schema_id]

    async def arrive(self, values: Iterable[bytes | None]) -> None:
        """Wait, at most `HOLD_S`, until the topic has been read for the unknown schemas of these messages.

        Reads are rate-limited, and without a read nothing waits, so made-up fingerprints delay few messages.
        """
        fingerprints = codec.other_fingerprints(values)
        waiting = sum(fingerprints.values())
        while (reading := self._read_for(fingerprints.keys(), retries=True)) is not None:
            left_s = self._hold_end_s - time.monotonic()
            if left_s <= 0:
                return
            self._waited, waiting = self._waited + waiting, 0
            await asyncio.to_thread(reading.join, left_s)
            if not (self._is_complete or reading.is_alive()):
                await asyncio.sleep(RETRY_S)

    def _read_for(self, fingerprints: Set[bytes], *, retries: bool = False) -> threading.Thread | None:
        """Return the thread of the running read, or of a new read if one is due; None if no read is needed.

        `retries`: after a failed read, the next read is due as long as messages wait.
        """
        if fingerprints <= self._schemas.keys():
            return None
        with self._lock:
            if self._reading is not None and self._reading.is_alive():
                return self._reading
            now_s = time.monotonic()
            if now_s - self._read_s >= READ_EVERY_S * self._factor:
                self._hold_end_s = now_s + HOLD_S
            elif self._is_complete or not retries or now_s >= self._hold_end_s:
                return None
            self._read_s = now_s
            self._reading = threading.Thread(
                target=self._read, args=(frozenset(fingerprints),), name="schemas", daemon=True
            )
            self._reading.start()
            return self._reading

    def _read(self, fingerprints: frozenset[bytes]) -> None:
        self._is_complete = False
        try:
            self._schemas = read_schemas(self._cluster)
        except LogUnavailable as error:
            _log.warning("schemas of other versions: %s", error)
            return
        self._is_complete = True
        is_there = fingerprints <= self._schemas.keys()
        self._factor = 1 if is_there else min(2 * self._factor, MAX_FACTOR)


@cache
def log_schemas(cluster: KafkaSettings) -> LogSchemas:
    """Return the `LogSchemas` of a cluster, of which a process has only one."""
    return LogSchemas(cluster)


async def arrive(cluster: KafkaSettings, values: Iterable[bytes | None]) -> None:
    """Wait until the log's schemas have been read for these messages; with a registry, do not wait."""
    if cluster.schema_registry_url is None:
        await log_schemas(cluster).arrive(values)
