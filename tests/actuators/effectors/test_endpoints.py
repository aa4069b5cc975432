"""Flow endpoints that lie, flood or hang: no other flow is delayed, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys

import pytest

from tests.actuators.desk import KEY, decision, heard

PROGRAM = """
import socket, sys
with socket.socket(socket.AF_UNIX) as program:
    program.connect(sys.argv[1])
    program.sendall(sys.argv[2].encode())
    if sys.argv[3:]:
        print(program.recv(4096).decode())
"""


def another(desk, lines, *more):
    """A program in another process that sends some lines, and receives one if `more` is given."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, desk.path, lines, *more], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("port", [0, 65_536, 900_000_000_000])
def test_an_impossible_answer_is_reported_as_a_failure(desk, port):
    program = desk.own("FLOW sock:7 50000 MOVE,PACE")
    desk.it.take(decision())
    assert heard(program) == ["MOVE 1 sock:7 50001 h1"]
    program.sendall(b"DONE 1 %d SOCKET\n" % port)
    desk.until(lambda: desk.reports)
    assert desk.reports[0]["outcome"] == "FAILED"
    assert f"source port {port}" in desk.reports[0]["detail"]
    assert desk.endpoints.path_of("h1", KEY) == 50_000


def test_answers_to_unknown_commands_change_nothing(desk):
    imposter, program = desk.own("FLOW sock:8 40000 MOVE,PACE"), desk.own("FLOW sock:7 50000 MOVE,PACE")
    desk.it.take(decision())
    imposter.sendall(
        b"".join(b"DONE %d 1234 SOCKET\nFAILED %d no\n" % (number, number) for number in range(9))
    )
    imposter.sendall(b"FLOW sock:9 41000 -\n")
    desk.until(lambda: desk.endpoints.flows() == 3)
    assert not desk.reports
    program.sendall(b"DONE 1 50001 SOCKET\nDONE 1 50002 SOCKET\nFAILED 1 no\n")
    desk.until(lambda: desk.reports)
    assert desk.outcomes == [("s0/1/0", "APPLIED")]
    assert (desk.endpoints.path_of("h1", KEY), desk.endpoints.path_of("h1", "sock:8")) == (50_001, 40_000)


def test_a_flow_belongs_to_its_program_while_that_is_connected(desk):
    desk.own("FLOW sock:7 50000 MOVE")
    with another(desk, "FLOW sock:7 666 MOVE,PACE\nGONE sock:7\n", "hear") as thief:
        desk.until(lambda: thief.poll() is not None)
        assert "another program" in thief.stdout.read()
    assert desk.endpoints.path_of("h1", KEY) == 50_000


def test_a_flow_can_be_taken_over_before_the_hang_up_is_noticed(desk):
    with another(desk, "FLOW sock:7 50000 MOVE\n") as former:
        former.wait(20)
    program = desk.connect("FLOW sock:7 51000 MOVE")  # both are readable now
    desk.until(lambda: desk.endpoints.connected == 1 and desk.endpoints.flows() == 1)
    assert desk.endpoints.path_of("h1", KEY) == 51_000
    program.close()


def test_an_endpoint_that_reads_nothing_is_disconnected_and_gets_whole_lines_after(desk):
    program = desk.own("FLOW sock:7 50000 MOVE", "FLOW sock:8 50000 MOVE")
    program.settimeout(0)

    def flood():
        try:
            program.send(b"garbage\n" * 500)
        except BlockingIOError:
            pass
        except OSError:
            return True
        return desk.endpoints.connected == 0

    desk.until(flood)
    desk.it.take(decision())
    assert desk.reports[-1]["outcome"] == "NO_FLOW"
    program.settimeout(5)
    got = b""
    while more := program.recv(1 << 20):
        got += more
    lines = got.split(b"\n")[:-1]
    assert lines
    assert all(line.startswith(b"ERROR ") for line in lines)


def test_a_flood_from_one_endpoint_delays_no_other_for_long(desk):
    flooder, program = desk.connect(), desk.own("FLOW sock:7 50000 MOVE")
    flooder.settimeout(0)
    lines = b"".join(b"FLOW sock:%d 50000 MOVE\n" % number for number in range(100, 4000))
    with contextlib.suppress(BlockingIOError):
        while True:
            flooder.send(lines)
    desk.it.take(decision())
    program.sendall(b"DONE 1 50001 SOCKET\n")
    cycles = 0
    while not desk.reports:
        for key, events in desk.selector.select(0.01):
            key.data(events)
        cycles += 1
    assert cycles <= 2
    assert desk.endpoints.flows() < 1000, "no more than a piece of it was looked at before"


def test_without_free_descriptors_it_neither_exits_nor_spins(desk):
    program = desk.own("FLOW sock:7 50000 MOVE")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [desk.connect() for _ in range(8)]
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        woken = 0
        for _ in range(20):
            for key, events in desk.selector.select(0.01):
                key.data(events)
                woken += 1
        assert woken <= 2
        desk.it.take(decision())
        program.sendall(b"DONE 1 50001 SOCKET\n")
        desk.until(lambda: desk.reports)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    desk.until(lambda: desk.endpoints.connected == 1 + len(waiting))


def test_garbage_from_many_endpoints_keeps_the_tables_consistent(desk):
    draw = random.Random(os.environ.get("FABRICTIME_SEED", "7"))
    programs = []
    keys = [f"sock:{number}" for number in range(4)]
    verbs = [
        "FLOW {k} {p} MOVE",
        "GONE {k}",
        "DONE {n} {p} SOCKET",
        "FAILED {n} x",
        "FLOW {k} {p} - h1",
        "{k}",
    ]
    for step in range(400):
        if not programs or draw.random() < 0.1:
            programs.append(desk.connect())
        program = draw.choice(programs)
        line = draw.choice(verbs).format(k=draw.choice(keys), p=draw.choice((0, 1, 9, 70_000)), n=step % 9)
        try:
            program.sendall(line.encode() + b"\n"[: draw.random() < 0.9])
        except OSError:
            programs.remove(program)
            continue
        if draw.random() < 0.1:
            programs.remove(program)
            program.close()
        if draw.random() < 0.3:
            desk.it.take(decision(step, flow_id=f"h1/b/{draw.choice(keys)}"))
        for key, events in desk.selector.select(0):
            key.data(events)
    for program in programs:
        program.close()
    desk.until(lambda: not desk.endpoints.connected and not desk.it.busy)
    assert (desk.endpoints.flows(), desk.endpoints.flows("h1"), desk.endpoints.due_ns()) == (0, 0, None)
    reported = [each["decision_id"] for each in desk.reports]
    assert len(reported) == len(set(reported)), "one line for each"
