"""Workers of the fork server: one interpreter for all, and nothing is left behind after any kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from fabrictime.testbed.processes.fork_server import ForkServer


@pytest.fixture
def fork_server():
    made = ForkServer()
    yield made
    made.close()


def gone(pid: int) -> bool:
    """Whether the process ends within 10 s."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def finish(worker) -> str:
    """End a worker that has had no order; returns what it said."""
    worker.hang_up()
    output = worker.stdout.read()
    assert gone(worker.pid)
    assert not worker.running
    worker.end()
    worker.stdout.close()
    return output


def test_workers_of_both_kinds_are_children_of_one_process_that_is_not_ours(fork_server):
    workers = [fork_server.start("flow"), fork_server.start("job"), fork_server.start("flow")]
    parents = {psutil.Process(worker.pid).ppid() for worker in workers}
    assert len(parents) == 1
    assert os.getpid() not in parents
    assert all(worker.running for worker in workers)
    names = ["testbed flow", "testbed job", "testbed flow"]  # as they are called once they run
    end = time.monotonic() + 10
    while [psutil.Process(worker.pid).name() for worker in workers] != names:
        assert time.monotonic() < end
    for worker in workers:
        finish(worker)
    assert psutil.Process(parents.pop()).is_running()


def test_an_order_that_is_none_is_the_workers_own_trouble(fork_server, capfd):
    worker = fork_server.start("flow")
    worker.stdin.write(json.dumps({"protocol": "carrier pigeon"}) + "\n")
    worker.stdin.flush()
    assert worker.stdout.read() == ""
    assert gone(worker.pid)
    worker.end()
    worker.stdout.close()
    assert "Traceback" in capfd.readouterr().err
    finish(fork_server.start("flow"))


def test_many_workers_leave_no_descriptor_behind_here_or_there(fork_server):
    first = fork_server.start("flow")
    there = psutil.Process(psutil.Process(first.pid).ppid())
    finish(first)
    del first
    here = psutil.Process()
    here_before, there_before = here.num_fds(), there.num_fds()
    for _ in range(20):
        finish(fork_server.start("job"))
    assert here.num_fds() <= here_before
    assert there.num_fds() <= there_before, "the end of the first worker may still have been open"
    assert there.children() == []


def test_threads_that_ask_at_once_each_get_a_worker_of_their_own(fork_server):
    workers = []
    threads = [threading.Thread(target=lambda: workers.append(fork_server.start("flow"))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({worker.pid for worker in workers}) == 12
    for worker in workers[1:]:
        finish(worker)
    assert workers[0].running, "the end of another's input ended it"
    finish(workers[0])


def test_a_killed_fork_server_leaves_its_workers_and_is_restarted_on_demand(fork_server):
    old = fork_server.start("flow")
    parent = psutil.Process(old.pid).ppid()
    os.kill(parent, signal.SIGKILL)
    assert gone(parent)
    new = fork_server.start("flow")
    assert old.running
    assert psutil.Process(new.pid).ppid() != parent
    finish(old)
    finish(new)


def test_a_worker_that_takes_no_hint_is_killed(fork_server):
    worker = fork_server.start("flow")
    os.kill(worker.pid, signal.SIGSTOP)
    worker.end()
    worker.stdout.close()
    assert not worker.running


def test_when_the_starter_is_killed_the_fork_server_and_its_workers_end():
    code = """
from fabrictime.testbed.processes.fork_server import ForkServer
import time
worker = ForkServer().start("job")
print(worker.pid, flush=True)
time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        worker = int(starter.stdout.readline())
        parent = psutil.Process(worker).ppid()
        starter.kill()
    assert gone(worker)
    assert gone(parent)
