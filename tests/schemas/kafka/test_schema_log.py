"""The topic of schemas: a later version publishes its own, and processes that run read them when needed."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.bench._pipeline import embedded_log
from fabrictime.runtime.topics_admin import publish_schemas
from schemas import codec
from schemas.kafka import schema_log
from schemas.kafka.message import Message
from schemas.kafka.reader import LogUnavailable
from schemas.kafka.schema_log import FollowedSchemas, LogSchemas, SchemaUnread, log_schemas, read_schemas
from schemas.kafka.settings import as_settings
from schemas.topics import SCHEMAS
from streams.runtime.settings import StreamSettings
from tests.later_schema import later_message, later_schema, send_rows, send_schema

RELEASED = codec.released_schemas()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[str]:
    with embedded_log(tmp_path, 2) as bootstrap:
        yield bootstrap


def test_released_schemas_are_published_once(log: str) -> None:
    assert publish_schemas(log) == f"fabric.schemas: is there, {len(RELEASED)} schemas published"
    assert publish_schemas(log) == "fabric.schemas: is there, 0 schemas published"
    assert read_schemas(log) == RELEASED


def test_a_running_process_reads_a_later_schema_once_it_is_needed(
    log: str, honest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = later_message("Nic", honest("Nic"))
    monkeypatch.setattr(schema_log, "WAIT_S", 60.0)
    registry = LogSchemas(log)
    assert registry.id_of("Nic", codec.raw_schema("Nic")) is None
    with pytest.raises(codec.BadRecord, match="registry has no schema"):  # the topic is missing
        codec.decode(message, "Nic", registry)
    publish_schemas(log)
    send_schema(log, "Nic")
    with pytest.raises(codec.BadRecord, match="registry has no schema"):  # it was read just now
        codec.decode(message, "Nic", registry)
    monkeypatch.setattr(schema_log, "READ_EVERY_S", 0.0)
    assert codec.decode(message, "Nic", registry) == honest("Nic")
    # the topic is read no more for it
    monkeypatch.setattr(schema_log, "read_schemas", lambda cluster: pytest.fail("read again"))
    assert codec.decode(message, "Nic", registry) == honest("Nic")


@pytest.mark.parametrize(
    ("answers", "expected"), [(True, [20.0, 40.0, 80.0, 160.0, 160.0]), (False, [10.0] * 5)]
)
def test_made_up_fingerprints_are_looked_up_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, answers: bool, expected: list[float]
) -> None:
    """A read that failed says nothing about the schema, so it makes no pause longer."""
    now_s = 1000.0
    reads: list[float] = []

    def read(cluster: Any) -> Any:
        reads.append(now_s)
        if not answers:
            raise LogUnavailable("it does not answer")
        return {}

    monkeypatch.setattr(schema_log, "read_schemas", read)
    monkeypatch.setattr(schema_log, "time", SimpleNamespace(monotonic=lambda: now_s))
    registry = LogSchemas("127.0.0.1:9")
    for second in range(1000, 2000):
        now_s = float(second)
        with pytest.raises(KeyError):
            registry.schema_of(second.to_bytes(8, "big"))
    pauses = [after - before for before, after in pairwise(reads)]
    assert pauses[:5] == expected


def test_a_slow_log_holds_up_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that takes long serves later messages."""
    fingerprint, schema = later_schema("Nic")
    answered = threading.Event()

    def slow_read(cluster: Any) -> Any:
        answered.wait(60)
        return {fingerprint: schema}

    monkeypatch.setattr(schema_log, "read_schemas", slow_read)
    monkeypatch.setattr(schema_log, "WAIT_S", 0.01)
    registry, before = LogSchemas("127.0.0.1:9"), set(threading.enumerate())
    with pytest.raises(KeyError):
        registry.schema_of(fingerprint)
    [reading] = [thread for thread in set(threading.enumerate()) - before if thread.name == "schemas"]
    answered.set()
    reading.join(60)
    assert registry.schema_of(fingerprint) == schema


def test_a_message_waits_for_a_read_that_another_thread_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprint, schema = later_schema("Nic")
    answered, has_begun, has_asked = threading.Event(), threading.Event(), threading.Event()

    def read(cluster: Any) -> Any:
        has_begun.set()
        answered.wait(60)
        return {fingerprint: schema}

    monkeypatch.setattr(schema_log, "read_schemas", read)
    monkeypatch.setattr(schema_log, "WAIT_S", 60.0)
    registry = LogSchemas("127.0.0.1:9")
    read_for = registry._read_for

    def asked(fingerprints: Any) -> Any:
        reading = read_for(fingerprints)
        has_asked.set()
        return reading

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(registry.schema_of, fingerprint)
        assert has_begun.wait(60)
        monkeypatch.setattr(registry, "_read_for", asked)
        second = pool.submit(registry.schema_of, fingerprint)
        assert has_asked.wait(60)
        answered.set()
        assert first.result(60) == second.result(60) == schema


async def test_messages_wait_for_reads_that_are_slow_or_fail(
    monkeypatch: pytest.MonkeyPatch, honest: Any
) -> None:
    """A slow log costs them time. Two messages share a read, and the next finds the schema."""
    fingerprint, schema = later_schema("Nic")
    message, reads = later_message("Nic", honest("Nic")), []

    def read(cluster: Any) -> Any:
        reads.append(cluster)
        if len(reads) < 3:
            raise LogUnavailable("it does not answer")
        return {fingerprint: schema}

    monkeypatch.setattr(schema_log, "read_schemas", read)
    monkeypatch.setattr(schema_log, "RETRY_S", 0.0)
    registry = LogSchemas("127.0.0.1:9")
    ours = codec.encode("Nic", honest("Nic"))
    await registry.arrive([None, b"", b"\xc3", ours])
    assert reads == []
    await asyncio.gather(registry.arrive([ours, message]), registry.arrive([message]))
    assert codec.decode(message, "Nic", registry) == honest("Nic")
    await registry.arrive([message])
    assert len(reads) == 3
    assert [sample.value for sample in registry.samples()] == [2]


async def test_messages_wait_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch, honest: Any) -> None:
    """The read goes on for later messages; until it has ended, a message of that version is refused."""
    fingerprint, schema = later_schema("Nic")
    message, answered = later_message("Nic", honest("Nic")), threading.Event()

    def slow_read(cluster: Any) -> Any:
        answered.wait(60)
        return {fingerprint: schema}

    monkeypatch.setattr(schema_log, "read_schemas", slow_read)
    monkeypatch.setattr(schema_log, "HOLD_S", 0.01)
    monkeypatch.setattr(schema_log, "WAIT_S", 0.0)
    monkeypatch.setattr(schema_log, "RETRY_S", 60.0)
    registry, before = LogSchemas("127.0.0.1:9"), set(threading.enumerate())
    async with asyncio.timeout(30):
        await registry.arrive([message])
    with pytest.raises(codec.BadRecord, match="registry has no schema"):
        codec.decode(message, "Nic", registry)
    [reading] = [thread for thread in set(threading.enumerate()) - before if thread.name == "schemas"]
    answered.set()
    reading.join(60)
    assert codec.decode(message, "Nic", registry) == honest("Nic")


async def test_a_made_up_schema_holds_up_messages_for_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    monkeypatch.setattr(schema_log, "read_schemas", lambda cluster: reads.append(cluster) or {})
    registry = LogSchemas("127.0.0.1:9")
    for number in range(3):
        await registry.arrive([codec.SINGLE_OBJECT + number.to_bytes(8, "big")])
    assert len(reads) == 1


def test_a_worker_that_waits_for_schemas_has_not_stalled() -> None:
    assert StreamSettings().stall_s > schema_log.HOLD_S


def test_rows_that_are_no_schema_cost_a_line_in_the_log(log: str, caplog: pytest.LogCaptureFixture) -> None:
    publish_schemas(log)
    fingerprint, schema = later_schema("Nic")
    send_rows(log, ("no fingerprint", b"{}"), ("00" * 8, b"{"), ("11" * 8, None), ("22" * 8, b"[" * 100_000))
    send_rows(log, (fingerprint.hex(), json.dumps(schema).encode()), ("33" * 8, b"[1]"))
    with caplog.at_level(logging.WARNING):
        schemas = read_schemas(log)
    assert schemas[fingerprint] == schema
    assert caplog.text.count("no schema") == 4
    for key in (b"\x22" * 8, b"\x33" * 8):
        with pytest.raises(codec.BadRecord, match="Nic: ") as refused:
            codec.decode(codec.SINGLE_OBJECT + key + b"body", "Nic", LogSchemas(log))
        assert refused.value.reason == "UNKNOWN_SCHEMA"


def schema_row(key: str, value: bytes | None) -> Message:
    return Message(0, SCHEMAS.name, 0, 0, key, value)


def test_a_followed_schema_is_awaited_and_never_read(honest: Any) -> None:
    fingerprint, schema = later_schema("Nic")
    message, registry = later_message("Nic", honest("Nic")), FollowedSchemas()
    assert registry.id_of("Nic", schema) is None
    registry.take(schema_row("no fingerprint", b"{}"))
    with pytest.raises(SchemaUnread, match=f"schema {fingerprint.hex()} has not arrived"):
        codec.decode(message, "Nic", registry)
    for value in (b"{", None, b"[" * 100_000):
        registry.take(schema_row(fingerprint.hex(), value))
        with pytest.raises(codec.BadRecord, match="registry has no schema"):
            codec.decode(message, "Nic", registry)
    registry.take(schema_row(fingerprint.hex(), json.dumps(schema).encode()))
    assert codec.decode(message, "Nic", registry) == honest("Nic")
    with pytest.raises(codec.BadRecord, match="registry has no schema 7"):
        codec.decode(b"\x00\x00\x00\x00\x07", "Nic", registry)


def test_ids_of_a_schema_registry_are_unknown_without_one() -> None:
    with pytest.raises(codec.BadRecord, match="registry has no schema 7") as refused:
        codec.decode(b"\x00\x00\x00\x00\x07", "Nic", LogSchemas("127.0.0.1:9"))
    assert refused.value.reason == "UNKNOWN_SCHEMA"


def test_a_process_has_one_reader_of_a_cluster() -> None:
    assert as_settings("h:1").registry() is as_settings("h:1").registry() is log_schemas(as_settings("h:1"))
    assert as_settings("h:2").registry() is not as_settings("h:1").registry()
