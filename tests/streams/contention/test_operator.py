"""The operator of contention: windows at once, and the messages that a new owner takes again."""

from __future__ import annotations

from schemas.kafka.message import Message
from schemas.records import ContentionState
from schemas.topics import CONTENTION
from streams.contention.stage import MAX_RETAIN_NS, ContentionStage
from streams.runtime.operator import NEVER_NS, Moment
from tests.streams.runtime.recorded import begun


def test_windows_are_due_at_once_and_a_message_is_needed_while_its_window_is_open() -> None:
    operator, tables, messages = begun("fabric", ContentionStage)
    assert (operator.due_ns(), operator.needed_from()) == (NEVER_NS, NEVER_NS)
    open_links: set[str] = set()
    oldest: list[int] = []
    for message in messages:
        operator.take([message], tables)
        outputs = operator.advance(Moment(message.log_ns, 0), tables)
        for output in outputs:
            assert output.topic is CONTENTION
            is_closed = output.record["state"] == ContentionState.CLOSED
            (open_links.discard if is_closed else open_links.add)(output.key)
        assert operator.due_ns() == NEVER_NS
        if operator.needed_from() < message.offset and open_links:
            oldest.append(message.offset - operator.needed_from())
    assert oldest
    assert max(oldest) < 1_000, "those of some seconds"


def test_outputs_of_messages_are_due_at_once() -> None:
    operator, tables, messages = begun("fabric", ContentionStage)
    operator.take(messages, tables)
    assert operator.due_ns() == 0
    assert operator.advance(Moment(messages[-1].log_ns, 0), tables) != []
    assert operator.due_ns() == NEVER_NS


def test_no_message_is_needed_for_longer_than_some_seconds() -> None:
    """A shard that sends no more holds no other shard's messages back."""
    operator, tables, messages = begun("fabric", ContentionStage)
    taken = iter(messages)
    while operator.needed_from() == NEVER_NS:
        last = next(taken)
        operator.take([last], tables)
    later_ns = last.log_ns + MAX_RETAIN_NS + 1
    tombstone = Message(later_ns, *last.place, last.offset + 1, "fabric", None)
    operator.take([tombstone], tables)
    assert operator.needed_from() == NEVER_NS


def test_a_bad_message_is_rejected_alone() -> None:
    operator, tables, messages = begun("fabric", ContentionStage)
    bad = Message(messages[0].log_ns, *messages[0].place, 10**6, messages[0].key_bytes, b"nonsense")
    operator.take([messages[0], bad, messages[1]], tables)
    assert [message for message, _ in operator.rejected] == [bad]
