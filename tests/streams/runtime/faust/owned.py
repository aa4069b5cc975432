"""A stage of a worker without a broker, with what tests look at."""

from __future__ import annotations

import asyncio
from typing import Any

from faust.types import TP

from schemas import codec
from schemas.records import Steps
from schemas.topics import STEPS
from streams.runtime.faust.operator_stage import OperatorStage
from tests.streams.runtime.fake_context import MS, TP0, FakeContext, Record, settle, until
from tests.streams.runtime.noting_operator import (
    NotingOperator,
    NotingStage,
)

S = 1_000 * MS


class Owned(OperatorStage):
    """A stage of a worker, with what tests look at."""

    def __init__(self, context: FakeContext, stage: NotingStage) -> None:
        super().__init__(context, stage)
        self.noting = stage
        self.fake = context

    @property
    def operator(self) -> NotingOperator:
        """The operator of the only partition."""
        (operator,) = (each.operator for each in self._partitions.values())
        assert isinstance(operator, NotingOperator)
        return operator

    def give(self, *offsets: int, **fields: Any) -> None:
        """Deliver messages in one batch."""
        records = [Record(offset, **fields) for offset in offsets]
        self.receive(records[0].tp, records)

    async def take(self, *offsets: int, **fields: Any) -> None:
        """Deliver messages, and wait until they are taken and their outputs passed to the producer."""
        self.give(*offsets, **fields)
        await self.idle()

    async def idle(self) -> None:
        """Wait until all messages are taken, and what they gave is passed to the producer."""
        await until(lambda: not self._queued)
        await settle()
        async with self.lock:
            pass

    async def restore(self, *tps: TP) -> None:
        self.assign(tps)
        await asyncio.wait_for(self.ready(), 5)

    async def commit(self, tp: TP = TP0) -> int | None:
        """Return the position that is committed next."""
        await settle()
        self._release()
        return self.commit_position(tp)

    def taken(self) -> list[list[int]]:
        """Return the offsets that each operator has taken, by partition."""
        return [each.taken for each in self.operators if isinstance(each, NotingOperator)]

    def steps(self) -> list[Steps]:
        """Return the published steps."""
        return [codec.decode(value, STEPS.record) for value in self.fake.values(STEPS)]


async def heavy(context: FakeContext) -> Owned:
    """Return a stage whose operator works in its thread on message 0."""
    stage = Owned(context, NotingStage())
    stage.noting.is_heavy = True
    await stage.restore(TP0)
    stage.give(0)
    assert await asyncio.to_thread(stage.noting.working.wait, 10)
    return stage
