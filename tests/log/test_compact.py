"""Compaction of closed segments: the newest of a key, tombstones by age, and keys beyond one pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.log import batch
from fabrictime.log.compact import clean
from fabrictime.log.segment import Segment

OLD_MS, NEW_MS = 1_000, 9_000
Pair = tuple[bytes | None, bytes | None]


@pytest.fixture
def segment(tmp_path, make_batch):
    """Make a closed segment with one batch for each (append ms, pairs), from an offset on."""

    def make(first: int, *batches: tuple[int, list[Pair]]) -> Segment:
        path = tmp_path / f"{first:020}.log"
        offset, data = first, b""
        for append_ms, pairs in batches:
            view = memoryview(make_batch(pairs))
            batch.check(view, 1 << 20)
            batch.stamp(view, offset, append_ms)
            data += bytes(view)
            offset += len(pairs)
        path.write_bytes(data)
        made = Segment(path)
        made.scan(lambda header: None)
        return made

    return make


def records(cleaned, parse):
    return [record for each in cleaned for record in parse(Path(each.segment.path).read_bytes())]


def test_the_newest_of_a_key_stays_at_its_offset(segment, parse):
    first = segment(0, (OLD_MS, [(b"a", b"1"), (b"b", b"1")]), (OLD_MS, [(b"a", b"2")]))
    second = segment(3, (NEW_MS, [(b"a", b"3"), (None, b"keyless")]))
    found = clean([first, second], 100, 1 << 20, 0)
    assert records(found, parse) == [(1, b"b", b"1"), (3, b"a", b"3"), (4, None, b"keyless")]
    assert [(len(each.sources), each.is_complete) for each in found] == [(2, True)]


def test_a_tombstone_goes_once_it_is_old_and_its_key_with_it(segment, parse):
    closed = segment(0, (OLD_MS, [(b"a", b"1"), (b"a", None)]), (NEW_MS, [(b"b", None)]))
    assert records(clean([closed], 100, 1 << 20, NEW_MS), parse) == [(2, b"b", None)]
    assert records(clean([closed], 100, 1 << 20, 0), parse) == [(1, b"a", None), (2, b"b", None)]


def test_a_pass_that_remembers_too_few_keys_stops_early_and_loses_nothing(segment, parse, caplog):
    closed = segment(
        0, *((OLD_MS, [(b"k%d" % number, b"v")]) for number in range(4)), (OLD_MS, [(b"k0", b"w")])
    )
    [found] = clean([closed], 2, 1 << 20, 0)
    assert not found.is_complete
    assert [record[0] for record in records([found], parse)] == [0, 1, 2, 3, 4]
    assert "more keys than one pass remembers" in caplog.text


def test_neighbours_share_a_file_only_up_to_the_size_of_a_segment(segment):
    segments = [segment(number, (OLD_MS, [(b"k%d" % number, bytes(100))])) for number in range(4)]
    size = segments[0].size
    assert [len(each.sources) for each in clean(segments, 100, 2 * size, 0)] == [2, 2]
