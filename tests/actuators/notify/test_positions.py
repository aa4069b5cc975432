"""Committed positions: nothing that is not settled is passed over, nothing that is settled is repeated."""

from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.notify.positions import MAX_METADATA, Mark, Positions, decode_mark, encode_metadata
from tests.examples import examples

PLACE = ("fabric.alerts", 3)
ODD = ("[1]", "[1,2]", "[1,[[3]]]", '["a",[]]', "[" * 5000, "[1,[[0,1e99]]]")


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60))
def test_offsets_that_are_not_settled_are_news_to_a_successor(steps):
    positions = Positions({PLACE: Mark(0)})
    opened, settled = set(), set()
    for offset, is_settled in steps:
        if offset not in opened:
            positions.open((PLACE, offset))
            opened.add(offset)
        if is_settled:
            positions.settle([(PLACE, offset)])
            settled.add(offset)
    [(offset, metadata)] = positions.commits(7, everywhere=True).values()
    mark = decode_mark(offset, metadata)
    successor = Positions({PLACE: mark})
    assert mark.handled_ns == 7
    for number in opened:
        assert successor.is_news(PLACE, number) == (number not in settled)
    assert all(successor.is_news(PLACE, number) for number in range(max(opened, default=-1) + 1, 50))


@settings(max_examples=examples(200), deadline=None)
@given(st.sets(st.integers(0, 10**7), max_size=2000), st.integers(0, 2**62))
def test_metadata_fits_into_a_commit_or_is_cut(offsets, handled_ns):
    text = encode_metadata(offsets, handled_ns)
    assert len(text) <= MAX_METADATA
    mark = decode_mark(0, text)
    assert mark.handled_ns == handled_ns
    assert mark.settled <= offsets
    if len(offsets) < 100:
        assert mark.settled == offsets


@settings(max_examples=examples(300), deadline=None)
@given(
    st.text(max_size=60)
    | st.sampled_from(("[1]", "[1,2]", "[1,[[3]]]", '["a",[]]', "[" * 5000, "[1,[[0,1e99]]]"))
)
def test_metadata_of_another_form_counts_as_none(text):
    mark = decode_mark(5, text)
    assert mark.offset == 5
    assert len(mark.settled) <= 10**6 + 1


def test_empty_partitions_are_committed_too():
    positions = Positions({})
    positions.add_places([PLACE])
    assert positions.commits(1, everywhere=True)[PLACE][0] == 0
    positions.committed()
    assert positions.commits(1) == {}
