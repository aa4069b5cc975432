"""Records of fabrictime's topics, decoded, for any program that reaches the fleet's Kafka.

    from fabrictime_client.records import records
    for record in records("fabric.alerts", "kafka:9092", start=3600.0):
        print(record.key, record.value and record.value["text"])

It needs `fabrictime-client[records]`: confluent-kafka and fastavro. The schemas of all released versions are
part of this package, and later schemas are on the topic `fabric.schemas`, so no schema registry is needed.
Reading changes nothing: no consumer group, no commit.
"""

from __future__ import annotations

import io
import json
import logging
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, Generator, Iterator, Mapping, NamedTuple

_SINGLE_OBJECT = b"\xc3\x01"  # Avro's single-object encoding: marker, CRC-64-AVRO of the schema, body
_HEADER_BYTES = 10
_CONNECT_S = 10.0
_POLL_S = 0.2
_BATCH = 500
_SCHEMAS = "fabric.schemas"
_READ_EVERY_S = 10.0  # least time between two reads: made-up fingerprints must not keep us reading
_DEFECTS = (ValueError, LookupError, EOFError, TypeError, AttributeError, OverflowError, RecursionError)

_log = logging.getLogger(__name__)


class RecordsError(RuntimeError):
    """The records cannot be read; `str()` is one line with the reason."""


class Record(NamedTuple):
    """A message of a topic; `value` is its record as in docs/topics.md, or None if the key was deleted."""

    topic: str
    partition: int
    offset: int
    key: str
    append_ns: int
    value: dict[str, Any] | None


def records(
    topic: str,
    brokers: str = "127.0.0.1:9092",
    *,
    start: str | float = "end",
    follow: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Iterator[Record]:
    """Yield the records of a topic, then wait for new ones.

    `start` is "beginning", "end", or the number of seconds before now. `follow` False ends at the messages
    that the topic holds now. `config` has further options of librdkafka, such as TLS and SASL. Messages
    without a record of fabrictime are logged and skipped. Raises RecordsError if a package is missing, the
    brokers do not answer, the topic does not exist, or `start` is invalid.
    """
    options = {
        "bootstrap.servers": brokers,
        "group.id": "fabrictime-client",  # librdkafka demands one; nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": 0,
        **(config or {}),
    }
    decoder = _Decoder(options)
    with closing(_messages(options, topic, start, follow=follow)) as messages:
        for message in messages:
            record = decoder.record_of(message)
            if record is not None:
                yield record


def _messages(
    options: Mapping[str, Any], topic: str, start: str | float, *, follow: bool
) -> Generator[Any, None, None]:
    """Yield the messages of a topic. Raises RecordsError."""
    kafka = _package("confluent_kafka")
    consumer = kafka.Consumer(options)
    brokers = options["bootstrap.servers"]
    try:
        places = _places(kafka, consumer, topic, brokers, start)
        consumer.assign(places)
        behind = {place.partition for place in places}
        while behind or follow:
            for message in consumer.consume(_BATCH, _POLL_S):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == kafka.KafkaError._PARTITION_EOF:
                    behind.discard(message.partition())
                elif not error.retriable():
                    raise RecordsError("topic %s: %s" % (topic, error.str()))
    finally:
        consumer.close()


def _places(kafka: Any, consumer: Any, topic: str, brokers: str, start: str | float) -> list[Any]:
    """Return the partitions of a topic with the offsets at which to begin reading. Raises RecordsError."""
    if not isinstance(start, (int, float)) and start not in ("beginning", "end"):
        raise RecordsError("start %r: expected 'beginning', 'end' or seconds before now" % (start,))
    try:
        listed = consumer.list_topics(topic, timeout=_CONNECT_S).topics[topic]
        if listed.error is not None:
            raise RecordsError("topic %s: %s" % (topic, listed.error.str()))
        if start in ("beginning", "end"):
            at = kafka.OFFSET_BEGINNING if start == "beginning" else kafka.OFFSET_END
            return [kafka.TopicPartition(topic, number, at) for number in listed.partitions]
        since_ms = int((time.time() - float(start)) * 1000)
        since = [kafka.TopicPartition(topic, number, since_ms) for number in listed.partitions]
        return list(consumer.offsets_for_times(since, timeout=_CONNECT_S))
    except kafka.KafkaException as error:
        raise RecordsError("%s: %s" % (brokers, error.args[0].str())) from error


class _Decoder:
    """Decodes messages by the schemas of all released versions, and by newer schemas on the log."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Read the schemas of this package; `options` are librdkafka's, to read schemas from the log.

        Raises RecordsError if fastavro is missing.
        """
        self._avro = _package("fastavro")
        self._options = options
        self._read_s = -_READ_EVERY_S
        path = Path(__file__).with_name("released.jsonl")
        rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        self._schemas: dict[bytes, Any] = {bytes.fromhex(row["fingerprint"]): row["schema"] for row in rows}
        self._parsed: dict[bytes, Any] = {}

    def record_of(self, message: Any) -> Record | None:
        """Return the record of a confluent-kafka message, or None and log a line if it contains no record."""
        place = "%s[%d]@%d" % (message.topic(), message.partition(), message.offset())
        value = message.value()
        try:
            decoded = None if value is None else self._decode(value)
            key = (message.key() or b"").decode()
        except (*_DEFECTS, self._avro.schema.SchemaParseException) as error:
            _log.warning("%s: no record of fabrictime: %s", place, error)
            return None
        append_ns = message.timestamp()[1] * 1_000_000
        return Record(message.topic(), message.partition(), message.offset(), key, append_ns, decoded)

    def _decode(self, value: bytes) -> dict[str, Any]:
        if value[:2] != _SINGLE_OBJECT or len(value) < _HEADER_BYTES:
            raise ValueError("%s: expected Avro single-object encoding" % value[:2].hex())
        fingerprint = value[2:_HEADER_BYTES]
        if fingerprint not in self._schemas:
            self._read_schemas()
        if fingerprint not in self._schemas:
            raise ValueError("schema %s: unknown here and on %s" % (fingerprint.hex(), _SCHEMAS))
        if fingerprint not in self._parsed:
            self._parsed[fingerprint] = self._avro.parse_schema(self._schemas[fingerprint])
        body = io.BytesIO(value[_HEADER_BYTES:])
        record: dict[str, Any] = self._avro.schemaless_reader(body, self._parsed[fingerprint], None)
        return record

    def _read_schemas(self) -> None:
        """Add newer schemas from the log, unless they were read just now."""
        if time.monotonic() - self._read_s < _READ_EVERY_S:
            return
        self._read_s = time.monotonic()
        try:
            for message in _messages(self._options, _SCHEMAS, "beginning", follow=False):
                self._add(message)
        except RecordsError as error:
            _log.warning("%s", error)

    def _add(self, message: Any) -> None:
        try:
            fingerprint = bytes.fromhex((message.key() or b"").decode())
            self._schemas.setdefault(fingerprint, json.loads(message.value() or b""))
        except (ValueError, RecursionError) as error:
            _log.warning("%s@%d: no schema: %s", _SCHEMAS, message.offset(), error)


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise RecordsError("%s is missing: pip install 'fabrictime-client[records]'" % name) from None
