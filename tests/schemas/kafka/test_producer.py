"""The producer of a service."""

from __future__ import annotations

import pytest

from schemas.kafka.producer import NOT_QUEUED, open_producer


def test_messages_that_are_not_queued_raise_one_group_of_errors() -> None:
    producer = open_producer("127.0.0.1:1", {"queue.buffering.max.messages": 1, "message.max.bytes": 1_000})
    with pytest.raises(NOT_QUEUED, match="too large"):
        producer.produce("fabric.links", value=bytes(2_000))
    producer.produce("fabric.links", value=b"1")
    with pytest.raises(NOT_QUEUED, match="full"):
        producer.produce("fabric.links", value=b"2")
    producer.purge()
    producer.flush(1.0)
