"""Ownership: one task serves each generation of partitions, and ends with it."""

from __future__ import annotations

import asyncio

from streams.runtime.faust.ownership import Generation, Ownership
from tests.streams.runtime.fake_context import TP0, FakeContext, settle
from tests.streams.runtime.noting_operator import NotingStage


async def test_one_task_serves_a_generation_and_ends_with_it() -> None:
    context = FakeContext()
    at_work: list[Generation] = []

    class Working(Ownership):
        async def _serve(self, generation: Generation) -> None:
            at_work.append(generation)
            try:
                generation.recovered.set()
                await asyncio.Event().wait()
            finally:
                at_work.remove(generation)

    owned = Working(context, NotingStage())  # type: ignore[arg-type]
    context.caught_up.clear()
    for _ in range(2):  # the same partitions twice, before any task could run
        owned.assign([TP0])
        await settle()
        await owned.revoke()
    owned.assign([TP0])
    context.caught_up.set()
    await owned.ready()
    assert at_work == [owned.generation]
    await owned.revoke()
    assert at_work == []
    owned.assign([])
    await owned.ready()
    assert (at_work, owned.positions) == ([], {})
    await context.stop()
