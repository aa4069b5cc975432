"""Readers beside a writer that never pauses, that dies during a write, and that returns with another file."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from actuators.clock import page as writer
from actuators.clock.page import PageError, PageFile
from actuators.clock.timescale import RawClockModel, SlewedModel
from fabrictime_client import Clock, ClockError, Unsynced
from native.core.hostclock import raw_ns

S = 1_000_000_000
HAMMER = Path(__file__).with_name("hammer.py")


class Hammer:
    """hammer.py in a process; it has written at least once when this returns."""

    def __init__(self, path, mode):
        self.process = subprocess.Popen(
            [sys.executable, HAMMER, path, mode], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "writing\n"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def hammer():
    started = []

    def start(path, mode):
        started.append(Hammer(path, mode))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


def read_lines(clock, seconds):
    """Read like `consistent` of reader.c; return (reads, torn, different models)."""
    reads = torn = 0
    seen = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time_ns, bound_ns = clock.now()
        number = (time_ns - time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) + 5 * 10**11) // 10**12
        reads, torn = reads + 1, torn + (number != bound_ns - 2)
        seen.add(number)
    return reads, torn, len(seen)


def test_every_read_beside_a_busy_writer_is_complete(tmp_path, hammer, reader):
    path = tmp_path / "clock"
    hammer(path, "lines")
    in_c = subprocess.Popen(
        [reader.program, "consistent", path, str(2 * S)], stdout=subprocess.PIPE, text=True
    )
    reads, torn, seen = read_lines(Clock(path), 2)
    assert reads > 100
    assert torn == 0
    assert seen > 50
    reads, torn, unsynced, seen = (int(field) for field in in_c.communicate(timeout=30)[0].split())
    assert (torn, unsynced) == (0, 0)
    assert reads > 10_000
    assert seen > 50


def test_threads_of_one_reader_agree(tmp_path, hammer):
    path = tmp_path / "clock"
    hammer(path, "lines")
    clock, found = Clock(path), []
    threads = [threading.Thread(target=lambda: found.append(read_lines(clock, 1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(reads and not torn for reads, torn, _ in found)


def test_time_never_runs_backwards_between_models(tmp_path, hammer, reader):
    """New models every few ms, us apart, with slews: no reader sees an earlier time after a later one."""
    path = tmp_path / "clock"
    hammer(path, "joins")
    command = [reader.program, "monotonic", path, str(2 * S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as in_c:
        clock, last, lines = Clock(path), 0, set()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            time_ns = clock.now().time_ns
            assert time_ns >= last
            last = time_ns
            lines.add(clock._hot[0])
        reads, back = (int(field) for field in in_c.communicate(timeout=30)[0].split())
    assert back == 0
    assert reads > 10_000
    assert len(lines) > 20


def test_writer_killed_at_any_moment_leaves_a_whole_page(tmp_path, hammer, reader):
    draw = random.Random(7)
    path = tmp_path / "clock"
    readers = []
    for _ in range(12):
        running = hammer(path, "lines")
        readers.append(Clock(path))
        deadline = time.monotonic() + draw.uniform(0, 0.02)
        while time.monotonic() < deadline:
            readers[-1].now()
        running.kill()
        for clock in readers:  # also those of former writers, because the file is continued
            time_ns, bound_ns = clock.now()
            ahead = time_ns - raw_ns()
            assert abs(ahead - (bound_ns - 2) * 10**12) < 60 * S
        assert reader("now", path)[0] == 2


def sequence_of(path):
    return int.from_bytes(path.read_bytes()[256:264], "little")


def test_page_half_written_by_a_writer_that_died_reads_as_before(page, made, reader):
    """The sequence is odd and copy 0 is garbage: readers use copy 1, and the next writer repairs it."""
    before = page.path.read_bytes()
    clock = Clock(page.path)
    page.close()
    with page.path.open("r+b") as file:
        file.seek(256)
        file.write((sequence_of(page.path) + 1).to_bytes(8, "little"))
        file.seek(320)
        file.write(os.urandom(writer.COPY_BYTES))
    assert clock.now().bound_ns < 1000
    assert Clock(page.path).status().window == 7
    assert reader("now", page.path)[0] == 2
    healed = PageFile(page.path, "h1")
    assert healed.last is not None
    assert healed.last.window == 7
    healed.write(made.content(window=8))
    assert clock.status().window == 8
    assert sequence_of(page.path) % 2 == 0
    assert page.path.read_bytes()[:256] == before[:256]
    page._fd = os.dup(healed._fd)  # for the fixture to close
    page._writer = healed._writer


def test_readers_of_an_endless_write_give_up(page, reader):
    """Both copies are garbage, which no writer of ours produces: an error or UNSYNCED, and soon."""
    clock = Clock(page.path)
    with page.path.open("r+b") as file:
        file.seek(256)
        file.write((sequence_of(page.path) + 1).to_bytes(8, "little"))
        file.seek(320)
        file.write(os.urandom(2 * writer.COPY_BYTES))
    began = time.monotonic()
    with pytest.raises(ClockError, match="corrupt"):
        clock.now()
    assert time.monotonic() - began < 2
    assert reader("now", page.path) == [-2]


def test_second_writer_is_refused_while_the_first_lives(page):
    with pytest.raises(PageError, match="another actuator writes it"):
        PageFile(page.path, "h1")


def test_readers_notice_the_new_file_of_a_new_writer(page, made, reader):
    """A file of another version is replaced, and its readers switch to the new one."""
    follower = subprocess.Popen(
        [reader.program, "follow", page.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask():
        follower.stdin.write("\n")
        follower.stdin.flush()
        return [int(field) for field in follower.stdout.readline().split()]

    try:
        clock = Clock(page.path)
        assert clock.now().bound_ns < 1000
        assert ask()[0] == 2
        page.close()
        with page.path.open("r+b") as file:  # as written by a newer version of fabrictime
            file.seek(64)
            file.write(b"h9")
        renewed = PageFile(page.path, "h1")
        assert renewed.last is None
        slewed = SlewedModel(RawClockModel(raw_ns(), 77 * S, 0.0, 5.0, 0.0, 0.0))
        renewed.write(made.content(slewed=slewed, window=9))
        with pytest.raises(Unsynced):
            clock.now()  # retired: this call checks, the next one has the new file
        assert clock.status().window == 9
        assert clock.now().time_ns < 200 * S
        assert ask()[0] == 0
        state, time_ns, bound_ns, _ = ask()
        assert (state, bound_ns) == (2, 7)
        assert 77 * S <= time_ns < 200 * S
        page._fd, page._writer = os.dup(renewed._fd), renewed._writer
    finally:
        follower.stdin.close()
        follower.wait(10)
        follower.stdout.close()


def test_readers_find_the_file_that_replaces_one_of_a_killed_writer(page, made, reader):
    """Removed from outside (a cleared runtime directory): the old page was never marked as retired."""
    now = raw_ns()
    page.write(made.content(reopen_raw_ns=now))  # its writer is late from now on
    clock = Clock(page.path)
    page.path.unlink()
    assert clock.now().bound_ns < 1000  # the last model is still valid
    renewed = PageFile(page.path, "h1")
    renewed.write(made.content(window=9))
    clock._looked_ns -= 2 * S  # it checked a moment ago, and checks once a second
    clock.now()
    assert clock.status().window == 9
    renewed.close()


def test_reader_keeps_the_page_it_has_where_the_new_file_is_no_page(page, made):
    page.write(made.content(reopen_raw_ns=raw_ns()))
    clock = Clock(page.path)
    page.path.unlink()
    page.path.write_bytes(b"rubbish" * 5000)
    assert clock.now().bound_ns < 1000
    assert clock.status().window == 7
