"""A partition: append time, idempotence, recovery, retention, compaction against a model."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.log.batch import read_header
from fabrictime.log.compact import clean
from fabrictime.log.errors import Code, LogError
from fabrictime.log.partition import DEFAULTS, Partition, parse_config
from tests.examples import examples


def config(**options):
    base = dict(DEFAULTS) | {
        "max.message.bytes": "4000000",
        "segment.bytes": "100000",
        "segment.ms": "3600000",
    }
    return parse_config(base | {key.replace("_", "."): str(value) for key, value in options.items()})


class Clock:
    def __init__(self, now=1_000_000):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def content(partition, parse):
    """Everything that a consumer would get."""
    offset, found = partition.start_offset, []
    while (part := partition.read(offset, 50_000)) is not None:
        data = os.pread(part.handle.fd, part.size, part.position)
        assert len(data) == part.size
        records = parse(data)
        found += [record for record in records if record[0] >= offset]
        last = data
        while True:
            header = read_header(last)
            if header.size == len(last):
                break
            last = last[header.size :]
        offset = header.last_offset + 1
    return found


def test_append_time_follows_the_clock_back_and_times_are_still_found(tmp_path, clock, make_batch):
    partition = Partition(tmp_path, config(), clock)
    times = []
    for now in (1000, 5000, 2000, 4999, 5001):
        clock.now = now
        times.append(partition.append(memoryview(make_batch([(b"k", b"v" * 40_000)]))).append_ms)
    assert times == [1000, 5000, 2000, 4999, 5001]
    clock.now = 3000
    again = Partition(tmp_path, config(), clock)
    assert again.append(memoryview(make_batch([(b"k", b"v")]))).append_ms == 3000
    assert again.find_time(2000) == (1, 5000), "the first message of this time or later"
    assert again.find_time(5001) == (4, 5001)
    assert again.find_time(5002) is None


def test_offsets_go_on_after_everything_was_removed(tmp_path, clock, make_batch):
    partition = Partition(tmp_path, config(retention_ms=1000), clock)
    for _ in range(3):
        partition.append(memoryview(make_batch([(b"k", b"v")] * 2)))
    clock.now += 2000
    assert partition.expire(clock.now) > 0
    assert (partition.start_offset, partition.end_offset, partition.size) == (6, 6, 0)
    again = Partition(tmp_path, config(), clock)
    assert again.append(memoryview(make_batch([(b"k", b"v")]))).base_offset == 6


@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
def test_idempotent_producers_are_known_after_a_restart(tmp_path, clock, make_batch, closed):
    partition = Partition(tmp_path, config(segment_bytes=300), clock)

    def send(partition, sequence, producer=7):
        return partition.append(memoryview(make_batch([(b"k", b"v")] * 2, producer=(producer, 0, sequence))))

    for number in range(12):
        assert send(partition, 2 * number).base_offset == 2 * number
    assert len(partition.segments) > 3
    if closed:
        partition.close()
    again = Partition(tmp_path, config(segment_bytes=300), clock)
    assert send(again, 22) == (22, clock.now, 0)
    assert send(again, 14) == (14, clock.now, 0)
    with pytest.raises(LogError, match="expected 24") as error:
        send(again, 26)
    assert error.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(again, 24).base_offset == 24
    assert again.end_offset == 26


def test_sequence_numbers_wrap(tmp_path, clock, make_batch):
    partition = Partition(tmp_path, config(), clock)
    top = 2**31 - 1
    for number, sequence in enumerate([top - 1, 0, 2]):
        data = make_batch([(b"k", b"v")] * 2, producer=(1, 0, sequence))
        assert partition.append(memoryview(data)).base_offset == 2 * number


def test_a_torn_batch_is_cut_off_and_overwritten(tmp_path, clock, make_batch, parse, caplog):
    partition = Partition(tmp_path, config(), clock)
    for number in range(3):
        partition.append(memoryview(make_batch([(b"k", b"%d" % number)])))
    with (tmp_path / "00000000000000000000.log").open("ab") as file:
        file.write(make_batch([(b"k", b"torn")])[:50])
    again = Partition(tmp_path, config(), clock)
    assert "cut off" in caplog.text
    again.append(memoryview(make_batch([(b"k", b"3")])))
    assert [value for _, _, value in content(again, parse)] == [b"0", b"1", b"2", b"3"]


def test_a_hole_in_an_old_segment_costs_only_its_own_batches(tmp_path, clock, make_batch, parse, caplog):
    partition = Partition(tmp_path, config(segment_bytes=400), clock)
    for number in range(12):
        partition.append(memoryview(make_batch([(b"k", b"%02d" % number)])))
    victim = partition.segments[1]
    data = bytearray(victim.path.read_bytes())
    data[-1] ^= 1
    victim.path.write_bytes(data)
    victim.meta_path.unlink()
    again = Partition(tmp_path, config(segment_bytes=400), clock)
    values = [int(value) for _, _, value in content(again, parse)]
    assert len(values) == 11
    assert values == sorted(values)
    assert "later segments kept" in caplog.text


@given(
    steps=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(0, 8), st.sampled_from([b"", b"x", b"y" * 300, None])),
                min_size=1,
                max_size=6,
            ),
            st.sampled_from([0, 0, 1, 2, 3, 4]),
        ),
        max_size=25,
    ),
    old_tombstones=st.booleans(),
    max_keys=st.sampled_from([3, 1000]),
    rounds=st.integers(1, 3),
)
@settings(max_examples=examples(60))
def test_compaction_never_loses_the_newest_of_a_key(
    make_batch, parse, steps, old_tombstones, max_keys, rounds
):
    clock = Clock()
    options = config(cleanup_policy="compact", segment_bytes=2500, min_cleanable_dirty_ratio=0)
    with tempfile.TemporaryDirectory() as folder:
        partition = Partition(Path(folder), options, clock)
        written = []
        for pairs, codec in steps:
            keyed = [(b"key-%d" % key, value) for key, value in pairs]
            clock.now += 10
            base = partition.append(memoryview(make_batch(keyed, codec=codec))).base_offset
            written += [(base + number, key, value) for number, (key, value) in enumerate(keyed)]
        for _ in range(rounds):
            segments = partition.segments[:-1]
            if not segments:
                break
            before_ms = clock.now + 1 if old_tombstones else 0
            for cleaned in clean(segments, max_keys, options.segment_bytes, before_ms):
                partition.replace(cleaned)
        for opened in (partition, Partition(Path(folder), options, clock)):
            left = content(opened, parse)
            assert set(left) <= set(written)
            assert [offset for offset, _, _ in left] == sorted({offset for offset, _, _ in left})
            newest = {key: (offset, value) for offset, key, value in written}
            kept = {key: (offset, value) for offset, key, value in left}
            for key, (offset, value) in newest.items():
                if value is not None or not old_tombstones:
                    assert kept[key] == (offset, value)
                elif key in kept:
                    assert kept[key][1] is None
            closed_end = partition.segments[-1].base_offset
            if max_keys > 100:
                closed = [key for offset, key, _ in left if offset < closed_end]
                assert len(closed) == len(set(closed))
            assert opened.end_offset == partition.end_offset


def test_a_crash_while_compacted_files_change_places_doubles_nothing(tmp_path, clock, make_batch, parse):
    options = config(cleanup_policy="compact", segment_bytes=1500)
    partition = Partition(tmp_path, options, clock)
    for number in range(30):
        partition.append(memoryview(make_batch([(b"key-%d" % (number % 3), bytes(200))])))
    segments = partition.segments[:-1]
    last = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    [first, *_] = clean(segments, 1000, 10**6, 0)
    partition.replace(first)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    wanted = content(partition, parse)
    # The cleaned file is in place, the ones it replaces are not yet gone.
    for name, data in itertools.chain(last.items(), after.items()):
        (tmp_path / name).write_bytes(data)
    again = Partition(tmp_path, options, clock)
    assert content(again, parse) == wanted
    assert again.end_offset == 30


def test_batches_that_cannot_be_opened_are_kept(tmp_path, clock, make_batch):
    from crc32c import crc32c

    options = config(cleanup_policy="compact", segment_bytes=500)
    partition = Partition(tmp_path, options, clock)
    data = make_batch([(b"k", b"v" * 100)], codec=3)
    data[61:] = os.urandom(len(data) - 61)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    for _ in range(8):
        partition.append(memoryview(bytearray(data)))
    size = partition.size
    for cleaned in clean(partition.segments[:-1], 1000, 10**6, 0):
        partition.replace(cleaned)
    assert partition.size == size


def test_a_full_disk_refuses_and_keeps_acknowledged_batches(tmp_path, clock, make_batch, parse, monkeypatch):
    partition = Partition(tmp_path, config(), clock)
    partition.append(memoryview(make_batch([(b"k", b"before")])))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(LogError, match="no room") as error:
            partition.append(memoryview(make_batch([(b"k", b"refused")])))
    assert error.value.code is Code.KAFKA_STORAGE_ERROR
    partition.append(memoryview(make_batch([(b"k", b"after")])))
    assert [value for _, _, value in content(partition, parse)] == [b"before", b"after"]


def test_reads_are_bounded_but_always_get_on(tmp_path, clock, make_batch):
    partition = Partition(tmp_path, config(segment_bytes=10**6), clock)
    for _ in range(50):
        partition.append(memoryview(make_batch([(b"k", bytes(5000))])))
    assert partition.read(0, 0).size < 6000
    assert 20_000 < partition.read(0, 26_000).size <= 26_000
    assert partition.read(50, 1000) is None
    assert partition.available(40, 10**9) == 10 * partition.read(0, 0).size
    for offset in (-1, 51):
        with pytest.raises(LogError, match="there are 0 to 50"):
            partition.read(offset, 1000)
