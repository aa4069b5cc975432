"""Record batches: any bytes are refused or read, never more; compressed ones within bounds."""

from __future__ import annotations

import contextlib

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.log import batch
from fabrictime.log.errors import LogError
from tests.examples import examples


@given(data=st.binary(max_size=200))
@settings(max_examples=examples(500))
def test_any_bytes_are_refused(data):
    with pytest.raises(LogError):
        batch.check(memoryview(data), 1000)


@given(data=st.data(), position=st.integers(12, 60), is_valid=st.booleans())
@settings(max_examples=examples(500))
def test_any_head_with_a_right_checksum_is_refused_or_walked(make_batch, data, position, is_valid):
    raw = make_batch([(b"key", b"value"), (None, b"v"), (b"k", None)])
    raw[position : position + 2] = data.draw(st.binary(min_size=2, max_size=2))
    raw[61:] = data.draw(st.binary(min_size=len(raw) - 61, max_size=len(raw) - 61)) if is_valid else raw[61:]
    raw[17:21] = crc32c(bytes(raw[21:])).to_bytes(4, "big")
    view = memoryview(raw)
    try:
        header = batch.check(view, 1000)
        batch.require_keys(view, header)
    except LogError:
        pass
    # Compaction reads what was let in, also where nobody checked the records.
    with contextlib.suppress(ValueError, IndexError):
        left = batch.filtered(view, lambda offset, record: record.key is not None)
        assert left is None or len(left) <= len(view)


@pytest.mark.parametrize("codec", range(5))
def test_filtering_leaves_a_batch_that_clients_read(make_batch, codec):
    pairs = [(b"key-%d" % number, b"value" * number) for number in range(20)]
    raw = make_batch(pairs, codec=codec, producer=(7, 1, 40))
    view = memoryview(raw)
    header = batch.check(view, 100_000)
    batch.stamp(view, 1000, 123_456)
    left = bytes(batch.filtered(view, lambda offset, record: offset % 3 == 0))
    read = DefaultRecordBatch(left)
    assert read.validate_crc()
    assert [(record.offset, record.key, record.value, record.timestamp) for record in read] == [
        (1000 + number, *pairs[number], 123_456) for number in range(20) if (1000 + number) % 3 == 0
    ]
    kept = batch.read_header(left)
    assert (kept.base_offset, kept.last_offset) == (1000, 1019)
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (7, 1, 40)
    assert kept.attributes == header.attributes | batch.APPEND_TIME
    assert batch.filtered(view, lambda *_: False) is None
    assert batch.filtered(view, lambda *_: True) is view


@pytest.mark.parametrize(
    ("codec", "compress"),
    [
        (1, cramjam.gzip.compress),
        (2, cramjam.snappy.compress_raw),
        (3, cramjam.lz4.compress),
        (4, cramjam.zstd.compress),
    ],
    ids=["gzip", "snappy", "lz4", "zstd"],
)
def test_bombs_do_not_go_off(monkeypatch, codec, compress):
    monkeypatch.setattr(batch, "MAX_INFLATED_BYTES", 3_000_000)
    assert len(batch.inflate(memoryview(bytes(compress(bytes(2_900_000)))), codec)) == 2_900_000
    with pytest.raises(ValueError, match=r"codec|inflates"):
        batch.inflate(memoryview(bytes(compress(bytes(3_100_000)))), codec)
    with pytest.raises(ValueError, match=r"codec|inflates"):
        batch.inflate(memoryview(b"\x00\x01" + bytes(range(100))), codec)
