"""Messages on their way to a store: positions to commit, limits, retries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from faust.types import TP

from schemas.checks import BadRecord
from schemas.kafka.message import Message
from schemas.topics import LINKS, REJECTS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust.sink_stage import RECORD_BYTES, SinkStage
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Output, Owner, Stage
from streams.runtime.settings import StreamSettings
from tests.streams.runtime.fake_context import TP0, FakeContext, Record, settle, until

VALUE = b"x" * 56
BATCH_BYTES = 4 * (RECORD_BYTES + len(VALUE))


class RowsOperator(Operator):
    """Makes a row of each message, at once."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        self.messages += messages

    def due_ns(self) -> int:
        return 0 if self.messages else NEVER_NS

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        messages, self.messages = self.messages, []
        return [Output(LINKS, str(messages[0].offset), rows={"links": messages})]


class RowsStage(Stage):
    name, owner, inputs, outputs = "rows", LINKS, (Input(LINKS),), ()

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> RowsOperator:
        return RowsOperator()


class RejectsStage(RowsStage):
    name, owner, inputs = "rejects", REJECTS, (Input(REJECTS),)


class SlowStore:
    """Notes tokens; the test sets when it stores, and how many inserts fail before."""

    def __init__(self) -> None:
        self.has_space = threading.Event()
        self.failures = 0
        self.tokens: list[str] = []
        self.forgotten = 0

    def insert(self, table: str, rows: Any, token: str) -> None:
        assert self.has_space.wait(10)
        if self.failures:
            self.failures -= 1
            raise OSError("away")
        self.tokens.append(token)

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
async def sink(context: FakeContext, store: SlowStore) -> SinkStage:
    history = HistorySinkSettings(batch_bytes=BATCH_BYTES, retry_ms=10, retry_max_ms=10)
    context.settings = StreamSettings(history=history)
    sink = SinkStage(context, RowsStage(), store)  # type: ignore[arg-type]
    sink.assign([TP0])
    await sink.ready()
    return sink


def receive(sink: SinkStage, *offsets: int) -> bool:
    return sink.receive(TP0, [Record(offset, value=VALUE) for offset in offsets])


async def test_the_position_follows_the_stored_messages(sink: SinkStage, store: SlowStore) -> None:
    assert receive(sink, 5, 6, 9)
    await settle()
    assert sink.commit_position(TP0) is None
    store.has_space.set()
    await until(lambda: sink.commit_position(TP0) == 10)
    assert store.tokens == ["5", "6", "9"], "in their order"
    await sink.revoke()
    assert sink.commit_position(TP0) is None
    assert not receive(sink, 10)


async def test_no_more_is_read_while_a_batch_waits(sink: SinkStage, store: SlowStore) -> None:
    receive(sink, *range(7))
    await settle()
    assert sink.has_capacity
    receive(sink, 7)
    assert not sink.has_capacity
    store.has_space.set()
    await until(lambda: sink.commit_position(TP0) == 8)
    assert sink.has_capacity


async def test_an_insert_is_repeated_until_the_store_is_back(sink: SinkStage, store: SlowStore) -> None:
    store.failures = 3
    store.has_space.set()
    receive(sink, 0, 1)
    await until(lambda: sink.commit_position(TP0) == 2)
    assert store.tokens == ["0", "1"]


async def test_a_new_generation_waits_for_the_insert_of_the_last(sink: SinkStage, store: SlowStore) -> None:
    receive(sink, 0, 1)
    await settle()
    await sink.revoke()
    sink.assign([TP0])
    await sink.ready()
    receive(sink, 0, 1)
    await asyncio.sleep(0.01)
    assert sink.commit_position(TP0) is None
    store.has_space.set()
    await until(lambda: sink.commit_position(TP0) == 2)
    assert store.tokens == ["0", "0", "1"], "the first insert was under way"
    assert store.forgotten == 2, "once for each generation: another sink may repeat a failed insert"


class RefusingStore(SlowStore):
    """Refuses every row of the topic."""

    def insert(self, table: str, rows: Any, token: str) -> None:
        raise BadRecord("OTHER", "table of another release")


async def test_a_topic_goes_on_though_the_store_refuses_the_reject_of_its_reject(
    context: FakeContext, caplog: pytest.LogCaptureFixture
) -> None:
    context.settings = StreamSettings(history=HistorySinkSettings(batch_bytes=BATCH_BYTES))
    sink = SinkStage(context, RejectsStage(), RefusingStore())  # type: ignore[arg-type]
    place = TP(REJECTS.name, 0)
    sink.assign([place])
    await sink.ready()
    sink.receive(place, [Record(offset, place, VALUE) for offset in range(5)])
    await until(lambda: sink.commit_position(place) == 5)
    lines = [record for record in caplog.records if "left out of history" in record.message]
    assert len(lines) == 1
