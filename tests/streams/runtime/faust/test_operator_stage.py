"""The worker's runner: no message is early or lost, and nothing is sent after another owner began."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from schemas import codec
from schemas.topics import DELAYS, LINKS, REJECTS
from streams.runtime.faust import operator_stage as module
from streams.runtime.faust import ownership
from streams.runtime.operator import Output, Past
from tests.streams.runtime.fake_context import MS, TP0, TP1, FakeContext, Record, settle, until
from tests.streams.runtime.faust.owned import Owned, heavy
from tests.streams.runtime.noting_operator import (
    NotingStage,
)

S = 1_000 * MS

# -------------------------------------------------------------------------------------------- begin


async def test_messages_wait_for_restoration_and_continue_at_the_committed_offset(
    context: FakeContext, stage: Owned
) -> None:
    context.committed_offsets[TP0] = 7
    context.caught_up.clear()
    stage.assign([TP0])
    for offset in (5, 6, 7, 8):
        stage.give(offset)
    await settle()
    assert (stage.noting.restored, stage.positions, stage.operators) == ([], {}, [])
    assert not stage.has_capacity, "what waits is limited"
    context.caught_up.set()
    await stage.ready()
    await stage.idle()
    assert stage.has_capacity
    assert stage.taken() == [[7, 8]]
    assert stage.positions == {TP0: 9}
    assert stage.operator.owner.committed == {0: 7}


async def test_restoration_follows_the_tables(context: FakeContext, stage: Owned) -> None:
    context.caught_up.clear()
    stage.assign([TP0, TP1])
    await settle()
    assert stage.noting.restored == []
    context.caught_up.set()
    await stage.ready()
    assert stage.noting.restored == [0, 1]
    assert stage.operators[0].owner.partitions == {0, 1}


async def test_a_message_of_a_partition_of_others_is_refused(stage: Owned) -> None:
    await stage.restore(TP0)
    assert not stage.receive(TP1, [Record(0, TP1)])
    await settle()
    assert stage.taken() == [[]]


async def test_the_restoration_of_one_generation_does_not_serve_the_next(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation without partitions has nothing to read and ends at once."""
    gates: list[asyncio.Event] = []

    async def past(*_: object) -> tuple[Past, dict[tuple[str, int], int]]:
        gates.append(asyncio.Event())
        await gates[-1].wait()
        return {}, {}

    monkeypatch.setattr(module, "read_past", past)
    for tps in ([], [TP0], []):
        stage.assign(tps)
        await stage.revoke()
    stage.assign([TP0])
    stage.give(0)
    await settle()
    assert (len(gates), stage.operators) == (1, [])
    await stage.revoke()
    stage.assign([TP0])
    stage.give(0)
    gates[0].set()
    await settle()
    assert (len(gates), stage.operators) == (2, [])
    gates[1].set()
    await stage.ready()
    await stage.idle()
    assert stage.taken() == [[0]]


async def test_the_app_delivers_a_topic_to_its_stage(context: FakeContext, stage: Owned) -> None:
    stage.register()
    assert context.app.topics == {LINKS.name}
    assert context.app.transport.receivers == {LINKS.name: stage}


# -------------------------------------------------------------------------------------------- positions


async def test_a_position_is_committed_after_its_outputs_in_order(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    assert await stage.commit() is None
    context.log_takes.clear()
    await stage.take(0)
    await stage.take(1)
    assert len(context.values(DELAYS)) == 2
    assert await stage.commit() is None
    context.log_takes.set()
    assert await stage.commit() == 2
    context.log_takes.clear()
    await stage.take(2)
    first, context.log_takes = context.log_takes, asyncio.Event()
    await stage.take(3)
    context.log_takes.set()
    assert await stage.commit() == 2, "the output of message 2 is not acknowledged"
    first.set()
    assert await stage.commit() == 4


async def test_a_position_stays_where_the_operator_needs_its_messages(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    stage.operator.needed = 1
    await stage.take(0, 1, 2)
    assert await stage.commit() == 1
    stage.operator.needed = 3
    assert await stage.commit() == 1, "until the next advance"
    await stage.take(3)
    assert await stage.commit() == 3


async def test_no_position_is_committed_after_a_revocation(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    await stage.take(0, 1)
    assert await stage.commit() == 2
    operator = stage.operator
    await stage.revoke()
    assert (stage.commit_position(TP0), stage.positions, stage.operators) == (None, {}, [])
    assert not stage.receive(TP0, [Record(2)])
    await stage.restore(TP1)
    assert (operator.is_closed, stage.noting.closed) == (True, [0]), "told once"
    assert stage.commit_position(TP0) is None, "not owned"
    assert operator.taken == [0, 1]


async def test_a_partition_that_is_assigned_again_starts_from_scratch(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    await stage.take(0, 1, 2)
    await stage.revoke()
    context.committed_offsets[TP0] = 1
    await stage.restore(TP0)
    await stage.take(1, 2, 3)
    assert stage.taken() == [[1, 2, 3]]


# -------------------------------------------------------------------------------------------- revocation


async def test_a_revocation_waits_for_work_and_acknowledgements_and_publishes_the_last_steps(
    context: FakeContext,
) -> None:
    stage = await heavy(context)
    context.log_takes.clear()
    revoking = asyncio.ensure_future(stage.revoke())
    await asyncio.sleep(0.05)
    assert (revoking.done(), context.values(DELAYS), stage.steps()) == (False, [], [])
    stage.noting.go_on.set()
    await until(lambda: stage.steps() != [])
    await settle()
    assert (revoking.done(), len(context.values(DELAYS))) == (False, 1)
    assert [record["messages"] for record in stage.steps()] == [[1]]
    context.log_takes.set()
    await asyncio.wait_for(revoking, 5)


async def test_a_revocation_waits_for_outputs_that_the_producer_has_not_taken(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    context.space.clear()
    stage.give(0)
    await settle()
    revoking = asyncio.ensure_future(stage.revoke())
    await settle()
    assert not revoking.done()
    context.log_takes.clear()
    context.space.set()
    await settle()
    assert (revoking.done(), len(context.values(DELAYS))) == (False, 1)
    context.log_takes.set()
    await asyncio.wait_for(revoking, 5)
    assert len(stage.steps()) == 1


async def test_nothing_is_sent_after_a_revocation_timed_out(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "REVOKE_S", 0.05)
    stage = await heavy(context)
    await stage.revoke()
    stage.noting.go_on.set()
    await asyncio.sleep(0.05)
    assert context.sent == []


async def test_no_further_output_is_sent_once_a_revocation_timed_out(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first output waits for the producer when the revocation begins."""
    monkeypatch.setattr(ownership, "REVOKE_S", 0.05)
    stage = Owned(context, NotingStage())
    await stage.restore(TP0)
    operator, advance = stage.operator, stage.operator.advance
    monkeypatch.setattr(operator, "advance", lambda *given: [*advance(*given)] * 3)
    context.space.clear()
    stage.give(0)
    await settle()
    await stage.revoke()
    context.space.set()
    await asyncio.sleep(0.05)
    assert len(context.sent) == 1


async def test_messages_that_wait_at_a_revocation_are_left_to_the_next_owner(context: FakeContext) -> None:
    stage = await heavy(context)
    stage.give(1, 2)
    operator = stage.operator
    revoking = asyncio.ensure_future(stage.revoke())
    await settle()
    stage.noting.go_on.set()
    await revoking
    assert (operator.taken, stage.commit_position(TP0)) == ([0], None)


async def test_a_second_assignment_without_revocation_has_one_generation(context: FakeContext) -> None:
    stage = await heavy(context)
    before = stage.operator
    stage.noting.is_heavy = False
    await stage.restore(TP0)
    assert stage.operator is not before
    stage.noting.go_on.set()
    await stage.take(0)
    await asyncio.sleep(0.05)
    assert stage.noting.closed == [0]
    assert len(context.values(DELAYS)) == 1, "that of the second generation"
    await stage.revoke()


# -------------------------------------------------------------------------------------------- errors


async def test_a_bad_message_costs_itself_and_is_done_once_its_reject_is_acknowledged(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    context.log_takes.clear()
    foreign = Record(3, timestamp_type=0)  # a timestamp that the log did not set
    stage.receive(TP0, [Record(0), Record(1, value=b"bad"), Record(2), foreign, Record(4)])
    await stage.idle()
    assert stage.taken() == [[0, 2, 4]]
    assert await stage.commit() is None
    context.log_takes.set()
    assert await stage.commit() == 5
    assert context.rejected_offsets() == [1, 3]
    rejects = [codec.decode(value, REJECTS.record) for value in context.values(REJECTS)]
    assert {(each["offset"], each["head"], each["reader"], each["reason"]) for each in rejects} == {
        (1, b"bad", "solve", "MALFORMED"),
        (3, b"value", "solve", "OUT_OF_RANGE"),
    }


async def test_an_unexpected_error_does_not_end_the_stage(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    advance = stage.operator.advance

    def fail(*_: object) -> list[Output]:
        stage.operator.advance = advance  # type: ignore[method-assign]
        raise ValueError("broken")

    stage.operator.advance = fail  # type: ignore[method-assign]
    await stage.take(0)
    await stage.take(1)
    assert [str(error) for error in context.failures] == ["broken"]
    assert (stage.taken(), await stage.commit()) == ([[0, 1]], 2)


async def test_messages_that_cannot_be_taken_are_rejected_one_by_one(
    context: FakeContext, stage: Owned
) -> None:
    """Which of them is at fault is not known; one was rejected by the operator."""
    await stage.restore(TP0)
    stage.receive(TP0, [Record(0), Record(1, value=b"bad"), Record(2, value=b"broken"), Record(3)])
    await stage.idle()
    await stage.take(4)
    assert (stage.operator.batches, stage.taken()) == ([4, 1], [[0, 4]])
    rejects = [codec.decode(value, REJECTS.record) for value in context.values(REJECTS)]
    assert {each["offset"]: each["reason"] for each in rejects} == {
        0: "OTHER", 1: "MALFORMED", 2: "OTHER", 3: "OTHER",
    }  # fmt: skip
    assert all("broken" in each["detail"] for each in rejects if each["reason"] == "OTHER")
    assert (context.failures, await stage.commit()) == ([], 5)


async def test_an_error_of_the_log_ends_the_task(context: FakeContext, stage: Owned) -> None:
    await stage.restore(TP0)
    await stage.take(0, 1)
    stage.give(2, value=b"lost")
    (serving,) = [task for task in context.tasks if task.get_name() == "noting ownership"]
    with pytest.raises(ConnectionError, match="lost"):
        await asyncio.wait_for(serving, 5)
    assert stage.taken() == [[0, 1]]


async def test_a_send_that_fails_ends_the_task(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELEASE_S", 0.001)
    await stage.restore(TP0)

    async def refuse(topic: str, key: str, value: bytes | None) -> Any:
        async def acknowledgement() -> None:
            raise ConnectionError("no leader")

        return acknowledgement()

    monkeypatch.setattr(context, "send_bytes", refuse)
    stage.give(0)
    (serving,) = [task for task in context.tasks if task.get_name() == "noting ownership"]
    with pytest.raises(ConnectionError, match="no leader"):
        await asyncio.wait_for(serving, 5)
    assert stage.commit_position(TP0) is None


async def test_an_output_that_the_log_would_refuse_costs_no_other(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.restore(TP0)
    send_bytes = context.send_bytes

    async def send(topic: str, key: str, value: bytes | None) -> Any:
        if topic == DELAYS.name and b"0@" in (value or b""):
            raise ValueError("20000000 bytes")
        return await send_bytes(topic, key, value)

    monkeypatch.setattr(context, "send_bytes", send)
    await stage.take(0)
    await stage.take(1)
    assert len(context.values(DELAYS)) == 1
    (value,) = context.values(REJECTS)
    reject = codec.decode(value, REJECTS.record)
    assert (reject["key"], reject["reader"]) == (b"key", "noting")
    assert await stage.commit() == 2


async def test_a_change_of_an_operators_status_is_shown_until_its_partition_is_revoked(
    context: FakeContext, stage: Owned
) -> None:
    await stage.restore(TP0)
    stage.operators[0].text = "slots of 2 ms instead of 1 ms"
    stage.give(0)
    await until(lambda: context.notes == {"noting/0": "slots of 2 ms instead of 1 ms"})
    await stage.revoke()
    stage.assign([])
    assert context.notes == {"noting/0": ""}


async def test_work_that_is_due_at_once_comes_before_more_messages(
    context: FakeContext, stage: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that catches up must not collect a backlog of windows."""
    await stage.restore(TP0)
    operator = stage.operator
    advances_before: list[int] = []
    monkeypatch.setattr(
        operator, "take", lambda messages, tables: advances_before.append(len(operator.advances))
    )
    operator.due = 0
    stage.give(0)
    await until(lambda: bool(advances_before))
    assert advances_before == [1]
