"""The operator of queues: when it solves, what a new owner takes again, and how it keeps up."""

from __future__ import annotations

import pytest

from schemas.kafka.message import Message
from schemas.topics import PATH_QUEUEING, QUEUES
from streams.queues.stage import RETAIN_NS, SETTLE_NS, SKIP_BEHIND_NS, QueuesOperator, QueuesStage, slots_text
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Moment, Output
from tests.streams.runtime.recorded import begun

S = 1_000_000_000


@pytest.fixture
def at_work() -> tuple[QueuesOperator, FabricTables, list[Message]]:
    operator, tables, messages = begun("fabric", QueuesStage)
    assert isinstance(operator, QueuesOperator)
    return operator, tables, messages


def solved(operator: QueuesOperator, log_ns: int, tables: FabricTables) -> list[Output]:
    """Return the outputs of an advance."""
    result = operator.advance(Moment(log_ns, tables.clocks.log_offset_ns), tables)
    return list(result() if callable(result) else result)


def take_until_ready(operator: QueuesOperator, tables: FabricTables, messages: list[Message]) -> Message:
    """Take messages up to the one that completes a block; return it."""
    while operator.due_ns() == NEVER_NS:
        message = messages.pop(0)
        operator.take([message], tables)
    return message


def test_a_block_waits_for_the_messages_that_come_together_with_its_last(
    at_work: tuple[QueuesOperator, FabricTables, list[Message]],
) -> None:
    operator, tables, messages = at_work
    last = take_until_ready(operator, tables, messages)
    due_ns = last.log_ns + SETTLE_NS
    assert operator.due_ns() == due_ns
    assert solved(operator, due_ns - 1, tables) == []
    outputs = solved(operator, due_ns, tables)
    assert {output.topic for output in outputs} == {QUEUES}
    assert operator.due_ns() == NEVER_NS


def test_a_message_is_needed_until_its_blocks_are_published_or_dropped(
    at_work: tuple[QueuesOperator, FabricTables, list[Message]],
) -> None:
    operator, tables, messages = at_work
    assert operator.needed_from() == NEVER_NS
    operator.take(messages, tables)
    newest_ns = max(message.log_ns for message in messages)
    retained = [message.offset for message in messages if message.log_ns >= newest_ns - RETAIN_NS]
    assert 0 < len(retained) < len(messages)
    assert operator.needed_from() == retained[0]


def test_a_block_that_cannot_be_solved_costs_no_other(
    at_work: tuple[QueuesOperator, FabricTables, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, tables, messages = at_work
    take_until_ready(operator, tables, messages)
    (shard,) = operator._shards.values()
    solve, blocks = shard.queues.solve, []

    def refuse_the_first(log_ns: int) -> list[object]:
        blocks.append(solve(log_ns))
        if len(blocks) == 1:
            raise ValueError("no solution")
        return blocks[-1]

    monkeypatch.setattr(shard.queues, "solve", refuse_the_first)
    outputs: list[Output] = []
    while messages:
        outputs += solved(operator, operator.due_ns(), tables)
        take_until_ready(operator, tables, messages) if len(messages) > 20 else messages.clear()
    assert [(key, str(error)) for key, error in operator.failed] == [("fabric", "no solution")]
    assert len(outputs) == sum(len(records) for records in blocks[1:]) > 0


def test_a_bad_message_is_rejected_and_the_others_are_taken(
    at_work: tuple[QueuesOperator, FabricTables, list[Message]],
) -> None:
    operator, tables, messages = at_work
    bad = Message(messages[0].append_ns, *messages[0].place, 10**6, messages[0].key, b"nonsense")
    operator.take([messages[0], bad, messages[1]], tables)
    assert [message for message, _ in operator.rejected] == [bad]
    assert operator.level() == ""


def test_a_level_makes_another_operator_combine_as_many_slots(
    at_work: tuple[QueuesOperator, FabricTables, list[Message]],
) -> None:
    operator, tables, messages = at_work
    later = list(messages)
    while operator.level() == "":
        take_until_ready(operator, tables, messages)
        solved(operator, operator.due_ns(), tables)
        operator.keep_up(S, S // 4)
    level = operator.level()
    assert level in {"fabric=2", "fabric=4", "fabric=8"}
    other, tables, _ = begun("fabric", QueuesStage)
    other.take(later[:1], tables)
    other.set_level(level)
    assert other.level() == level
    other.set_level("")
    assert other.level() == ""


def test_messages_are_skipped_once_they_are_half_a_second_old() -> None:
    """The runner skips them, only while newer ones wait."""
    (queueing,) = QueuesStage.inputs
    assert (queueing.topic, queueing.skip_after_ns) == (PATH_QUEUEING, SKIP_BEHIND_NS)
    assert SKIP_BEHIND_NS == S // 2


def test_longer_slots_have_a_line_in_the_status() -> None:
    assert slots_text("fabric", 1_000_000, 1) == ""
    assert slots_text("fabric", 250_000, 4) == (
        "queues of fabric: slots of 1000 us instead of 250 us, inference is too slow"
    )
