"""The writer in real processes: its segment, its threads, its socket, forks and deaths of either side."""

from __future__ import annotations

import collections
import os
from pathlib import Path

import pytest

from native.collectives.reader import END, Reader


@pytest.fixture
def running(job):
    job.listen()
    job.start("3", "100")
    return job, Reader(job.accept())


def test_a_segment_names_its_process(running):
    job, reader = running
    assert job.line() == "put 0"
    assert (reader.source, reader.pid, reader.job, reader.version) == (
        "MPI",
        job.process.pid,
        "train-7",
        "4.1.4/test",
    )
    assert reader.capacity == (256, 4096)
    assert reader.devices() == {0: "mlx5_0", 1: "mlx5_1"}
    (world,) = reader.communicators().values()
    assert (world.id, world.rank, world.ranks, world.nodes) == (0x1234567890ABCDEF, 3, 8, 2)
    assert world.name == "world \\x1b[31m", "no control characters"


@pytest.mark.parametrize("name", ["训练一", "推理二", "train\nB"])
def test_a_job_has_its_name_in_any_script(job, name):
    job.environment["FABRICTIME_JOB"] = name
    job.listen()
    job.start("1", "1")
    assert Reader(job.accept()).job == name.replace("\n", "\\x0a")


def test_long_names_are_cut_between_characters_and_stay_different(job):
    names = []
    for end in ("一", "二"):
        job.environment["FABRICTIME_JOB"] = "训练" * 40 + end
        job.path = job.path.with_name(f"{len(names)}.sock")
        job.listen()
        job.start("1", "1")
        names.append(Reader(job.accept()).job)
        job.close()
    assert names[0] != names[1]
    assert all(name.startswith("训练" * 19 + "训~") and len(name.encode()) <= 127 for name in names)


def test_every_event_arrives_in_the_order_of_its_thread(running):
    job, reader = running
    job.line()
    events = reader.drain()
    assert len(events) == 300
    assert set(events["kind"].tolist()) == {END}
    assert len(set(events["operation"].tolist())) == 300, "numbers are unique in the process"
    assert collections.Counter(events["sequence"].tolist()) == dict.fromkeys(range(100), 3)
    for at in range(0, 300, 100):
        assert events["sequence"][at : at + 100].tolist() == list(range(100))


def test_communicators_that_ended_leave_their_rows_to_others(running):
    job, reader = running
    job.line()
    ids = []
    for _ in range(30):
        assert job.send("groups 300") == "done"
        table = reader.communicators()
        events = reader.drain()
        made = events[events["communicator"] > 0]
        assert [table[row].id for row in made["communicator"].tolist()] == made["sequence"].tolist()
        ids += made["sequence"].tolist()
        reader.commit()
    assert ids == list(range(1, 9001))
    assert reader.counters().dropped == 0
    assert len(table) <= 1000, "rows are used again"
    assert not table[0].ended
    assert all(row.ended for number, row in table.items() if number)


def test_communicators_without_a_row_are_counted(running):
    job, reader = running
    job.line()
    assert job.send("groups 5000") == "done"
    counters = reader.counters()
    assert len(reader.communicators()) == 4096
    assert len(reader.drain()) + counters.dropped == 300 + 5000


def test_threads_follow_threads_that_have_ended(running):
    job, reader = running
    job.line()
    for _ in range(10):
        assert job.send("put 5") == "done"
    assert reader.counters().rings == 3
    assert len(reader.drain()) == 450


def test_loss_of_a_full_ring_is_counted_exactly(running):
    job, reader = running
    job.line()
    assert job.send("put 10000") == "done"
    counters = reader.counters()
    assert len(reader.drain()) == 3 * 4096
    assert counters.dropped == 3 * (10100 - 4096)
    reader.commit()
    assert job.send("put 4096") == "done"
    assert len(reader.drain()) == 3 * 4096
    assert reader.counters().dropped == counters.dropped


def test_threads_beyond_the_rings_are_counted(job):
    job.listen()
    job.environment["FABRICTIME_COLLECTIVES_EVENTS"] = "60"
    job.start("300", "2")
    reader = Reader(job.accept())
    assert job.line() == "put 0"
    assert reader.capacity == (256, 64)
    assert len(reader.drain()) == 512
    assert reader.counters().ringless == 88


def test_misuse_is_counted(running):
    job, reader = running
    job.line()
    job.send("misuse")
    assert reader.counters().misuse == 1


def test_segment_is_closed_after_the_last_finalize(running):
    job, reader = running
    job.line()
    assert not reader.counters().closed
    job.send("close")
    assert reader.counters().closed


def test_the_next_reporter_receives_the_same_segment(running):
    job, reader = running
    job.line()
    reader.drain(120)
    reader.commit()
    reader.drain(100)
    reader.close()  # it dies before it has published the hundred
    job.connections.pop().close()
    again = Reader(job.accept())
    assert len(again.drain()) == 180
    again.commit()
    assert again.waiting == 0


def test_a_late_reporter_receives_everything(job):
    job.start("1", "50")
    assert job.line() == "put 0"
    job.listen()
    assert len(Reader(job.accept()).drain()) == 50


def test_a_killed_process_leaves_its_events(running):
    job, reader = running
    job.line()
    job.process.stdin.write("put 1000000000\n")
    job.process.stdin.flush()
    seen = reader.drain()
    while len(seen) < 20_000:
        seen = reader.drain()
        reader.commit()
        if reader.counters().dropped:
            break
    job.kill()
    last = reader.drain()
    assert reader.counters().invalid == 0, "no event is half written"
    assert all(last["sequence"] >= 0)
    reader.commit()
    assert len(reader.drain()) == 0
    assert job.connections[0].recv(1) == b"", "the connection ends with the process"


def test_a_short_process_is_not_lost(job):
    job.listen()
    job.start("1", "5")
    job.process.stdin.close()
    reader = Reader(job.accept())
    assert job.process.wait(20) == 0
    assert len(reader.drain()) == 5


def test_a_child_has_a_segment_of_its_own(running):
    job, reader = running
    job.line()
    job.process.stdin.write("fork\n")
    job.process.stdin.flush()
    child = Reader(job.accept())
    assert job.line() == "child 0"
    assert job.line() == "done"
    assert child.drain()["operation"].tolist() == [2], "what it wrote before it had a segment is ignored"
    assert len(reader.drain()) == 300, "and it wrote nothing into its parent's"


def test_without_a_socket_nothing_happens(job):
    job.environment["FABRICTIME_COLLECTIVES"] = ""
    job.start("1", "5")
    assert job.line() == "closed"
    assert job.process.wait(20) == 0


def test_a_limit_of_file_sizes_is_respected(job):
    job.command = ["bash", "-c", 'ulimit -f 100; exec "$0" "$@"', *job.command]
    job.start("1", "5")
    assert job.line() == "closed"
    assert job.process.wait(20) == 0


def test_a_refusal_is_reported_once(job):
    job.listen()
    job.start("1", "5")
    for _ in range(2):
        job.accept(b"ERROR full: 512 processes, expected at most 512")
        job.connections.pop().close()
    job.accept()
    job.process.stdin.close()
    job.process.wait(20)
    assert job.process.stderr.read().count("refused the trace: ERROR full: 512 processes") == 1


def test_a_long_path_is_reached(job, tmp_path: Path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    job.path = deep / "c.sock"
    job.listen()
    job.start("1", "5")
    assert len(Reader(job.accept()).drain()) <= 5


def test_its_thread_takes_no_signals(running):
    job, _ = running
    job.line()
    masks = []
    for task in Path(f"/proc/{job.process.pid}/task").iterdir():
        status = (task / "status").read_text()
        masks.append(int(status.split("SigBlk:")[1].split()[0], 16))
    assert len(masks) == 2
    assert max(masks) & (1 << 14), "SIGTERM"
    assert min(masks) == 0


def test_memory_grows_with_the_rings_in_use_only(job):
    job.listen()
    job.start("2", "1")
    fd = job.accept()
    reader = Reader(fd)
    assert job.line() == "put 0"
    reader.drain()
    assert os.fstat(fd).st_blocks * 512 < 3 * 4096 * 128 + 200_000


@pytest.mark.slow("compiles with sanitizers")
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_no_sanitizer_reports_an_error(job, sanitized, sanitizers):
    job.environment["TSAN_OPTIONS"] = "die_after_fork=0"
    job.command = [sanitized("program.c", ("writer.c", "connect.c", "job_name.c"), sanitizers)]
    job.listen()
    job.start("8", "20000")
    reader = Reader(job.accept())
    assert job.line() == "put 0"
    total = 0
    for command in ("put 3000", "misuse", "put 3000", "fork", "close"):
        total += len(reader.drain())
        reader.commit()
        answer = job.send(command)
        assert answer in ("done", "child 0")
    job.process.stdin.close()
    errors = job.process.stderr.read()
    assert job.process.wait(60) == 0, errors
    assert "SUMMARY" not in errors
    assert total == 8 * 4096 + 2 * 8 * 3000
