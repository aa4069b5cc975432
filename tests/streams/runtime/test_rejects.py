"""Rejects: records of messages that could not be used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import Reject
from schemas.topics import REJECTS, Topic
from streams.runtime.faust.rejects import BURST, RejectBudget, send_reject
from streams.runtime.rejects import KEY_BYTES, VALUE_BYTES, reject_record


class Context:
    """A worker context that keeps the records it is given."""

    def __init__(self) -> None:
        self.rejected = 0
        self.reject_budget = RejectBudget()
        self.sent: list[tuple[str, str, Reject]] = []

    async def send(self, topic: Topic[Reject], key: str, record: Reject) -> Awaitable[None]:
        self.sent.append((topic.name, key, record))
        return asyncio.sleep(0)


APPEND_NS = 1_700_000_000_123_000_000


def message(key: str | bytes | None = "s1", value: bytes | None = b"xyz") -> Message:
    return Message(APPEND_NS, "fabric.links", 2, 77, key, value)


def test_long_keys_values_and_details_are_cut_and_the_size_is_kept() -> None:
    record = reject_record(message(b"k" * 999, b"v" * 5000), "links", "OUT_OF_RANGE", "d" * 999)
    assert len(record["key"]) == KEY_BYTES
    assert len(record["head"]) == VALUE_BYTES
    assert record["size_bytes"] == 5000
    assert codec.decode(codec.encode("Reject", record), "Reject") == record


def test_a_tombstone_has_an_empty_head() -> None:
    record = reject_record(message(None, None), "links", "OTHER", "")
    assert (record["key"], record["head"], record["size_bytes"]) == (b"", b"", 0)


def test_a_reject_is_sent_under_the_topic_of_its_message_and_counted() -> None:
    context = Context()
    error = codec.BadRecord("OUT_OF_RANGE", "epoch 5")
    asyncio.run(send_reject(context, message(), "policy", error))  # type: ignore[arg-type]
    [(topic, key, record)] = context.sent
    assert (topic, key) == (REJECTS.name, "fabric.links")
    assert context.rejected == 1
    assert record["append_ns"] == APPEND_NS, "whole milliseconds survive"
    assert (record["partition"], record["offset"], record["key"]) == (2, 77, b"s1")
    assert (record["reason"], record["reader"]) == ("OUT_OF_RANGE", "policy")


def test_a_key_that_is_no_text_keeps_its_bytes() -> None:
    context = Context()
    asyncio.run(send_reject(context, message(b"\xff"), "policy", ValueError("bad")))  # type: ignore[arg-type]
    record = context.sent[0][2]
    assert record["append_ns"] == APPEND_NS
    assert (record["reason"], record["key"]) == ("OTHER", b"\xff")


def test_a_flood_of_bad_messages_is_counted_but_not_published() -> None:
    budget = RejectBudget()
    assert sum(budget.take(100.0) for _ in range(3 * BURST)) == BURST
    assert budget.dropped == 2 * BURST
    assert budget.take(101.0), "more are allowed a second later"


def test_an_unexpected_error_is_published_with_its_class_and_place() -> None:
    context = Context()
    try:
        {}["nic"]
    except KeyError as error:
        asyncio.run(send_reject(context, message(), "links", error))
    ((_, _, record),) = context.sent
    assert record["reason"] == "OTHER"
    assert record["detail"].startswith("KeyError at tests/streams/runtime/test_rejects.py:")
