"""Restored records: those before the end that the reader saw first, kept as their stage declares."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.kafka.message import Message, Place
from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING, Start, since
from schemas.topics import CONTENTION, LINK_HEALTH, Topic
from streams.runtime.faust import restore
from streams.runtime.operator import Restore

ENDS: dict[Place, int] = {(LINK_HEALTH.name, 0): 3, (LINK_HEALTH.name, 1): 1, (CONTENTION.name, 0): 1}


class Reader:
    """Reads a log of two messages a poll, which grows meanwhile."""

    starts: dict[Topic[Any], Start]

    def __init__(self, cluster: KafkaSettings) -> None:
        self.ends: dict[Place, int] = {
            (LINK_HEALTH.name, 0): 3,
            (LINK_HEALTH.name, 1): 1,
            (CONTENTION.name, 0): 1,
        }
        self._log = [
            Message(1, LINK_HEALTH.name, 1, 0, "b", b"first"),
            Message(1, LINK_HEALTH.name, 0, 0, "a", b"first"),
            Message(2, LINK_HEALTH.name, 0, 1, "a", b"second"),
            Message(3, LINK_HEALTH.name, 0, 2, "c", None),
            Message(4, CONTENTION.name, 0, 0, "a", b"window"),
            Message(5, LINK_HEALTH.name, 0, 3, "a", b"after the end"),
        ]

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def assign(self, starts: dict[Topic[Any], Start]) -> None:
        Reader.starts = starts

    async def caught_up(self) -> bool:
        return not self._log

    async def poll(self, timeout_s: float) -> list[Message]:
        messages, self._log = self._log[:2], self._log[2:]
        return messages


async def test_the_past_ends_where_the_reader_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "AsyncTopicReader", Reader)
    restores = [
        Restore(LINK_HEALTH, BEGINNING, last_per_key=True),
        Restore(CONTENTION, lambda log_ns: since(log_ns - 5)),
    ]
    past, ends = await restore.read_past(KafkaSettings(), restores, 100)
    assert Reader.starts == {LINK_HEALTH: BEGINNING, CONTENTION: since(95)}
    assert [(each.key, each.value) for each in past[LINK_HEALTH.name]] == [("a", b"second"), ("b", b"first")]
    assert [each.value for each in past[CONTENTION.name]] == [b"window"]
    assert ends == ENDS


async def test_a_stage_without_a_past_asks_no_broker() -> None:
    assert await restore.read_past(KafkaSettings(bootstrap="nobody:1"), [], 100) == ({}, {})
