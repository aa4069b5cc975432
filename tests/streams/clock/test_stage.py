"""The operator of clocks: when it solves a window, and what a new owner takes again."""

from __future__ import annotations

import pytest

from schemas.kafka.message import Message
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, PROBES
from streams.clock.stage import ClockOperator, ClockStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Moment, Output
from streams.runtime.pipeline_constants import GRACE_NS
from tests.streams.runtime.recorded import begun

AtWork = tuple[ClockOperator, FabricTables, list[list[Message]]]


@pytest.fixture
def at_work() -> AtWork:
    """Return an operator, tables, and the fits of each window: one record of each source."""
    operator, tables, messages = begun("fabric", ClockStage)
    assert isinstance(operator, ClockOperator)
    windows: dict[int, list[Message]] = {}
    for message in messages:
        windows.setdefault(message.decoded(CLOCK_FITS)["window"], []).append(message)
    whole = [fits for fits in windows.values() if len(fits) == 4]
    sources = {message.record["source"] for message in whole[0]}
    assert sources == {f"{PROBES.name}/{number}" for number in range(4)}
    return operator, tables, whole


def advanced(operator: ClockOperator, log_ns: int, tables: FabricTables) -> list[Output]:
    """Return the outputs of an advance."""
    result = operator.advance(Moment(log_ns, 0), tables)
    return list(result() if callable(result) else result)


def windows_of(outputs: list[Output]) -> list[int]:
    assert all(output.topic is CLOCK_OFFSETS for output in outputs)
    return [output.record["window"] for output in outputs]


def test_a_window_is_solved_with_the_fits_of_its_last_source(at_work: AtWork) -> None:
    operator, tables, (fits, *_) = at_work
    operator.take(fits[:3], tables)
    assert operator.due_ns() == fits[0].log_ns + GRACE_NS
    assert advanced(operator, fits[2].log_ns, tables) == []
    assert operator.needed_from() == fits[0].offset
    operator.take(fits[3:], tables)
    assert operator.due_ns() <= fits[3].log_ns
    assert windows_of(advanced(operator, fits[3].log_ns, tables)) == [fits[0].record["window"]]
    assert (operator.due_ns(), operator.needed_from()) == (NEVER_NS, NEVER_NS)


def test_a_window_waits_for_a_source_no_longer_than_the_grace_period(at_work: AtWork) -> None:
    operator, tables, (fits, *_) = at_work
    operator.take(fits[1:], tables)
    due_ns = fits[1].log_ns + GRACE_NS
    assert operator.due_ns() == due_ns
    assert advanced(operator, due_ns - 1, tables) == []
    assert windows_of(advanced(operator, due_ns, tables)) == [fits[0].record["window"]]
    operator.take(fits[:1], tables)
    assert (operator.due_ns(), operator.needed_from()) == (NEVER_NS, NEVER_NS), "too late"


def test_a_new_owner_solves_no_window_twice(at_work: AtWork) -> None:
    operator, tables, (first, second, *_) = at_work
    operator.take(first, tables)
    outputs = advanced(operator, first[-1].log_ns, tables)
    successor, tables, _ = begun("fabric", ClockStage)
    past = [Message(first[-1].log_ns, CLOCK_OFFSETS.name, 0, 0, outputs[0].key, outputs[0].value())]
    successor.restore({CLOCK_OFFSETS.name: past, CLOCK_FITS.name: first}, tables)
    successor.take([*first, *second], tables)
    assert windows_of(advanced(successor, second[-1].log_ns, tables)) == [second[0].record["window"]]


def test_a_window_that_cannot_be_solved_costs_no_other(
    at_work: AtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, tables, (first, second, *_) = at_work
    operator.take(first[:1], tables)
    clocks = operator._shards["fabric"].clocks
    solve = clocks.solve

    def refuse(window: int, *given: object) -> object:
        if window == first[0].record["window"]:
            raise ValueError("singular")
        return solve(window, *given)

    monkeypatch.setattr(clocks, "solve", refuse)
    bad = Message(second[0].log_ns, *first[0].place, 10**6, first[0].key_bytes, b"nonsense")
    operator.take([*first[1:], bad, *second], tables)
    assert windows_of(advanced(operator, second[-1].log_ns, tables)) == [second[0].record["window"]]
    assert [(key, str(error)) for key, error in operator.failed] == [("fabric", "singular")]
    assert [message for message, _ in operator.rejected] == [bad]
