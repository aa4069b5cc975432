"""The activity of real processes: idle, computing, reading, stopped; and of trees that look like /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from producers.collectives.process_activity import FIRST_IDLE_S, SAMPLE_S, ActivityMeter, read_process
from schemas.records import ProcessActivity
from tests.waiting import wait_until


@pytest.fixture
def start() -> Iterator[Callable[[str], int]]:
    started: list[subprocess.Popen[bytes]] = []

    def run(program: str) -> int:
        started.append(subprocess.Popen([sys.executable, "-c", program]))
        return started[-1].pid

    yield run
    for process in started:
        process.kill()
        process.wait()


def measured(pid: int, holds: Callable[[ProcessActivity], bool]) -> ProcessActivity:
    """Return the first activity of a process that is as expected."""
    meter, at_s = ActivityMeter(pid, 0.0), iter(range(1, 10_000))

    def sample() -> ProcessActivity | None:
        meter.sample(next(at_s) * SAMPLE_S)
        activity = meter.take()
        return activity if activity is not None and holds(activity) else None

    activity = wait_until(sample)
    assert activity is not None
    return activity


def test_a_process_that_computes(start: Callable[[str], int]) -> None:
    activity = measured(start("while True: pass"), lambda one: one["cpu_ns"] > 0)
    assert activity["stopped_share"] == 0


def test_a_process_that_reads_a_file(start: Callable[[str], int]) -> None:
    pid = start("f = open('/dev/zero', 'rb', 0)\nwhile True: f.read(1 << 20)")
    assert measured(pid, lambda one: (one["io_bytes"] or 0) > 1 << 24)["disk_share"] == 0


def test_a_process_that_a_signal_stopped(start: Callable[[str], int]) -> None:
    pid = start("import time; time.sleep(600)")
    meter = ActivityMeter(pid, 0.0)
    meter.sample(SAMPLE_S)
    assert not meter.is_stopped
    os.kill(pid, signal.SIGSTOP)
    assert measured(pid, lambda one: one["stopped_share"] == 1)["cpu_ns"] == 0
    meter.sample(2 * SAMPLE_S)
    assert meter.is_stopped


def test_samples_are_taken_at_intervals_and_counted_once() -> None:
    meter = ActivityMeter(os.getpid(), 0.0)
    meter.sample(SAMPLE_S / 2)
    assert meter.take() is None
    meter.sample(SAMPLE_S)
    activity = meter.take()
    assert activity is not None
    assert activity["interval_ns"] == SAMPLE_S * 1e9
    assert meter.take() is None


def test_a_process_of_another_namespace_or_that_is_gone_has_no_activity() -> None:
    assert ActivityMeter(0, 0.0).take() is None
    assert read_process(2**22 + 1) is None


def test_a_frozen_cgroup_stops_its_processes(tmp_path: Path) -> None:
    process, group = tmp_path / "proc/7", tmp_path / "groups/job"
    process.mkdir(parents=True)
    group.mkdir(parents=True)
    (process / "stat").write_text(f"7 (a ) b) S {' '.join(str(n) for n in range(1, 50))}")
    (process / "cgroup").write_text("1:cpu:/x\n0::/job\n")
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    running = read_process(7, tmp_path / "proc", tmp_path / "groups")
    (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    frozen = read_process(7, tmp_path / "proc", tmp_path / "groups")
    assert running is not None
    assert frozen is not None
    assert (running.state, frozen.state, running.io_bytes) == ("S", "T", None)
    (group / "cgroup.events").unlink()
    (process / "cgroup").write_text("6:freezer:/job\n")
    (tmp_path / "groups/freezer/job").mkdir(parents=True)
    (tmp_path / "groups/freezer/job/freezer.state").write_text("FROZEN\n")
    frozen = read_process(7, tmp_path / "proc", tmp_path / "groups")
    assert frozen is not None
    assert frozen.state == "T"
    (process / "cgroup").write_text("6:freezer:/../job\n")
    outside = read_process(7, tmp_path / "proc", tmp_path / "groups")
    assert outside is not None
    assert outside.state == "S"
    (process / "stat").write_text("garbage")
    assert read_process(7, tmp_path / "proc", tmp_path / "groups") is None


def test_the_first_record_after_work_and_after_a_stop_comes_soon(start: Callable[[str], int]) -> None:
    pid = start("import time; time.sleep(600)")
    meter = ActivityMeter(pid, 0.0)
    assert meter.heartbeat_s(10) == 10
    meter.take(has_work=True)
    assert meter.heartbeat_s(10) == FIRST_IDLE_S
    assert meter.heartbeat_s(1) == 1
    meter.take()
    assert meter.heartbeat_s(10) == 10
    os.kill(pid, signal.SIGSTOP)
    at_s = iter(range(1, 10_000))

    def is_stopped() -> bool:
        meter.sample(next(at_s) * SAMPLE_S)
        return meter.is_stopped

    wait_until(is_stopped)
    assert meter.heartbeat_s(10) == FIRST_IDLE_S
