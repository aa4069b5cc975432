"""Dumps of PyTorch's Flight Recorder in a folder."""

from __future__ import annotations

import os
import pickle
import shutil
import time

import pytest

from producers.collectives.reports import RecorderDumps
from producers.collectives.settings import CollectiveSettings
from producers.collectives.timeline import ClockReading
from schemas import codec
from schemas.records import ClockSync
from tests.producers.collectives.segments import Segment, Traced, ended
from tests.waiting import wait_until

ENTRY = {
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 4,
    "profiling_name": "nccl:all_gather",
    "time_created_ns": 1_750_000_000_000_000_000,
    "time_discovered_completed_ns": None,
}


@pytest.fixture
def process():
    segment = Segment()
    segment.communicator(number=0xAB, rank=3)
    segment.put(ended([1]))
    traced = Traced(segment)
    traced.step(0.0)
    yield traced
    segment.close()


def polled(reports, done):
    """Poll until `done` accepts the dumps so far."""
    dumps, end_s = [], time.monotonic() + 10
    while not done(dumps):
        assert time.monotonic() < end_s
        dumps += reports.poll(time.monotonic())
    return dumps


def aged(path, data, age_s=5):
    path.write_bytes(data)
    os.utime(path, (time.time() - age_s,) * 2)


def test_dumps_become_records_of_the_job(tmp_path, process):
    aged(tmp_path / "nccl_trace_rank_3", pickle.dumps({"entries": [ENTRY]}, 2))
    aged(tmp_path / "old_rank_4", b"{}", age_s=7200)
    aged(tmp_path / "fresh_rank_5", b"{}", age_s=-5)
    (tmp_path / "link_rank_6").symlink_to(tmp_path / "nccl_trace_rank_3")
    os.mkfifo(tmp_path / "pipe_rank_7")
    settings = CollectiveSettings(socket="unused", ras="off", flight_recorder_directory=tmp_path)
    reports = RecorderDumps(settings, "h1", reads=True)
    (dump,) = polled(reports, bool)
    now = ClockReading(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), time.time_ns(), 9.0, ClockSync.SYNCED)
    record = reports.record(dump, "boot", "s0", now, [process.process])
    assert codec.decode(codec.encode("CollectiveBatch", record), "CollectiveBatch") == record
    assert (record["job"], record["operations"][0]["kept"], record["ended"]) == ("train", "RECORDED", True)
    assert record["process"].startswith("recorder-3-")
    assert record["ranks"][0]["text"] == "waits in ALL_GATHER 4"
    assert reports.record(dump, "boot", "s0", now, [])["job"] == "flight-recorder"
    bad = dump._replace(data=b"no dump")
    assert reports.record(bad, "boot", "s0", now, []) is None
    assert reports.failed == 1


def test_a_dump_is_found_among_many_other_files(tmp_path, caplog):
    for number in range(5000):
        (tmp_path / f"systemd-private-{number}-x").touch()
        (tmp_path / f"tmp{number}").touch()
    aged(tmp_path / "nccl_trace_rank_3", b"{}")
    settings = CollectiveSettings(socket="unused", ras="off", flight_recorder_directory=tmp_path)
    reports = RecorderDumps(settings, "h1", reads=True)
    dumps = polled(reports, lambda found: any(dump.path.name == "nccl_trace_rank_3" for dump in found))
    assert [dump.rank for dump in dumps if "rank" in dump.path.name] == [3]
    assert caplog.messages == [
        f"{tmp_path}: 5001 names with a rank, expected at most 4096: the others are not read"
    ]


def test_dumps_are_read_after_the_folder_was_made_again(tmp_path):
    folder = tmp_path / "dumps"
    settings = CollectiveSettings(socket="unused", ras="off", flight_recorder_directory=folder)
    reports = RecorderDumps(settings, "h1", reads=True)
    wait_s = iter(range(0, 1000, 10))  # each look is a scan

    def scanned():
        found, before = [], reports.failed
        wait_until(lambda: found.extend(reports.poll(next(wait_s))) or found or reports.failed > before)
        return [dump.data for dump in found]

    assert scanned() == []
    for content in (b"1", b"2"):
        folder.mkdir()
        aged(folder / "nccl_trace_rank_3", content, age_s=9 - int(content))
        assert scanned() == [content]
        shutil.rmtree(folder)
        assert scanned() == []


def test_a_large_dump_is_refused(tmp_path):
    with (tmp_path / "rank_1").open("wb") as file:
        file.truncate((16 << 20) + 1)
    os.utime(tmp_path / "rank_1", (time.time() - 5,) * 2)
    settings = CollectiveSettings(socket="unused", ras="off", flight_recorder_directory=tmp_path)
    aged(tmp_path / "nccl_trace_rank_3", b"{}")
    reports = RecorderDumps(settings, "h1", reads=True)
    dumps = polled(reports, lambda dumps: reports.failed == 1 and dumps)
    assert [dump.rank for dump in dumps] == [3], "a refused dump keeps no other one from being read"
