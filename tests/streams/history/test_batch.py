"""Batches: limits of size and age, and deduplication tokens."""

from __future__ import annotations

from schemas.kafka.message import Message
from streams.history.batch import Batch, Policy, token

POLICY = Policy(batch_bytes=100, batch_messages=3, batch_s=2.0)


def message(partition: int, offset: int, append_ns: int) -> Message:
    return Message(append_ns, "t", partition, offset, "", None)


def test_a_batch_waits_for_its_age_unless_it_is_full() -> None:
    batch: Batch[str] = Batch(POLICY)
    assert batch.wait_s(0.0) is None
    batch.add("a", 10, now_s=5.0)
    batch.add("b", 10, now_s=6.0)
    assert batch.wait_s(6.0) == 1.0, "the first message sets the age"
    assert batch.wait_s(9.0) == 0.0
    batch.add("c", 10, now_s=6.0)
    assert batch.full()
    assert batch.wait_s(6.0) == 0.0


def test_a_large_message_fills_a_batch() -> None:
    batch: Batch[str] = Batch(POLICY)
    batch.add("a", 100, 0.0)
    assert batch.full()
    assert batch.take() == ["a"]
    assert (batch.size_bytes, batch.wait_s(1.0)) == (0, None)


def test_messages_that_could_not_be_sent_stay_first() -> None:
    batch: Batch[str] = Batch(POLICY)
    batch.add("a", 10, 0.0)
    items = batch.take()
    batch.add("b", 10, 1.0)
    batch.put_back(items, 3.0)
    assert batch.wait_s(3.0) == 2.0
    assert batch.take() == ["a", "b"]


def test_a_token_depends_on_the_set_of_messages_and_not_on_their_order() -> None:
    messages = [message(0, 5, 100), message(1, 5, 101), message(0, 6, 102)]
    assert token("t", messages) == token("t", messages[::-1])
    assert token("t", messages).startswith("t/0,1/3/")
    others = [
        token("u", messages),
        token("t", messages[:2]),
        token("t", [message(0, 5, 99), *messages[1:]]),
        token("t", [message(0, 4, 100), *messages[1:]]),
    ]
    assert len({token("t", messages), *others}) == 5
