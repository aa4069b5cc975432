"""The producer of a service."""

from __future__ import annotations

import pytest

from schemas.kafka.producer import NOT_QUEUED, load_producer, open_producer, produce


def test_messages_that_are_not_queued_raise_one_group_of_errors() -> None:
    producer = open_producer("127.0.0.1:1", {"queue.buffering.max.messages": 1, "message.max.bytes": 1_000})
    with pytest.raises(NOT_QUEUED, match="too large"):
        producer.produce("fabric.links", value=bytes(2_000))
    producer.produce("fabric.links", value=b"1")
    with pytest.raises(NOT_QUEUED, match="full"):
        producer.produce("fabric.links", value=b"2")
    producer.purge()
    producer.flush(1.0)


def test_a_full_queue_is_waited_for() -> None:
    """The broker does not exist: the queue holds what its limit allows, until messages expire."""
    options = {"queue.buffering.max.messages": 1, "message.timeout.ms": 200, "linger.ms": 0}
    producer = load_producer("127.0.0.1:9", options)
    expired: list[object] = []
    for value in (b"first", b"second"):
        produce(producer, "topic", value, on_delivery=lambda error, _: expired.append(error))
    assert len(expired) == 1
    producer.purge()
    producer.flush(10)
    assert len(expired) == 2
