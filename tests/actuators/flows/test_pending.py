"""Messages of a later version wait for their schema: none is lost, and none is processed twice."""

from __future__ import annotations

import math

import pytest

from actuators.flows import pending
from actuators.flows.pending import MAX_WAIT_S, PendingMessages
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.schema_log import SchemaUnread


class Desk:
    """Processes messages whose schema, their value, has arrived; `now_s` is the time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.schemas = {b"ours"}
        self.processed: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.checks: list[float] = []
        handlers = {"decision": self._process, "fallbacks": self._process, "config": self._take_config}
        self.pending = PendingMessages(handlers, self, lambda: self.now_s)

    def _process(self, message: Message) -> None:
        if message.value not in self.schemas:
            raise SchemaUnread("has not arrived")
        self.processed.append(message.offset)

    def _take_config(self, message: Message) -> None:
        self._process(message)
        self.pending.supersede(message)

    def check_schemas(self, at_s: float) -> None:
        self.checks.append(at_s)

    def reject(self, message: Message, bad: codec.BadRecord) -> None:
        self.refused.append((message.offset, bad.reason))

    def done(self, message: Message) -> None:
        assert self.refused[-1][0] == message.offset

    def put(self, offset: int, schema: bytes, kind: str = "decision", key: str = "h1") -> None:
        self.pending.process(kind, Message(0, kind, 0, offset, key, schema))


def test_messages_wait_for_their_schema_alone_and_in_order() -> None:
    desk = Desk()
    for offset, schema in enumerate((b"a", b"ours", b"b", b"a")):
        desk.put(offset, schema)
    assert (desk.processed, len(desk.pending)) == ([1], 3)
    desk.schemas.add(b"a")
    desk.pending.retry(-math.inf)
    assert (desk.processed, len(desk.pending)) == ([1, 0, 3], 1)
    desk.pending.retry(-math.inf)
    desk.schemas.add(b"b")
    desk.pending.retry(-math.inf)
    desk.pending.retry(-math.inf)
    assert (desk.processed, len(desk.pending), desk.refused) == ([1, 0, 3, 2], 0, [])


def test_a_schema_that_never_arrives_ends_the_wait() -> None:
    desk = Desk()
    desk.put(0, b"made up")
    desk.now_s += 1
    desk.put(1, b"made up")
    desk.now_s += MAX_WAIT_S - 1.5
    desk.pending.refuse_late()
    assert desk.refused == []
    desk.now_s += 0.5
    desk.pending.refuse_late()
    assert (desk.refused, len(desk.pending)) == ([(0, "UNKNOWN_SCHEMA")], 1)


def test_a_message_is_refused_once_all_schemas_have_arrived_without_its_own() -> None:
    desk = Desk()
    desk.put(0, b"made up")
    desk.now_s += 1
    desk.put(1, b"made up")
    desk.put(2, b"a")
    assert desk.checks == [100.0, 101.0, 101.0]
    desk.pending.retry(100.5)
    assert (desk.refused, len(desk.pending)) == ([(0, "UNKNOWN_SCHEMA")], 2)
    desk.schemas.add(b"a")
    desk.pending.retry(101.0)
    assert (desk.refused[1:], desk.processed, len(desk.pending)) == ([(1, "UNKNOWN_SCHEMA")], [2], 0)
    assert desk.checks[3:] == [-math.inf], "nothing waits"


@pytest.mark.parametrize(("limit", "value"), [("MAX_MESSAGES", 2), ("MAX_BYTES", 8)])
def test_number_and_bytes_of_waiting_messages_are_limited(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(pending, limit, value)
    desk = Desk()
    for offset in range(3):
        desk.put(offset, b"four")
    assert (desk.refused, len(desk.pending)) == ([(2, "UNKNOWN_SCHEMA")], 2)
    desk.schemas.add(b"four")
    desk.pending.retry(-math.inf)
    desk.put(3, b"eight by")
    assert (desk.processed, len(desk.pending)) == ([0, 1], 1), "the former ones no longer count"


def test_only_the_newest_fallbacks_of_a_host_wait() -> None:
    desk = Desk()
    for offset, host in enumerate(("h1", "h2", "h1")):
        desk.put(offset, b"a", "fallbacks", host)
    assert len(desk.pending) == 2
    desk.schemas.add(b"a")
    desk.pending.retry(-math.inf)
    assert (desk.processed, desk.refused) == ([1, 2], [])


@pytest.mark.parametrize("limit", ["MAX_MESSAGES", "MAX_BYTES"])
def test_a_config_waits_beyond_all_limits(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A config can stop all actions."""
    monkeypatch.setattr(pending, limit, 1)
    desk = Desk()
    desk.put(0, b"a")
    desk.put(7, b"b", "config", "*")
    desk.now_s += 2 * MAX_WAIT_S
    desk.put(1, b"a")
    desk.pending.refuse_late()
    assert {offset for offset, _ in desk.refused} == {0, 1}
    desk.schemas.add(b"b")
    desk.pending.retry(-math.inf)
    assert (desk.processed, len(desk.pending)) == ([7], 0)


def test_a_waiting_config_is_dropped_once_a_newer_one_of_its_key_counts() -> None:
    desk = Desk()
    for offset, schema, key in ((0, b"a", "*"), (1, b"a", "h1"), (2, b"b", "*"), (3, b"ours", "*")):
        desk.put(offset, schema, "config", key)
    desk.put(4, b"a", "config", "*")
    desk.schemas |= {b"a", b"b"}
    desk.pending.retry(-math.inf)
    assert desk.processed == [3, 1, 4], "0 and 2 are older than 3"


def test_a_config_that_was_processed_after_its_wait_drops_those_before_it() -> None:
    desk = Desk()
    desk.put(0, b"a", "config", "*")
    desk.put(1, b"b", "config", "*")
    desk.schemas.add(b"b")
    desk.pending.retry(-math.inf)
    assert (desk.processed, len(desk.pending)) == ([1], 0)


def test_a_config_that_nobody_can_read_takes_the_place_of_no_other() -> None:
    """A message without a signature can name a made-up schema."""
    desk = Desk()
    desk.put(0, b"later", "config", "*")
    desk.put(1, b"made up", "config", "*")
    desk.schemas.add(b"later")
    desk.pending.retry(desk.now_s)
    assert (desk.processed, desk.refused, len(desk.pending)) == ([0], [(1, "UNKNOWN_SCHEMA")], 0)


def test_the_number_of_waiting_configs_of_a_key_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "MAX_CONFIGS", 2)
    desk = Desk()
    for offset, key in enumerate(("*", "h1", "*", "*", "*")):
        desk.put(offset, b"a", "config", key)
    assert desk.refused == [(0, "UNKNOWN_SCHEMA"), (2, "UNKNOWN_SCHEMA")]
    desk.schemas.add(b"a")
    desk.pending.retry(-math.inf)
    assert desk.processed == [1, 3, 4]
