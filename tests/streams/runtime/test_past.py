"""What a new owner restores: all messages of a topic, or the newest of each key."""

from __future__ import annotations

from typing import Any

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.start import BEGINNING, since
from schemas.topics import ALERTS
from streams.runtime.operator import Restore
from streams.runtime.past import PastMessages, start_of
from tests.records import make


def alert(offset: int, alert_id: str, key: str, partition: int = 0) -> Message:
    value = codec.encode(ALERTS.record, make("Alert", alert_id=alert_id, subject=key))
    return Message(offset, ALERTS.name, partition, offset, key, value)


def kept(messages: list[Message], **how: Any) -> list[tuple[int, int]]:
    past = PastMessages(Restore(ALERTS, BEGINNING, **how))
    for message in messages:
        past.add(message)
    return [(each.partition, each.offset) for each in past.messages()]


def test_all_messages_are_kept_by_partition_and_offset() -> None:
    assert kept([alert(0, "a", "x", 1), alert(1, "a", "x", 1), alert(0, "b", "y")]) == [
        (0, 0),
        (1, 0),
        (1, 1),
    ]


def test_the_newest_of_each_key_is_kept_and_a_tombstone_removes_it() -> None:
    gone = Message(3, ALERTS.name, 0, 3, "y", None)
    messages = [alert(0, "a", "x"), alert(1, "b", "y"), alert(2, "c", "x"), gone]
    assert kept(messages, last_per_key=True) == [(0, 2)]


def test_a_start_may_depend_on_the_time_of_the_begin() -> None:
    assert start_of(Restore(ALERTS, BEGINNING), 100) == BEGINNING
    assert start_of(Restore(ALERTS, lambda log_ns: since(log_ns - 10)), 100) == since(90)
