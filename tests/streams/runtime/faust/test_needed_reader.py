"""Inputs that are read only while they are needed, and a while longer."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING, Start, since
from schemas.topics import DELAYS, LINKS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust import needed_reader
from streams.runtime.faust.needed_reader import LINGER_S, NeededReader
from streams.runtime.operator import Input
from tests.streams.runtime.faust.test_groupless_stage import Broker, Notes, NotesStage, Reader, is_needed

BEGIN_NS = 1_000


class DelaysStage(NotesStage):
    inputs = (
        Input(LINKS, lambda log_ns, tables: BEGINNING),
        Input(DELAYS, lambda log_ns, tables: since(log_ns - 1), is_needed=is_needed),
    )


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(needed_reader.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> Any:
    Reader.broker = Broker()
    monkeypatch.setattr(needed_reader, "AsyncTopicReader", Reader)
    operator = Notes()
    return operator, NeededReader(KafkaSettings(), DelaysStage(), operator, FabricTables(), BEGIN_NS)


def starts() -> list[dict[str, Start]]:
    return [reader.starts for reader in Reader.broker.readers]


async def test_the_first_reading_starts_where_the_owner_begins_if_it_is_needed_at_once(needed: Any) -> None:
    operator, reader = needed
    assert operator.behind == {DELAYS.name}, "nothing is evaluated before it is known whether they are needed"
    operator.is_needed = True
    await reader.update(5_000)
    assert starts() == [{DELAYS.name: since(BEGIN_NS - 1)}]


async def test_a_later_reading_starts_at_its_own_time_and_ends_after_a_while(
    needed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, reader = needed
    clock = Clock(monkeypatch)
    await reader.update(2_000)
    assert (starts(), operator.behind) == ([], frozenset())
    operator.is_needed = True
    await reader.update(5_000)
    assert starts() == [{DELAYS.name: since(4_999)}]
    operator.is_needed = False
    clock.now_s += LINGER_S
    await reader.update(6_000)
    assert reader.reader is not None
    clock.now_s += 1
    await reader.update(7_000)
    assert (reader.reader, operator.behind, Reader.broker.readers[0].is_open) == (None, frozenset(), False)


async def test_the_operator_is_behind_until_the_present_end_is_read(needed: Any) -> None:
    operator, reader = needed
    for _ in range(reader.MAX_POLL + 1):
        Reader.broker.put(DELAYS)
    operator.is_needed = True
    await reader.update(5_000)
    assert len(await reader.poll()) == reader.MAX_POLL
    await reader.update(5_000)
    assert operator.behind == {DELAYS.name}
    assert len(await reader.poll()) == 1
    await reader.update(5_000)
    assert operator.behind == frozenset()
