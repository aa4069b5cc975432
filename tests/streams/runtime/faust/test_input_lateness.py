"""A stage asks for the log's ends after stalls, in silence and after late messages, and not in good times."""

from __future__ import annotations

from streams.runtime.faust.input_lateness import (
    SILENT_NS,
    SLOW_AGE_NS,
    SLOW_NS,
    STALL_NS,
    STALLED_NS,
    InputLateness,
)
from streams.runtime.pipeline_constants import INPUT_DELAY_NS

MS = 1_000_000


def questions(lateness: InputLateness, first_ns: int, last_ns: int, message_age_ns: int | None) -> list[int]:
    """Advance each 50 ms; return the times of the questions. `message_age_ns`: of one before each advance."""
    times = []
    for now_ns in range(first_ns, last_ns, 50 * MS):
        if message_age_ns is not None:
            lateness.note_message(message_age_ns, now_ns)
        if lateness.is_possible(now_ns):
            times.append(now_ns)
            lateness.note_question(now_ns)
    return times


def settled() -> InputLateness:
    """Return the state of an owner that is no longer new at time 0."""
    return InputLateness(-SLOW_NS)


def test_messages_in_time_cost_no_question() -> None:
    lateness = settled()
    lateness.note_question(0)
    assert questions(lateness, 0, 60_000 * MS, 20 * MS) == []


def test_a_new_owner_asks_before_each_advance() -> None:
    times = questions(InputLateness(0), 0, 3 * SLOW_NS, MS)
    assert times == list(range(0, SLOW_NS, 50 * MS))


def test_silence_costs_one_question_each_second() -> None:
    lateness = settled()
    lateness.note_question(0)
    times = questions(lateness, 0, 10 * SILENT_NS, None)
    assert 9 <= len(times) <= 10
    assert times[0] <= SILENT_NS + 100 * MS


def test_a_broker_that_stalls_is_asked_at_once() -> None:
    lateness = settled()
    lateness.note_question(0)
    assert questions(lateness, 0, 5000 * MS, MS) == []
    assert questions(lateness, 5000 * MS, 5500 * MS, None)[0] <= 5000 * MS + INPUT_DELAY_NS + 50 * MS


def test_a_stall_of_the_worker_costs_questions_until_it_is_over() -> None:
    lateness = settled()
    lateness.note_question(0)
    assert questions(lateness, 0, 5000 * MS, MS) == []
    begin_ns = 4950 * MS + STALL_NS + 50 * MS
    times = questions(lateness, begin_ns, begin_ns + 5000 * MS, MS)
    assert times[0] == begin_ns
    assert times[-1] < begin_ns + STALLED_NS


def test_a_slow_message_costs_questions_for_a_while() -> None:
    lateness = settled()
    lateness.note_question(0)
    lateness.note_message(SLOW_AGE_NS, 0)
    assert questions(lateness, 0, 3 * SLOW_NS, MS) == list(range(0, SLOW_NS, 50 * MS))
