"""The topic `fabric.schemas`: the schemas of all versions of fabrictime that write to a log.

`fabrictime topics create` publishes the schemas of its version there, before a process of that version
writes. So an older process reads records of a newer one, by Avro's schema resolution. The key is the
fingerprint in hexadecimal digits, the value the schema as JSON: no message is needed to read it.

`LogSchemas` reads the topic when a message needs it. `FollowedSchemas` gets each row from a consumer that
follows the topic, so a process that must not wait has the schemas before the records.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, LogUnavailable, TopicReader
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.topics import SCHEMAS

READ_EVERY_S: Final = 10.0
"""Least time between two reads: messages with made-up fingerprints must not keep a process reading. Each
complete read without the schema doubles it, up to `MAX_FACTOR` times."""
MAX_FACTOR: Final = 16
WAIT_S: Final = 2.0
"""Longest time for which a message waits for a read. A slower one serves later messages: a slow log must not
hold up the detection of dead links."""

_log = logging.getLogger(__name__)


def read_schemas(cluster: KafkaSettings | str) -> dict[bytes, Mapping[str, Any]]:
    """Return the schemas on the topic by fingerprint; rows that are none are left out, with a line in the
    log. Raises LogUnavailable.
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
    """The topic holds a schema that is not read yet, or none; the message that needs it may be good."""


class FollowedSchemas:
    """Implements `codec.Registry` with the rows of the topic that a consumer passes on."""

    def __init__(self) -> None:
        """Start without a schema."""
        self._texts: dict[bytes, bytes] = {}

    def take(self, message: Message) -> None:
        """Keep a row of the topic. Its text is parsed when a message needs the schema."""
        with contextlib.suppress(ValueError):
            self._texts[bytes.fromhex(message.key)] = message.value or b""

    def id_of(self, name: str, schema: Mapping[str, Any]) -> None:
        """Return None: our messages carry fingerprints."""

    def schema_of(self, schema_id: int | bytes) -> Mapping[str, Any]:
        """Return the schema with this fingerprint. Raises KeyError for an id or a row that is no schema, and
        SchemaUnread if no such row has arrived."""
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
    """Implements `codec.Registry` with the topic: it is read when a message needs a schema of it."""

    def __init__(self, cluster: KafkaSettings | str) -> None:
        """Read nothing yet."""
        self._cluster = as_settings(cluster)
        self._schemas: dict[bytes, Mapping[str, Any]] = {}
        self._read_s = -READ_EVERY_S
        self._factor = 1
        self._complete_reads = 0
        self._lock = threading.Lock()

    def id_of(self, name: str, schema: Mapping[str, Any]) -> None:
        """Return None: our messages carry fingerprints."""

    def schema_of(self, schema_id: int | bytes) -> Mapping[str, Any]:
        """Return the schema with this fingerprint. Raises KeyError if the topic has none, or is not read in
        time."""
        if isinstance(schema_id, int):
            raise KeyError(f"schema {schema_id}: no schema registry is set")
        with self._lock:
            now_s = time.monotonic()
            if schema_id not in self._schemas and now_s - self._read_s >= READ_EVERY_S * self._factor:
                self._read_s, reads_before = now_s, self._complete_reads
                reading = threading.Thread(target=self._read, name="schemas", daemon=True)
                reading.start()
                reading.join(WAIT_S)
                if schema_id in self._schemas:
                    self._factor = 1
                elif self._complete_reads > reads_before:
                    self._factor = min(2 * self._factor, MAX_FACTOR)
        return self._schemas[schema_id]

    def _read(self) -> None:
        try:
            self._schemas = read_schemas(self._cluster)
            self._complete_reads += 1
        except LogUnavailable as error:
            _log.warning("schemas of other versions: %s", error)


@cache
def log_schemas(cluster: KafkaSettings) -> LogSchemas:
    """Return the process's only reader of a cluster's schemas."""
    return LogSchemas(cluster)
