"""The publisher against the embedded log."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.kafka import BEGINNING
from schemas.kafka.publisher import Publisher, PublishFailed
from schemas.kafka.reader import TopicReader
from schemas.records import LinkHealth
from schemas.topics import CONFIG, LINK_HEALTH, REJECTS
from tests.records import make


def test_records_tombstones_and_encoded_messages(log):
    publisher = Publisher(log)
    publisher.publish(LINK_HEALTH, "a:1<>b:1", make(LinkHealth, subject="a:1<>b:1"))
    publisher.publish(LINK_HEALTH, "a:1<>b:1", None)
    publisher.send(REJECTS.name, b"\xff", b"raw")
    publisher.flush(10)
    with TopicReader.open(log, {LINK_HEALTH: BEGINNING, REJECTS: BEGINNING}) as reader:
        found = {}
        for message in reader.read_to_end():
            found.setdefault(message.key_bytes, []).append(message.value)
    record, tombstone = found[b"a:1<>b:1"]
    assert codec.decode(record, LinkHealth)["subject"] == "a:1<>b:1"
    assert tombstone is None
    assert found[b"\xff"] == [b"raw"]


def test_a_record_that_does_not_fit_its_schema_is_refused():
    with pytest.raises(ValueError, match="LinkHealth"):
        Publisher("127.0.0.1:1").publish(LINK_HEALTH, "x", {"subject": 3})


def test_without_a_log_flush_raises_once():
    publisher = Publisher("127.0.0.1:1", options={"delivery.timeout.ms": 100})
    publisher.publish(CONFIG, "*", None)
    with pytest.raises(PublishFailed, match=r"log 127\.0\.0\.1:1: "):
        publisher.flush(0.2)
