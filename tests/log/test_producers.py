"""Idempotent producers of a partition: duplicates, gaps, epochs, and what a restart remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.log.batch import Header
from fabrictime.log.errors import Code, LogError
from fabrictime.log.producers import KEPT_BATCHES, KEPT_MS, Producers


def header(sequence: int, count: int = 2, epoch: int = 0, offset: int = 0, producer: int = 7) -> Header:
    return Header(offset, 0, 0, 2, 0, 0, count - 1, 0, 1000, producer, epoch, sequence, count)


def wrote(*sequences: int) -> Producers:
    found = Producers()
    for offset, sequence in enumerate(sequences):
        assert found.check(header(sequence)) is None
        found.note(header(sequence, offset=2 * offset))
    return found


def test_a_duplicate_is_answered_with_its_first_offset_while_it_is_remembered() -> None:
    producers = wrote(*range(0, 2 * (KEPT_BATCHES + 1), 2))
    written = producers.check(header(4))
    assert written is not None
    assert written.base_offset == 4
    with pytest.raises(LogError, match=f"expected {2 * KEPT_BATCHES + 2}"):
        producers.check(header(0))


@pytest.mark.parametrize(
    ("given_header", "code"),
    [
        (header(6), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (header(-1), Code.INVALID_RECORD),
        (header(4, epoch=-1), Code.INVALID_PRODUCER_EPOCH),
        (header(4, epoch=1), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
    ids=["gap", "no sequence", "old epoch", "new epoch, not from 0"],
)
def test_a_batch_that_cannot_follow_is_refused(given_header: Header, code: Code) -> None:
    with pytest.raises(LogError) as refused:
        wrote(0, 2).check(given_header)
    assert refused.value.code is code


def test_a_new_epoch_begins_at_0_and_a_silent_producer_is_forgotten() -> None:
    producers = wrote(0, 2)
    assert producers.check(header(0, epoch=1)) is None
    producers.note(header(0, epoch=1))
    producers.expire(1000 + KEPT_MS)
    assert len(producers) == 1
    producers.expire(1001 + KEPT_MS)
    assert len(producers) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 2**31 - 3)), max_size=30))
def test_a_restart_remembers_the_same(batches: list[tuple[int, int, int]]) -> None:
    before, after = Producers(), Producers()
    for offset, (producer, epoch, sequence) in enumerate(batches):
        before.note(header(sequence, epoch=epoch, offset=offset, producer=producer))
    after.load(before.dump())
    assert after.dump() == before.dump()


@pytest.mark.parametrize("state", [[[1, 0, [[0, 1, 2]]]], [[1, 0]], [["x", 0, [[0, 1, 2, 3]]]], [None]])
def test_a_damaged_dump_is_refused(state: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Producers().load(state)
