"""The publisher: partitions of the contract, refused records and a log that does not answer."""

from __future__ import annotations

import pytest

from schemas.kafka import BEGINNING, partition_of
from schemas.kafka.publisher import Publisher, PublishFailed
from schemas.kafka.reader import TopicReader
from schemas.topics import ALERTS, CONFIG
from tests.records import make


def test_records_arrive_on_the_partition_of_their_key(log):
    publisher, keys = Publisher(log), [f"h{number}/eth1" for number in range(8)]
    for key in keys:
        publisher.publish(ALERTS, key, make("Alert", alert_id=f"{key}/1"))
    publisher.publish(ALERTS, keys[0], None)
    publisher.flush(10)
    with TopicReader(log, {ALERTS: BEGINNING}) as reader:
        reader.connect()
        found = list(reader.read_to_end())
    assert all(message.partition == partition_of(message.key, 2) for message in found)
    assert sorted(message.key for message in found) == sorted([*keys, keys[0]])
    assert [message.value for message in found if message.key == keys[0]][1] is None


def test_a_record_that_does_not_fit_its_schema_is_refused_before_it_is_sent(log):
    with pytest.raises(ValueError, match="alert_id"):
        Publisher(log).publish(ALERTS, "a", make("Alert") | {"alert_id": 7})


def test_a_log_that_does_not_answer_is_an_error():
    publisher = Publisher("127.0.0.1:1")
    publisher.publish(CONFIG, "*", None)
    with pytest.raises(PublishFailed, match="no answer"):
        publisher.flush(0.2)
