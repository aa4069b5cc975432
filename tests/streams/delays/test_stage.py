"""The operator of delays: when windows close, when path queueing is published, what a new owner needs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import CLOCK_FITS, DELAYS, PATH_QUEUEING
from streams.delays import stage as module
from streams.delays.stage import CHECK_NS, DelayOperator, DelayStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Moment, Output
from streams.runtime.pipeline_constants import QUEUEING_NS, SILENCE_NS, WINDOW_NS
from tests.streams.runtime.recorded import begun, copies

MS = 1_000_000
AtWork = tuple[DelayOperator, FabricTables, list[list[Message]]]


@pytest.fixture
def at_work() -> AtWork:
    """Return an operator, tables, and recorded messages by window."""
    operator, tables, messages = begun("fabric", DelayStage)
    assert isinstance(operator, DelayOperator)
    windows: dict[int, list[Message]] = {}
    for message in messages:
        windows.setdefault(message.append_ns // WINDOW_NS, []).append(message)
    return operator, tables, list(windows.values())


def advanced(operator: DelayOperator, log_ns: int, tables: FabricTables) -> list[Output]:
    """Return the outputs of an advance."""
    result = operator.advance(Moment(log_ns, 0), tables)
    return list(result() if callable(result) else result)


def topics(outputs: Sequence[Output]) -> set[str]:
    return {output.topic.name for output in outputs}


def published(operator: DelayOperator, log_ns: int, tables: FabricTables) -> list[Output]:
    """Return the outputs of all advances up to a time."""
    outputs: list[Output] = []
    while operator.due_ns() <= log_ns:
        outputs += advanced(operator, max(operator.due_ns(), log_ns), tables)
    return outputs


def test_silence_closes_a_window(at_work: AtWork) -> None:
    operator, tables, (window, *_) = at_work
    operator.take(window, tables)
    end_ns = (window[0].append_ns // WINDOW_NS + 1) * WINDOW_NS
    assert topics(advanced(operator, operator.due_ns(), tables)) == {PATH_QUEUEING.name}
    assert operator.due_ns() == end_ns + SILENCE_NS
    assert advanced(operator, end_ns + SILENCE_NS - 1, tables) == []
    assert operator.needed_from() == window[0].offset
    assert topics(advanced(operator, end_ns + SILENCE_NS, tables)) == {CLOCK_FITS.name}
    assert (operator.due_ns(), operator.needed_from()) == (0, window[0].offset)
    assert topics(advanced(operator, end_ns + SILENCE_NS, tables)) == {DELAYS.name}
    assert operator.needed_from() == NEVER_NS


def test_a_source_that_stays_silent_has_an_empty_window_each_window(at_work: AtWork) -> None:
    operator, tables, (window, *_) = at_work
    operator.take(window, tables)
    number = window[0].append_ns // WINDOW_NS
    published(operator, (number + 1) * WINDOW_NS + SILENCE_NS, tables)
    for later in (number + 2, number + 3):
        assert operator.due_ns() == later * WINDOW_NS + SILENCE_NS
        fits = published(operator, operator.due_ns(), tables)
        records = [output.record for output in fits]
        assert {(record["window"], record["messages"]) for record in records} == {(later - 1, 0)}


def test_a_partition_that_no_message_reaches_checks_for_windows_at_times(at_work: AtWork) -> None:
    operator, tables, (window, *_) = at_work
    now_ns = window[0].append_ns
    assert operator.due_ns() <= now_ns
    advanced(operator, now_ns, tables)
    assert operator.due_ns() >= now_ns + CHECK_NS


def test_log_time_that_steps_back_delays_no_silence(at_work: AtWork) -> None:
    operator, tables, (window, *_) = at_work
    first = window[0]
    ahead_ns = first.append_ns + 3600 * 1_000 * MS
    operator.take([Message(ahead_ns, *first.place, first.offset, first.key_bytes, first.value)], tables)
    published(operator, ahead_ns + 2 * WINDOW_NS, tables)
    operator.take(window[1:], tables)
    published(operator, window[-1].append_ns, tables)
    end_ns = (window[-1].append_ns // WINDOW_NS + 1) * WINDOW_NS
    assert operator.due_ns() <= end_ns + SILENCE_NS + CHECK_NS


def test_a_message_of_the_next_window_closes_one(at_work: AtWork) -> None:
    operator, tables, (first, second, *_) = at_work
    operator.take(first, tables)
    assert operator.due_ns() > 0
    operator.take(second[:1], tables)
    assert operator.due_ns() == 0
    outputs = published(operator, second[0].append_ns, tables)
    assert topics(outputs) >= {CLOCK_FITS.name, DELAYS.name}
    assert operator.needed_from() == second[0].offset


def test_path_queueing_is_published_some_time_after_its_first_message(at_work: AtWork) -> None:
    operator, tables, (window, *_) = at_work
    bad = Message(window[0].append_ns - 5 * MS, *window[0].place, window[0].offset - 1, "h1/eth1", b"bad")
    operator.take([bad, *window[:1]], tables)
    assert [message for message, _ in operator.rejected] == [bad]
    due_ns = window[0].append_ns + QUEUEING_NS
    assert operator.due_ns() == due_ns, "a message without samples does not count"
    assert advanced(operator, due_ns - 1, tables) == []
    operator.take(window[1:2], tables)
    assert operator.due_ns() == due_ns
    (output,) = advanced(operator, due_ns, tables)
    record = codec.decode(output.value() or b"", PATH_QUEUEING.record)
    assert (record["first_offset"], record["next_offset"]) == (window[0].offset, window[1].offset + 1)
    assert operator.due_ns() > due_ns + QUEUEING_NS
    operator.take(window[2:3], tables)
    assert operator.due_ns() == window[2].append_ns + QUEUEING_NS


@pytest.mark.parametrize("size", [1, 7])
def test_batches_of_any_size_give_the_same(at_work: AtWork, size: int) -> None:
    operator, tables, (first, second, *_) = at_work
    messages = [*first, *second[:5]]
    operator.take(copies(messages), tables)
    other, other_tables, _ = begun("fabric", DelayStage)
    for begin in range(0, len(messages), size):
        other.take(copies(messages[begin : begin + size]), other_tables)
    assert operator.due_ns() == other.due_ns()
    log_ns = messages[-1].append_ns
    mine = [output.value() for output in published(operator, log_ns, tables)]
    theirs = [output.value() for output in published(other, log_ns, other_tables)]
    assert mine == theirs
    assert len(mine) > 3


def test_a_window_that_cannot_be_published_costs_no_other(
    at_work: AtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are not needed either: the next owner would fail the same way."""
    operator, tables, (first, second, third, *_) = at_work
    bad = first[0].append_ns // WINDOW_NS
    fit_window = module.fit_window

    def fit(window: object) -> object:
        if window.cut.window == bad:
            raise ValueError("bad")
        return fit_window(window)

    monkeypatch.setattr(module, "fit_window", fit)
    operator.take([*first, *second, *third[:1]], tables)
    outputs = published(operator, third[0].append_ns, tables)
    assert [str(error) for _, error in operator.failed] == ["bad"]
    fits = [output.record for output in outputs if output.topic is CLOCK_FITS]
    assert {record["window"] for record in fits} == {bad + 1}
    assert operator.needed_from() == third[0].offset


def test_messages_that_were_fetched_late_are_no_step_of_log_time(at_work: AtWork) -> None:
    operator, tables, (window, *_) = at_work
    half = len(window) // 2
    operator.take(window[:half], tables)
    number = window[0].append_ns // WINDOW_NS
    outputs = published(operator, (number + 3) * WINDOW_NS + SILENCE_NS, tables)
    operator.take(window[half:], tables)
    outputs += published(operator, window[-1].append_ns, tables)
    outputs += published(operator, (number + 5) * WINDOW_NS + SILENCE_NS, tables)
    windows = [output.record["window"] for output in outputs if output.topic is CLOCK_FITS]
    assert windows == sorted(set(windows)), "no window appears again"
    assert windows[0] == number
