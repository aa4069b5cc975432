"""The page's file: permissions, the page of a former writer, and replaced files."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from actuators.clock.page import (
    CLOCKS,
    NICS,
    PAGE_BYTES,
    ClockRow,
    Content,
    PageError,
    PageFile,
    pack,
    unpack,
)
from actuators.clock.timescale import RawClockModel, SlewedModel
from native.core.hostclock import PageWriter, cross, raw_ns
from schemas.records import ClockSync

ROW = ClockRow(ClockSync.SYNCED, 1, 2, 3.0, 4.0, 5.0, 6.0, offset_fraction_ns=0.25)
CONTENT = Content(
    ClockSync.SYNCED,
    SlewedModel(RawClockModel(10, 20, 30.5, 40.5, 50.5, 60.5), 70.5, 80),
    90,
    100,
    110,
    120,
    3,
    4,
    "a",
    "ptp0",
    10_000,
    60_000,
)


def test_packed_content_reads_back():
    assert unpack(pack(CONTENT)) == CONTENT
    assert unpack(pack(replace(CONTENT, retired=True))).retired
    assert unpack(pack(Content())).state == ClockSync.UNSYNCED
    spoilt = bytearray(pack(CONTENT))
    spoilt[100] ^= 1
    assert unpack(bytes(spoilt)) is None


def test_clocks_and_nics_beyond_capacity_are_left_out():
    clocks = {f"ptp{number}": ROW for number in range(CLOCKS + 5)}
    nics = {f"eth{number}": "ptp1" for number in range(NICS + 9)} | {"gone": "ptp36"}
    data = pack(replace(CONTENT, clocks={"c" * 64: ROW, **clocks}, nics={"n" * 60: "ptp0", **nics}))
    assert int.from_bytes(data[136:140], "little") == CLOCKS
    assert int.from_bytes(data[140:144], "little") == NICS
    assert b"ccc" not in data
    assert b"nnn" not in data


@pytest.mark.parametrize(("readable", "mode"), [("owner", 0o600), ("group", 0o640), ("all", 0o644)])
def test_only_the_setting_lets_others_read(tmp_path, readable, mode):
    path = tmp_path / "run" / "clock"
    before = os.umask(0o077)
    try:
        PageFile(path, "h1", readable).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [entry.name for entry in path.parent.iterdir()] == ["clock"]
    PageFile(path, "h1", "owner").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_next_writer_continues_the_file(tmp_path):
    path = tmp_path / "clock"
    first = PageFile(path, "h1")
    assert first.last is None
    first.write(CONTENT)
    first.close()
    inode = path.stat().st_ino
    second = PageFile(path, "h1")
    assert second.last == CONTENT
    assert path.stat().st_ino == inode
    second.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"rubbish"),
        lambda path: path.write_bytes(b""),
        lambda path: os.truncate(path, PAGE_BYTES - 1),
        lambda path: path.write_bytes(path.read_bytes()[:330] + os.urandom(PAGE_BYTES - 330)),
    ],
)
def test_file_that_is_no_page_is_replaced(tmp_path, spoil):
    path = tmp_path / "clock"
    PageFile(path, "h1").close()
    spoil(path)
    inode = path.stat().st_ino
    made = PageFile(path, "h1")
    assert made.last is None
    assert path.stat().st_ino != inode
    assert path.stat().st_size == PAGE_BYTES
    made.close()


def test_page_of_another_host_is_replaced(tmp_path):
    PageFile(tmp_path / "clock", "h1").close()
    made = PageFile(tmp_path / "clock", "h2")
    assert made.last is None
    made.close()


def test_path_that_cannot_be_a_page_is_named(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "link", tmp_path / "folder", tmp_path / "file" / "clock"):
        with pytest.raises(PageError, match=f"clock_file {path}: .*expected"):
            PageFile(path, "h1")
    assert not (tmp_path / "elsewhere").exists()


def test_write_that_is_late_changes_nothing(tmp_path):
    page = PageFile(tmp_path / "clock", "h1")
    assert page.write(CONTENT)
    now = raw_ns()
    assert not page.write(replace(CONTENT, window=5), now, now - 1)
    page.close()
    again = PageFile(tmp_path / "clock", "h1")
    assert again.last == CONTENT
    later = raw_ns() + 2_000_000
    assert again.write(replace(CONTENT, window=5), later, later + 10**9)
    assert raw_ns() >= later
    with pytest.raises(ValueError, match="at most 10 ms ahead"):
        again.write(CONTENT, raw_ns() + 10**9)
    again.close()


def test_a_removed_page_is_noticed(tmp_path):
    page = PageFile(tmp_path / "clock", "h1")
    assert page.in_place()
    (tmp_path / "clock").unlink()
    assert not page.in_place()
    (tmp_path / "clock").write_text("another")
    assert not page.in_place()
    page.close()


def test_writer_refuses_content_that_does_not_fit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    fd = os.open(path, os.O_RDWR)
    try:
        for size, sequence_at, copies_at, copy_bytes in (
            (4096, 3, 8, 8),
            (4096, 0, 8, 4096),
            (4096, 8, 8, 8),
            (4096, 0, 8, 12),
        ):
            with pytest.raises(ValueError, match="expected"):
                PageWriter(fd, size, sequence_at, copies_at, copy_bytes)
        writer = PageWriter(fd, 4096, 0, 8, 64)
        with pytest.raises(ValueError, match="content of 63 bytes: expected 64"):
            writer.write(bytes(63))
        assert writer.write(b"x" * 64)
        assert writer.read() == b"x" * 64
        assert writer.sequence == 2
        writer.close()
        for after in (lambda: writer.write(bytes(64)), writer.read, lambda: writer.sequence):
            with pytest.raises(ValueError, match="closed"):
                after()
    finally:
        os.close(fd)


def test_a_cross_timestamp_brackets_the_clock():
    import time

    before, clock, after = cross(time.CLOCK_MONOTONIC_RAW)
    assert before <= clock <= after
    with pytest.raises(OSError, match="clock 99"):
        cross(99)
    with pytest.raises(ValueError, match="tries 0"):
        cross(0, 0)


def test_no_other_file_of_the_host_is_touched(tmp_path: Path):
    (tmp_path / "other").write_text("kept")
    PageFile(tmp_path / "clock", "h1").close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["clock", "other"]
