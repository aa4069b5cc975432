"""A message of the log: its order, its key, and its record, which is decoded once."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.checks import BadRecord
from schemas.kafka.message import Message
from schemas.records import LinkEvent
from schemas.topics import LINKS
from tests.records import make

EVENT: LinkEvent = make(LinkEvent, nic="h1/eth1", shard="fabric")


def message(key: str = "fabric") -> Message:
    return Message(5, LINKS.name, 0, 3, key, codec.encode(LINKS.record, EVENT))


def test_messages_sort_by_log_time_then_place_then_offset() -> None:
    first = Message(9, "b", 0, 7, "", None, log_ns=1)
    others = [
        Message(2, "a", 1, 0, "", None),
        Message(2, "b", 0, 1, "", None),
        Message(2, "b", 0, 2, "", None),
    ]
    assert sorted([*reversed(others), first]) == [first, *others]


def test_a_key_that_is_no_text_is_kept_as_it_was_sent() -> None:
    odd = Message(1, LINKS.name, 0, 0, b"\xff", None)
    assert (odd.key, odd.key_bytes) == ("\ufffd", b"\xff")
    assert (Message(1, LINKS.name, 0, 0, None, None).key, message().key_bytes) == ("", b"fabric")


def test_a_record_is_decoded_once() -> None:
    event = message()
    assert event.decoded(LINKS) is event.decoded(LINKS)


def test_a_record_under_a_foreign_key_is_refused() -> None:
    with pytest.raises(BadRecord):
        message("other").decoded(LINKS)
