"""Messages on their way to a sink: order, positions to commit, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from schemas.kafka.message import Message
from streams.runtime.faust.sink import RECORD_BYTES, SinkReceiver
from tests.streams.runtime.fake_context import TP0, Record, until


class StoringSink:
    """Notes messages; the test says when they are stored."""

    batch_bytes = 10 * RECORD_BYTES

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.done: list[Callable[[], None]] = []
        self.has_space = asyncio.Event()

    async def take(self, message: Message, done: Callable[[], None]) -> None:
        await self.has_space.wait()
        self.taken.append(message)
        self.done.append(done)

    async def flush_when_due(self) -> None:
        await asyncio.Event().wait()


async def test_the_position_follows_the_stored_messages_in_any_order() -> None:
    sink = StoringSink()
    receiver = SinkReceiver(sink)
    running = asyncio.create_task(receiver.run())
    assert receiver.commit_position(TP0) is None
    receiver.receive(TP0, [Record(5), Record(6), Record(9)])
    assert receiver.commit_position(TP0) == 5
    sink.has_space.set()
    await until(lambda: len(sink.taken) == 3)
    assert [message.offset for message in sink.taken] == [5, 6, 9]
    for number, position in ((1, 5), (0, 9), (2, 10)):
        sink.done[number]()
        assert receiver.commit_position(TP0) == position
    receiver.forget([TP0])
    assert receiver.commit_position(TP0) is None
    running.cancel()


async def test_no_more_is_read_while_a_batch_waits() -> None:
    sink = StoringSink()
    receiver = SinkReceiver(sink)
    running = asyncio.create_task(receiver.run())
    receiver.receive(TP0, [Record(offset) for offset in range(10)])
    assert not receiver.has_capacity
    sink.has_space.set()
    await until(lambda: receiver.has_capacity)
    running.cancel()
