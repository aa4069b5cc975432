"""Steps: read back as they were noted, however they are cut into records, and of a few bytes each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from schemas.kafka.message import Place
from schemas.records import StepChoice, StepChoiceKind, Steps
from schemas.topics import CLOCK_OFFSETS, FLOWS, LINKS, STEPS
from streams.runtime.steps import (
    MAX_STEPS,
    BadSteps,
    Epoch,
    MissingSteps,
    Step,
    StepLog,
    StepReader,
    check_times,
    epoch_of,
)

MS = 1_000_000
EPOCH_MS = 1_700_000_000_000
OWNER: Place = (LINKS.name, 3)
PLACES: list[Place] = [OWNER, (FLOWS.name, 0), (FLOWS.name, 1), (CLOCK_OFFSETS.name, 0)]
EPOCH = Epoch("links", 3, EPOCH_MS, 17, {("fabric.link-health", 1): 5}, "settings", "topology", "build")


def steps_of(records: Sequence[Steps]) -> Iterator[Step]:
    """Yield the steps of one operator and epoch, whose records may come in any order."""
    reader = StepReader()
    for record in sorted(records, key=lambda record: record["first_step"]):
        yield from reader.read(record)


Noted = tuple[int, list[tuple[Place, int]], list[StepChoice]]
"""Log time of a step, its moves and its choices."""


def as_read(record: Steps | None) -> Steps:
    """Return a record as a reader of the log gets it."""
    assert record is not None
    return codec.decode(codec.encode(STEPS.type, record), STEPS.record)


def choice(step: int, kind: StepChoiceKind, number: int, value: int, text: str) -> StepChoice:
    return {"step": step, "kind": kind, "input_number": number, "value": value, "text": text}


MOVES = st.lists(st.tuples(st.sampled_from(PLACES), st.integers(1, 300)), max_size=5)
CHOICES = st.lists(
    st.tuples(st.sampled_from(list(StepChoiceKind)), st.integers(-(10**12), 10**12)), max_size=2
)
STEP = st.tuples(st.integers(-5_000_000, 10**10), MOVES, CHOICES, st.booleans())
"""ns since the step before, moves, choices, and whether a record ends behind."""


@given(st.lists(STEP, min_size=1, max_size=30))
def test_steps_read_back_equal_wherever_records_are_cut(
    steps: list[tuple[int, list[tuple[Place, int]], list[tuple[StepChoiceKind, int]], bool]],
) -> None:
    log, reader = StepLog(EPOCH, OWNER), StepReader()
    log.start([((FLOWS.name, 0), 400)])
    positions = {(FLOWS.name, 0): 400}
    log_ns, noted, records = EPOCH_MS * MS, list[Noted](), list[Steps]()
    for elapsed_ns, moves, choices, is_cut in steps:
        log_ns = max(0, log_ns + elapsed_ns)
        for kind, value in choices:
            log.choose(kind, OWNER, value, "text")
        new: list[tuple[Place, int]] = []
        for place, messages in moves:
            positions[place] = positions.get(place, 0) + messages
            new.append((place, positions[place]))
        at_ns = log.note(log_ns, new)
        assert 0 <= log_ns - at_ns < 1_000
        noted.append((at_ns, new, [choice(len(noted), kind, 0, value, "text") for kind, value in choices]))
        if is_cut:
            records.append(as_read(log.record()))
    if not steps[-1][-1]:
        records.append(as_read(log.record()))
    assert log.record() is None
    read = [step for record in records for step in reader.read(record)]
    assert epoch_of(records[0]) == EPOCH
    assert reader.starts[FLOWS.name, 0] == 400
    assert [step.number for step in read] == list(range(len(noted)))
    for step, (at_ns, moved, choices) in zip(read, noted, strict=True):
        assert (step.log_ns, step.moved) == (at_ns, moved)
        assert [(each["kind"], each["value"], each["text"]) for each in step.choices] == [
            (each["kind"], each["value"], each["text"]) for each in choices
        ]
        assert [reader.place_of(each) for each in step.choices] == [OWNER] * len(choices)


def records_of(cuts: list[int]) -> Iterator[Steps]:
    """Yield records of so many steps each."""
    log = StepLog(EPOCH, OWNER)
    offset = 0
    for steps in cuts:
        for _ in range(steps):
            offset += 1
            log.note((EPOCH_MS + offset) * MS, [(OWNER, offset)])
        yield as_read(log.record())


def test_a_missing_record_is_an_error() -> None:
    first, second, third = records_of([3, 2, 4])
    assert len(list(steps_of([third, first, second]))) == 9
    with pytest.raises(MissingSteps, match="links/3, epoch 1700000000000: steps 3 to 4 are not in the log"):
        list(steps_of([first, third]))
    with pytest.raises(MissingSteps, match="steps 0 to 2"):
        list(steps_of([second]))


def long_log(minutes: int) -> Iterator[Steps]:
    """Yield a record each minute, of a log with choices at the begin."""
    log = StepLog(EPOCH, OWNER)
    log.start([((FLOWS.name, 0), 400)])
    log.choose(StepChoiceKind.OFFSET, value=5)
    log.choose(StepChoiceKind.LEVEL, text="2")
    log.choose(StepChoiceKind.TOPOLOGY, text="new")
    for minute in range(1, minutes + 1):
        if minute == 3:
            log.choose(StepChoiceKind.OFFSET, value=6)
        moves = [(OWNER, 17 + minute), ((FLOWS.name, minute % 2), 400 + minute)]
        log.note((EPOCH_MS + minute * 60_000) * MS, moves)
        yield as_read(log.record())


def test_a_record_of_each_ten_minutes_stands_alone() -> None:
    records = list(long_log(35))
    assert [number for number, each in enumerate(records) if each["is_whole"]] == [0, 10, 20, 30]
    everything = list(steps_of(records))
    reader = StepReader()
    later = [step for record in records[20:] for step in reader.read(record)]
    assert [(step.number, step.log_ns, step.moved) for step in later] == [
        (step.number, step.log_ns, step.moved) for step in everything[20:]
    ]
    assert reader.starts == {OWNER: 37, (FLOWS.name, 0): 420, (FLOWS.name, 1): 419}
    assert [(each["kind"], each["value"], each["text"]) for each in later[0].choices] == [
        (StepChoiceKind.OFFSET, 6, ""),
        (StepChoiceKind.LEVEL, 0, "2"),
    ]
    begin = epoch_of(records[20])
    assert (begin.committed, begin.restored, begin.build) == (17, EPOCH.restored, "build")
    assert (epoch_of(records[0]).topology_digest, begin.topology_digest) == ("topology", "new")
    with pytest.raises(MissingSteps, match="steps 0 to 20"):
        list(steps_of(records[21:]))


@pytest.mark.parametrize(
    "fields",
    [
        {"starts": []},
        {"restored_ends": []},
        {"moved": [1, 1]},
        {"moved": [1, 5]},
        {"input_numbers": [0, 9]},
        {"inputs": ["flows"]},
        {"inputs": ["fabric.flows/x"]},
        {
            "choices": [
                choice(7, StepChoiceKind.OFFSET, -1, 0, ""),
                choice(0, StepChoiceKind.OFFSET, -1, 0, ""),
            ]
        },
        {"choices": [choice(0, StepChoiceKind.SKIPPED, 4, 0, "")]},
    ],
)
def test_a_record_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    (record,) = records_of([2])
    assert len(list(steps_of([record]))) == 2
    bad: Any = {**record, **fields}
    with pytest.raises(BadSteps):
        list(steps_of([bad] if fields != {"moved": [1, 1]} else [{**bad, "elapsed_us": [1]}]))


def test_times_far_from_the_time_of_the_record_are_refused() -> None:
    (record,) = records_of([2])
    check_times(record, EPOCH_MS * MS)
    check_times(record, (EPOCH_MS + 86_400_000) * MS)  # of a worker that was a day behind
    for at_ms in (EPOCH_MS - 3_600_000, EPOCH_MS + 30 * 86_400_000):
        with pytest.raises(BadSteps, match="links/3, epoch 1700000000000: the time of a step"):
            check_times(record, at_ms * MS)
    late: Any = {**record, "epoch": 0}
    check_times(late, EPOCH_MS * MS)  # its operator is old


def test_many_choices_are_read_fast() -> None:
    (record,) = records_of([2])
    many = [choice(0, StepChoiceKind.OFFSET, -1, value, "") for value in range(50_000)]
    began_s = time.process_time()
    record["choices"] = many
    (first, _) = steps_of([record])
    assert len(first.choices) == len(many)
    assert time.process_time() - began_s < 2


def test_a_record_that_was_published_twice_is_ignored() -> None:
    first, second = records_of([3, 2])
    assert [step.number for step in steps_of([first, first, second, second])] == list(range(5))


def test_only_the_first_record_has_the_inputs_of_the_epoch() -> None:
    first, second = records_of([1, 1])
    assert (first["restored"], first["restored_ends"], first["committed"]) == (
        ["fabric.link-health/1"],
        [5],
        17,
    )
    assert [first[name] for name in ("settings_digest", "topology_digest", "build")] == [
        "settings", "topology", "build",
    ]  # fmt: skip
    assert (second["restored"], second["committed"], second["build"], second["inputs"]) == ([], -1, "", [])


def idle_steps(log: StepLog) -> list[Step]:
    return list(steps_of([as_read(log.record())]))


def test_messages_of_steps_without_effect_are_taken_with_the_next() -> None:
    log = StepLog(EPOCH, OWNER)
    for offset in (1, 2, 3):
        log.note((EPOCH_MS + offset) * MS, [(OWNER, offset)])
        log.note_idle()
    log.note((EPOCH_MS + 4) * MS, [])
    (step,) = idle_steps(log)
    assert (step.log_ns, step.moved) == ((EPOCH_MS + 4) * MS, [(OWNER, 3)])


@pytest.mark.parametrize("is_table", [True, False])
def test_a_step_without_effect_stays_apart_where_tables_or_choices_change(is_table: bool) -> None:
    log = StepLog(EPOCH, OWNER)
    log.note(EPOCH_MS * MS, [(OWNER, 1)])
    log.note_idle()
    if not is_table:
        log.choose(StepChoiceKind.LEVEL, text="2")
    log.note((EPOCH_MS + 1) * MS, [(OWNER, 2), *([((FLOWS.name, 0), 7)] if is_table else [])])
    log.note_idle()
    log.note((EPOCH_MS + 2) * MS, [(OWNER, 3)])
    assert [step.moved for step in idle_steps(log)] == [
        [(OWNER, 1)],
        [(OWNER, 2), *([((FLOWS.name, 0), 7)] if is_table else [])],
        [(OWNER, 3)],
    ]


def test_a_step_is_not_extended_once_its_record_is_published() -> None:
    log = StepLog(EPOCH, OWNER)
    log.note(EPOCH_MS * MS, [(OWNER, 1)])
    log.note_idle()
    first = as_read(log.record())
    log.note((EPOCH_MS + 1) * MS, [(OWNER, 2)])
    assert [step.moved for step in steps_of([first, as_read(log.record())])] == [[(OWNER, 1)], [(OWNER, 2)]]


def test_a_step_stays_as_it_is_once_its_record_is_published() -> None:
    log = StepLog(EPOCH, OWNER)
    log.note(EPOCH_MS * MS, [(OWNER, 1)])
    first = as_read(log.record())
    log.note_idle()
    log.note((EPOCH_MS + 1) * MS, [(OWNER, 2)])
    assert [step.moved for step in steps_of([first, as_read(log.record())])] == [[(OWNER, 1)], [(OWNER, 2)]]


def test_a_typical_step_takes_ten_bytes_or_less() -> None:
    """A step each 5 ms that takes some messages, a table that moves each 50 ms, a record each 500 ms."""
    log = StepLog(EPOCH, OWNER)
    log.start([(place, 10**6) for place in PLACES[1:]])
    size = steps = 0
    for number in range(1, 1001):
        table = [(PLACES[1 + number // 10 % 3], 10**6 + number)] if number % 10 == 0 else []
        log.note(EPOCH_MS * MS + number * 5_123_456, [(OWNER, 10**7 + 7 * number), *table])
        steps += 1
        if number % 100 == 0:
            size += len(codec.encode(STEPS.type, log.record()))
    assert size / steps <= 10


def test_a_log_is_full_before_its_record_is_large() -> None:
    log = StepLog(EPOCH, OWNER)
    for number in range(MAX_STEPS):
        assert not log.is_full
        log.note(EPOCH_MS * MS + number * MS, [(OWNER, number + 1)])
    assert log.is_full
    assert len(codec.encode(STEPS.type, log.record())) < 16_384
    assert not log.is_full
