"""Segments: recovery after a crash or a bad disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.log import batch as batches
from fabrictime.log.segment import INDEX_BYTES, Segment
from tests.examples import examples


def write(folder: Path, make_batch, sizes, name="00000000000000000000.log"):
    """A segment of one batch a size, stamped 1000, 1010, …; returns it with the batches' positions."""
    segment = Segment(folder / name, create=True)
    positions = []
    for number, size in enumerate(sizes):
        data = make_batch([(b"k", bytes(size))] * (1 + number % 3))
        base = segment.end_offset
        batches.stamp(memoryview(data), base, 1000 + 10 * number)
        position = segment.append(memoryview(data))
        segment.note(batches.read_header(data), position)
        positions.append(position)
    return segment, positions


def reopened(segment):
    again = Segment(segment.path)
    seen = []
    valid_bytes = again.scan(seen.append)
    return again, valid_bytes, seen


@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=40), data=st.data())
@settings(max_examples=examples(40))
def test_every_offset_and_time_is_found(make_batch, sizes, data):
    with tempfile.TemporaryDirectory() as folder:
        segment, positions = write(Path(folder), make_batch, sizes)
        for found in (segment, reopened(segment)[0]):
            offset = data.draw(st.integers(0, segment.end_offset - 1))
            position = found.locate(offset)
            [(_, header)] = list(found.headers(position, position + batches.HEADER_BYTES))[:1]
            assert header.base_offset <= offset <= header.last_offset
            assert position in positions
            limit = data.draw(st.integers(0, 20_000))
            end = found.range_end(position, limit)
            assert end in [*positions, found.size]
            assert end > position
            following = [at for at in [*positions, found.size] if at > position]
            assert end == following[0] or end <= position + limit
            assert (
                end == found.size
                or min(at for at in following if at > end) > position + limit
                or end == (max([at for at in following if at <= position + limit], default=following[0]))
            )
            time_ms = data.draw(st.integers(900, 1000 + 10 * len(sizes)))
            at = found.find_time(time_ms)
            number = max(0, -(-(time_ms - 1000) // 10))
            if number >= len(sizes):
                assert at is None
            else:
                assert at is not None
                assert at[1] == 1000 + 10 * number
                assert found.locate(at[0]) == positions[number]
        assert segment.locate(segment.end_offset) is None


def test_the_index_is_sparse_and_survives_in_its_file(tmp_path, make_batch):
    segment, positions = write(tmp_path, make_batch, [200] * 2000)
    segment.save_meta([[7, 0, [[0, 0, 0, 1000]]]])
    again = Segment(segment.path)
    assert again.load_meta() == [[7, 0, [[0, 0, 0, 1000]]]]
    assert again.end_offset == segment.end_offset
    assert len(again._positions) <= segment.size // INDEX_BYTES + 1
    for offset in range(0, segment.end_offset, 333):
        assert again.locate(offset) == segment.locate(offset) in positions


@given(garbage=st.binary(max_size=300))
@settings(max_examples=examples(50))
def test_a_damaged_index_file_is_ignored(make_batch, garbage):
    with tempfile.TemporaryDirectory() as folder:
        segment, _ = write(Path(folder), make_batch, [100, 100])
        segment.meta_path.write_bytes(garbage)
        assert Segment(segment.path).load_meta() is None


@given(sizes=st.lists(st.integers(0, 2000), min_size=1, max_size=10), data=st.data())
@settings(max_examples=examples(60))
def test_a_cut_anywhere_leaves_the_whole_batches_before_it(make_batch, sizes, data):
    with tempfile.TemporaryDirectory() as folder:
        segment, positions = write(Path(folder), make_batch, sizes)
        cut = data.draw(st.integers(0, segment.size))
        os.truncate(segment.path, cut)
        again, valid_bytes, seen = reopened(segment)
        ends = [*positions[1:], segment.size]
        assert valid_bytes == max([end for end in ends if end <= cut], default=0)
        assert len(seen) == sum(end <= cut for end in ends)
        again.cut(valid_bytes)
        assert reopened(again)[1] == valid_bytes


@given(sizes=st.lists(st.integers(0, 500), min_size=2, max_size=8), data=st.data())
@settings(max_examples=examples(60))
def test_a_changed_byte_is_noticed_and_everything_before_it_stays(make_batch, sizes, data):
    with tempfile.TemporaryDirectory() as folder:
        segment, positions = write(Path(folder), make_batch, sizes)
        at = data.draw(st.integers(0, segment.size - 1))
        content = bytearray(segment.path.read_bytes())
        content[at] ^= data.draw(st.integers(1, 255))
        segment.path.write_bytes(content)
        _, valid_bytes, _ = reopened(segment)
        ends = [*positions[1:], segment.size]
        start = max(position for position in positions if position <= at)
        assert valid_bytes >= start
        # Offset and leader epoch stand before the checksum: Kafka's format leaves them to the reader.
        if at - start >= 16 or 8 <= at - start < 12:
            assert valid_bytes == start
        else:
            assert valid_bytes in ends or valid_bytes == start


@given(content=st.binary(max_size=2000))
@settings(max_examples=examples(500))
def test_a_file_of_any_bytes_opens(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "00000000000000000005.log"
        path.write_bytes(content)
        segment = Segment(path)
        assert 0 <= segment.scan(lambda header: None) <= len(content)


def test_a_failed_write_leaves_nothing_behind(tmp_path, make_batch, monkeypatch):
    segment, _ = write(tmp_path, make_batch, [100])
    size = segment.size
    real = os.pwrite

    def half(fd, data, position):
        monkeypatch.setattr(os, "pwrite", full)
        return real(fd, data[:20], position)

    def full(fd, data, position):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        segment.append(memoryview(make_batch([(b"k", b"v")])))
    assert segment.path.stat().st_size == segment.size == size


def test_a_reader_keeps_a_deleted_segment(tmp_path, make_batch):
    segment, _ = write(tmp_path, make_batch, [100])
    handle, size = segment.handle, segment.size
    segment.delete()
    del segment
    assert len(os.pread(handle.fd, 10_000, 0)) == size
    assert not list(tmp_path.iterdir())
