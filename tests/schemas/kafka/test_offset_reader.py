"""Positions in a real log: ends, committed offsets, and single messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from schemas.kafka.offset_reader import OffsetReader
from schemas.kafka.partitioning import partition_of
from schemas.kafka.reader import LogUnavailable, TopicMissing
from schemas.topics import LINKS

PLACES = [(LINKS.name, 0), (LINKS.name, 1)]


@pytest.fixture
def reader(log: str) -> Iterator[OffsetReader]:
    made = OffsetReader(log, [LINKS], "of-links")
    yield made
    made.close()


def test_ends_advance_with_messages_and_committed_offsets_with_the_group(
    log: str, reader: OffsetReader
) -> None:
    assert reader.ends() == dict.fromkeys(PLACES, 0)
    assert reader.committed(LINKS) == {}
    producer = Producer({"bootstrap.servers": log, "log_level": 0})
    for number in range(5):
        producer.produce(LINKS.name, b"%d" % number, b"k", partition=1)
    assert producer.flush(10) == 0
    assert reader.ends() == {PLACES[0]: 0, PLACES[1]: 5}
    group = Consumer({"bootstrap.servers": log, "group.id": "of-links"})
    group.commit(offsets=[TopicPartition(*PLACES[1], 3)], asynchronous=False)
    group.close()
    assert reader.committed(LINKS) == {PLACES[1]: 3}
    found = reader.messages_at({PLACES[1]: 4})
    assert [(place, message.value()) for place, message in found.items()] == [(PLACES[1], b"4")]
    assert reader.messages_at({PLACES[1]: 5}, 0.3) == {}
    assert reader.messages_at({}) == {}


def test_only_the_partitions_of_given_keys_are_read(log: str) -> None:
    for key in ("a", "b", "c"):
        reader = OffsetReader(log, [LINKS], "of-links", {LINKS: [key]})
        assert set(reader.ends()) == {(LINKS.name, partition_of(key, len(PLACES)))}
        reader.close()


def test_a_topic_that_is_missing_and_a_log_that_does_not_answer_are_named(log: str) -> None:
    absent = OffsetReader(log, [replace(LINKS, name="fabric.absent")], "of-links")
    with pytest.raises(TopicMissing, match=r"topic fabric\.absent: does not exist"):
        absent.ends()
    absent.close()
    nowhere = OffsetReader("127.0.0.1:1", [LINKS], "of-links")
    with pytest.raises(LogUnavailable, match=r"log 127\.0\.0\.1:1: "):
        nowhere.ends()
    nowhere.close()
