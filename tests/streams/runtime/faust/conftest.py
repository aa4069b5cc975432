"""A worker without a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streams.runtime.faust import operator_stage as module
from streams.runtime.operator import Past
from tests.streams.runtime.fake_context import MS, FakeContext
from tests.streams.runtime.faust.owned import Owned
from tests.streams.runtime.noting_operator import (
    NotingStage,
)

S = 1_000 * MS


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(*_: object) -> int:
        return 4

    async def past(*_: object) -> tuple[Past, dict[tuple[str, int], int]]:
        return {}, {}

    monkeypatch.setattr(module, "partition_count", count)
    monkeypatch.setattr(module, "read_past", past)
    monkeypatch.setattr(module, "IDLE_S", 0.01)


@pytest.fixture
async def context() -> AsyncIterator[FakeContext]:
    context = FakeContext()
    yield context
    await context.stop()


@pytest.fixture
async def stage(context: FakeContext) -> Owned:
    return Owned(context, NotingStage())
