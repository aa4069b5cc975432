"""The supervisor with small real children: order, restarts, giving up, stopping, dying together."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fabrictime.runtime.ready import NotifySocket
from fabrictime.runtime.supervisor import ChildFailed, ProcessorWait, State, Step, Supervisor
from tests.fabrictime.children import program

ROOT = Path(__file__).resolve().parents[3]


def row(supervisor, name):
    return next(row for row in supervisor.snapshot() if row["name"] == name)


def order(supervisor, state):
    return [event.name for event in supervisor.events if event.state is state]


async def test_nodes_start_when_their_needs_are_ready_and_stop_in_reverse(supervised, steady, until):
    made = []

    async def make_topics():
        assert order(supervised, State.READY) == ["log"]
        made.append("topics")

    supervised.add(
        steady("log"),
        Step("topics", make_topics, ("log",)),
        steady("worker", needs=("topics",)),
        steady("page", needs=("log",)),
    )
    await supervised.start()
    ready = order(supervised, State.READY)
    assert ready.index("log") < ready.index("topics") < ready.index("worker")
    assert made == ["topics"]
    assert await until(lambda: row(supervised, "worker")["status"] == "serving")
    pids = [row["pid"] for row in supervised.snapshot()]
    await supervised.stop()
    stopped = order(supervised, State.STOPPED)
    assert stopped.index("worker") < stopped.index("topics") < stopped.index("log")
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_killed_child_is_replaced_at_once(supervised, steady, until):
    supervised.add(steady("log"))
    await supervised.start()
    old = row(supervised, "log")["pid"]
    started = time.monotonic()
    os.kill(old, signal.SIGKILL)
    await until(
        lambda: row(supervised, "log")["restarts"] == 1 and row(supervised, "log")["state"] == "ready"
    )
    assert time.monotonic() - started < 5
    assert row(supervised, "log")["pid"] != old
    assert row(supervised, "log")["last_exit"] == "killed by SIGKILL"
    await supervised.stop()


async def test_child_that_keeps_dying_is_tried_with_growing_pauses(supervised, child, until):
    supervised.add(child("flappy", "notify('READY=1'); time.sleep(0.01); sys.exit(1)"))
    await supervised.start()
    await until(lambda: row(supervised, "flappy")["restarts"] >= 3)
    assert row(supervised, "flappy")["last_exit"] == "ended with 1"
    await supervised.stop()


REFUSES = "print('history: port = 0, expected 1 to 65535', flush=True); sys.exit(2)"


async def test_essential_child_that_refuses_ends_the_start_with_its_own_line(supervised, child, steady):
    supervised.add(child("log", REFUSES, essential=True), steady("web", needs=("log",)))
    with pytest.raises(ChildFailed, match="log: history: port = 0, expected 1 to 65535"):
        await supervised.start()
    await supervised.stop()
    assert row(supervised, "log")["restarts"] == 0


async def test_essential_child_that_never_gets_ready_ends_the_start_with_its_last_lines(supervised, child):
    body = "print('no route', flush=True); time.sleep(60)"
    supervised.add(child("log", body, ready_timeout_s=0.3, essential=True))
    with pytest.raises(ChildFailed, match="log: killed by SIGKILL") as failed:
        await supervised.start()
    assert "no route" in failed.value.tail
    await supervised.stop()


async def test_one_child_that_refuses_is_retried_and_the_others_go_on(
    supervised, child, steady, until, tmp_path
):
    allowed = tmp_path / "allowed"
    body = (
        f"import os\nif not os.path.exists({str(allowed)!r}):\n"
        "    print('2026-01-01 00:00:00,1 ERROR producers.probe: h1/eth3: no address', flush=True)\n"
        "    sys.exit(2)\n"
        "notify('READY=1'); signal.pause()"
    )
    supervised.add(steady("log"), child("prober", body), steady("web", needs=("prober",)))
    await supervised.start()
    assert supervised.faults == {"prober": "h1/eth3: no address"}
    assert row(supervised, "prober")["fault"] == "h1/eth3: no address"
    await until(lambda: row(supervised, "web")["state"] == "ready")
    await until(lambda: row(supervised, "prober")["restarts"] >= 1)
    shown = [event for event in supervised.events if event.is_fault]
    assert [event.text for event in shown] == ["h1/eth3: no address"], (
        "a fault is shown once, not at each try"
    )
    allowed.touch()
    await until(lambda: row(supervised, "prober")["state"] == "ready")
    assert supervised.faults == {}
    await supervised.stop()


async def test_child_that_never_gets_ready_does_not_keep_the_start_waiting(supervised, child, steady):
    supervised.add(steady("log"), child("worker", "sys.exit('no route')"))
    await supervised.start()
    assert supervised.faults == {"worker": "ended with 1: no route"}
    assert row(supervised, "log")["state"] == "ready"
    await supervised.stop()


async def test_child_that_ends_itself_names_its_reason_though_other_lines_follow(supervised, child, until):
    body = (
        "notify('READY=1'); notify('X_END=a rebalance has not ended'); print('Unclosed client'); sys.exit(70)"
    )
    supervised.add(child("policy", body))
    await supervised.start()
    await until(lambda: supervised.faults == {"policy": "ended with 70: a rebalance has not ended"})
    await supervised.stop()


async def test_child_that_cannot_be_started_is_a_fault_of_its_own(supervised, child, steady):
    missing = replace(child("worker", ""), argv=("/no/such/program",))
    supervised.add(steady("log"), missing)
    await supervised.start()
    assert "cannot be started" in supervised.faults["worker"]
    assert row(supervised, "log")["state"] == "ready"
    await supervised.stop()


async def test_child_that_works_in_part_reports_its_fault_and_its_end(supervised, child, until):
    body = (
        "notify('READY=1\\nX_FAULT=eth3: no address')\n"
        "signal.sigwait({signal.SIGUSR1}); notify('X_FAULT='); signal.pause()"
    )
    supervised.add(child("flows", "signal.pthread_sigmask(0, {signal.SIGUSR1})\n" + body))
    await supervised.start()
    await until(lambda: supervised.faults == {"flows": "eth3: no address"})
    assert row(supervised, "flows")["state"] == "ready"
    os.kill(row(supervised, "flows")["pid"], signal.SIGUSR1)
    await until(lambda: supervised.faults == {})
    await supervised.stop()


async def test_step_that_raises_ends_the_start(supervised, steady):
    async def broken():
        raise ValueError("127.0.0.1:1 does not answer")

    supervised.add(steady("log"), Step("topics", broken, ("log",)))
    with pytest.raises(ChildFailed, match=r"topics: 127\.0\.0\.1:1 does not answer"):
        await supervised.start()
    await supervised.stop()


async def test_silent_child_is_killed_once_it_has_shown_signs_of_life(supervised, child, until):
    body = "notify('READY=1\\nWATCHDOG=1'); signal.pause()"
    supervised.add(child("worker", body, watchdog_s=0.3))
    await supervised.start()
    await until(lambda: row(supervised, "worker")["restarts"] >= 1)
    assert any("no sign of life" in event.text for event in supervised.events)
    await supervised.stop()


@pytest.fixture
def busy_processor():
    """A program that keeps processor 0 busy until it is killed."""
    program = "import os; os.sched_setaffinity(0, {0})\nwhile True: pass"
    burner = subprocess.Popen([sys.executable, "-c", program])
    yield burner
    burner.kill()
    burner.wait()


async def test_child_that_waits_for_a_processor_is_not_killed(supervised, child, until, busy_processor):
    body = (
        "os.sched_setaffinity(0, {0}); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        "while time.process_time() < 1.5: pass\n"
        "notify('READY=1'); time.sleep(300)"
    )
    supervised.add(child("starved", body, ready_timeout_s=2.5))
    starting = asyncio.ensure_future(supervised.start())
    pid = await until(lambda: row(supervised, "starved")["pid"])
    wait = ProcessorWait()
    await until(lambda: wait.update(pid) > 4)
    assert row(supervised, "starved")["restarts"] == 0
    busy_processor.kill()
    await starting
    assert row(supervised, "starved")["pid"] == pid
    await supervised.stop()


def test_the_thread_that_waits_longest_counts_in_each_interval(tmp_path):
    def threads(**waits_ns):
        shutil.rmtree(tmp_path / "7", ignore_errors=True)
        for name, wait_ns in waits_ns.items():
            (tmp_path / "7" / "task" / name).mkdir(parents=True)
            (tmp_path / "7" / "task" / name / "schedstat").write_text(f"1000 {wait_ns} 12\n")

    wait = ProcessorWait(tmp_path)
    threads(main=500_000_000)
    assert wait.update(7) == 0.5
    threads(main=500_000_000, loader=2_000_000_000)
    assert wait.update(7) == 2.5
    threads(main=1_500_000_000)  # the other one has ended
    assert wait.update(7) == 3.5
    assert wait.update(8) == wait.update(None) == 3.5


async def test_child_that_ignores_sigterm_is_killed_with_its_own_children(supervised, child, until):
    body = (
        "import subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "p = subprocess.Popen(['sleep', '300']); notify(f'STATUS={p.pid}\\nREADY=1'); time.sleep(300)"
    )
    supervised.add(child("stubborn", body, stop_timeout_s=0.3))
    await supervised.start()
    grandchild = int(await until(lambda: row(supervised, "stubborn")["status"]))
    await supervised.stop()
    await until(lambda: _gone(grandchild))


def _gone(pid):
    try:
        return psutil.Process(pid).status() == "zombie"
    except psutil.NoSuchProcess:
        return True


async def test_a_status_of_many_parts_is_whole(supervised, child, until):
    """An agent's status names all of its parts: 300 characters showed half of them."""
    body = "notify('STATUS=' + '; '.join(f'part {n}: {n} messages wait' for n in range(30)) + '\\nREADY=1')"
    supervised.add(child("agent", f"{body}; time.sleep(300)"))
    await supervised.start()
    status = await until(lambda: row(supervised, "agent")["status"])
    await supervised.stop()
    assert status.endswith("part 29: 29 messages wait")


async def test_kill_ends_all_at_once(supervised, child):
    supervised.add(
        child("stubborn", "signal.signal(signal.SIGTERM, signal.SIG_IGN); notify('READY=1'); time.sleep(300)")
    )
    await supervised.start()
    started = time.monotonic()
    supervised.kill()
    await supervised.stop()
    assert time.monotonic() - started < 2


def test_children_die_with_a_supervisor_that_is_killed(tmp_path):
    script = tmp_path / "up.py"
    script.write_text(
        f"import asyncio, sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from pathlib import Path\nfrom tests.fabrictime.children import program\n"
        "from fabrictime.runtime.supervisor import Supervisor\n"
        "async def main():\n"
        f"    s = Supervisor(Path({str(tmp_path)!r}))\n"
        "    s.add(program('a', \"notify('READY=1'); signal.pause()\"))\n"
        "    await s.start()\n    print(s.snapshot()[0]['pid'], flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as supervisor:
        child = psutil.Process(int(supervisor.stdout.readline()))
        supervisor.kill()
    child.wait(timeout=5)


@pytest.mark.parametrize("state", [State.STARTING, State.READY])
def test_event_handler_that_ends_the_program_leaves_no_child(tmp_path, state):
    pids = []

    def leave(event):
        if event.state is state:
            raise SystemExit(1)

    async def main():
        supervisor = Supervisor(tmp_path, leave)
        supervisor.add(program("log", "notify('READY=1'); signal.pause()"))
        try:
            await supervisor.start()
            await asyncio.Event().wait()
        finally:
            pids.append(row(supervisor, "log")["pid"])
            await asyncio.wait_for(supervisor.stop(), 10)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert not psutil.pid_exists(pids[0])


async def test_only_the_child_itself_is_heard():
    """Another process that finds the socket's name cannot make a child look ready."""
    notify = NotifySocket()
    code = (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
        f"s.connect('\\0{notify.address[1:]}'); s.send(b'READY=1')"
    )
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await stranger.wait()
    assert list(notify.messages(os.getpid())) == []
    notify.close()


async def test_all_children_start_again_even_those_that_do_not_stop(supervised, steady, child, until):
    supervised.add(
        steady("log"),
        child(
            "stubborn", "signal.signal(signal.SIGTERM, signal.SIG_IGN); notify('READY=1'); time.sleep(300)"
        ),
    )
    await supervised.start()
    before = {row["name"]: row["pid"] for row in supervised.snapshot()}
    supervised.restart_all()

    def is_new(name):
        return row(supervised, name)["state"] == State.READY and row(supervised, name)["pid"] != before[name]

    assert await until(lambda: is_new("log") and is_new("stubborn"))
    assert not [pid for pid in before.values() if psutil.pid_exists(pid)]
    assert row(supervised, "stubborn")["last_exit"] == "killed by SIGKILL"
    await supervised.stop()
