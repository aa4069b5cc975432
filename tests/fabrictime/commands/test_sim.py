"""`fabrictime sim` against a control socket: status, faults and their end, and what nobody answers."""

import json
import threading

import pytest
from typer.testing import CliRunner

from fabrictime.commands.sim import app
from producers.sim.control import ControlServer, socket_path

LINKS = [f"leaf1:swp{number}>spine{number}:swp1" for number in range(6)]
FAULT = {"fault": 3, "line": "grey 20% leaf1>spine", "links": LINKS, "begin_ns": 0, "end_ns": 2_500_000_000}
STATUS = {
    "now_ns": 61_000_000_000,
    "start_ns": 1_000_000_000,
    "nics": 1024,
    "links": 4096,
    "flows": 2048,
    "pace": 0.6,
    "skipped_s": 40.0,
    "probes": {"sent": 12_345_678, "lost": 9},
    "jobs": [{"job": "train", "kind": "allreduce", "nics": 16, "iterations": 1200, "time_ns": None}],
    "faults": [FAULT],
    "contention": [{"link": LINKS[0], "kind": "PAUSE_STORM", "begin_ns": 60_000_000_000}],
}


@pytest.fixture
def asked(tmp_path):
    """A fleet that answers, and the requests that it has got."""
    found = []

    def take(answer):
        return lambda request: found.append(request) or answer

    server = ControlServer(
        socket_path(tmp_path), {"status": take(STATUS), "fault": take(FAULT), "clear": take([FAULT])}
    )
    over = threading.Event()

    def serve():
        while not over.wait(0.002):
            server.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    yield found
    over.set()
    thread.join()
    server.close()


@pytest.fixture
def sim(tmp_path):
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--dir", str(tmp_path)])


def test_status_shows_size_jobs_faults_and_queues(sim, asked):
    shown = sim("status")
    assert shown.exit_code == 0, shown.stderr
    for fragment in (
        "1024 NICs, 4096 links, 2048 flows; 60 s simulated, 12,345,678 probes, 9 lost",
        "simulates 0.6 s per second, 40 s skipped since the start; use fewer NICs (sim:552)",
        "fault 3: grey 20% leaf1>spine; on leaf1:swp0>spine0:swp1",
        "and 2 more",
        f"queue stands 1.0 s at {LINKS[0]}: pause storm",
        "train",
    ):
        assert fragment in shown.stdout
    assert json.loads(sim("status", "--json").stdout) == STATUS


def test_a_fault_is_made_for_a_time_and_healed(sim, asked):
    assert sim("fault", "grey 20% leaf1>spine2", "--for", "10s").exit_code == 0
    assert asked[-1]["line"] == "grey 20% leaf1>spine2 for 10s"
    assert "fault 3 cleared after 2.5 s" in sim("clear", "3").stdout
    assert asked[-1]["fault"] == "3"


def test_a_line_that_is_no_fault_is_refused_before_anybody_is_asked(sim, asked):
    refused = sim("fault", "melt leaf1")
    assert (refused.exit_code, asked) == (2, [])
    assert refused.stderr.startswith("fabrictime sim: ")


def test_without_a_fleet_the_socket_is_named(sim, tmp_path):
    refused = sim("status")
    assert refused.exit_code == 1
    assert (
        refused.stderr
        == f"fabrictime sim: no simulated fleet at {socket_path(tmp_path)}: No such file or directory\n"
    )
