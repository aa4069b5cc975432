"""The commands that talk to a running fabric, from a process outside its namespaces."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabrictime.testbed.cli import app
from fabrictime.testbed.control import ControlClient, NoFabric, socket_path
from fabrictime.testbed.fabric.fabric import FabricError

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
UP = "from fabrictime.testbed.cli import app; app()"


def start(directory: Path, *more: str) -> subprocess.Popen[str]:
    shape = ("--hosts", "4", "--leaves", "2", "--spines", "2", "--rate", "50mbit", "--for", "100s")
    return subprocess.Popen(
        [sys.executable, "-c", UP, "up", *shape, "--dir", str(directory), *more],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def running(denied, tmp_path_factory) -> Iterator[Path]:
    """A fabric held by `fabric up` in another process; the path is its data directory, a long one."""
    if denied is not None:
        pytest.skip(denied)
    directory = tmp_path_factory.mktemp("data") / ("long" * 25)
    process = start(directory)
    assert process.stdout is not None
    shown = []
    for line in process.stdout:
        shown.append(line)
        if "Ctrl-C" in line:
            break
    assert any("h4/eth1" in line for line in shown), process.stderr.read() if process.stderr else shown
    yield directory
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert err == ""
    assert not socket_path(directory).exists()


def run(directory: Path, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments, "--dir", str(directory)], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result.output


def test_the_socket_is_the_owners_alone(running):
    assert stat.S_IMODE(os.stat(socket_path(running)).st_mode) == 0o600


def test_show_names_every_nic(running):
    state = json.loads(run(running, "show", "--json"))
    assert [nic["nic"] for nic in state["nics"]] == [f"h{i}/eth1" for i in (1, 2, 3, 4)]
    assert "h3/eth1" in run(running, "show")


def test_a_route_leads_from_host_to_host(running):
    route = ControlClient(socket_path(running)).tcp_route("h1", "h2", 20_000, 40_000)
    assert route[0].startswith("h1:")
    assert route[-1].partition(">")[2].startswith("h2:")


def test_queue_depths_are_streamed_and_an_unknown_link_is_refused(running):
    client = ControlClient(socket_path(running))
    link = client.ask("show")["links"][0]
    samples_read = list(client.stream("queues", links=[link], interval_s=0.01, duration_s=0.1))
    samples = [sample for each in samples_read for sample in each["samples"]]
    assert samples
    assert all(len(queued) == 1 and queued[0] >= 0 for _, queued in samples)
    assert sorted(samples) == samples, "in the order of time"
    with pytest.raises(FabricError, match="'h1>h9': no such link"):
        client.ask("queues", links=["h1>h9"], interval_s=0.01, duration_s=0.1)


def test_fault_flow_truth_and_clear(running):
    run(running, "fault", "blackhole h1>leaf1", "--for", "60s")
    assert "blackhole h1>leaf1 for 60s" in run(running, "show")
    flow = json.loads(run(running, "flow", "h1", "h3", "--rate", "5mbit", "--for", "300ms", "--json"))
    assert flow["loss"] == 1
    assert "cleared after" in run(running, "clear", "1")
    flow = json.loads(
        run(running, "flow", "h1", "h3", "--rate", "5mbit", "--for", "300ms", "--sport", "43210", "--json")
    )
    assert flow["loss"] == 0
    assert flow["sport"] == 43210
    proven = json.loads(
        run(running, "path", "h1", "h3", "--sport", "43210", "--dport", str(flow["dport"]), "--json")
    )
    assert proven == flow["path"]
    truth = json.loads(run(running, "truth", "--json"))
    assert truth["links"][proven[1]]["sent_packets"] >= flow["sent_packets"]
    assert [fault["text"] for fault in truth["faults"]] == ["blackhole h1>leaf1 for 60s"]
    assert proven[1] in run(running, "truth")
    assert "no fault in force" in run(running, "clear")
    tcp = run(running, "flow", "h1", "h3", "--rate", "0", "--tcp", "--for", "300ms")
    assert re.search(r"Mbit/s of payload in 0\.3 s, \d+ retransmits", tcp)


@pytest.mark.parametrize(
    ("arguments", "code", "error_text"),
    [
        (("fault", "grey 200% h1"), 1, "expected a loss of"),
        (("fault", "down nowhere"), 1, "target 'nowhere'"),
        (("clear", "99"), 1, "expected one in force"),
        (("flow", "h1", "h99"), 1, "NIC 'h99'"),
        (("flow", "h1", "h2", "--rate", "fast"), 2, "rate 'fast'"),
        (("flow", "h1", "h2", "--for", "soon"), 2, "duration 'soon'"),
        (("path", "h1", "h2", "--sport", "0", "--dport", "1"), 1, "sport 0"),
    ],
)
def test_an_impossible_request_is_one_line(running, arguments, code, error_text):
    output = run(running, *arguments, code=code)
    assert error_text in output
    assert output.count("\n") == 1


def test_garbage_is_answered_and_stops_nothing(running):
    client = ControlClient(socket_path(running))
    with pytest.raises(FabricError, match="expected a command of"):
        client.ask("reboot")
    with pytest.raises(FabricError, match="missing 'line'"):
        client.ask("fault")
    with pytest.raises(FabricError, match="unknown color"):
        client.ask("flow", source="h1", destination="h2", rate_bps=1_000_000, color="red")
    directory = os.open(running / "run", os.O_PATH)
    for garbage in (b"\n", b"{", b"[" * 5000 + b"\n", b"\xff\xfe\n", b"x" * 100_000):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"/proc/self/fd/{directory}/fabric.sock")
            sock.settimeout(10)
            try:
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
                answer = sock.recv(4096)
            except OSError:
                continue
            assert json.loads(answer)["ok"] is False
    os.close(directory)
    for request in (
        {"command": "flow", "source": "h1", "destination": "h2", "rate_bps": float("inf")},
        {"command": "flow", "source": "h1", "destination": "h2", "rate_bps": float("nan")},
        {"command": "flow", "source": ["h1"], "destination": {}, "rate_bps": -1},
        {"command": "path", "source": "h1", "destination": "h2", "sport": float("inf"), "dport": 1},
        {"command": "job", "hosts": ["h1", "h2"], "sports": [float("inf")]},
        {"command": "move", "spine": [], "other": None},
        {"command": ["show"]},
        {"command": "clear", "fault": {}},
    ):
        with pytest.raises(FabricError):
            client.ask(**request)
    assert client.ask("show")["nics"]


def test_a_second_up_on_the_same_directory_is_refused(running):
    second = start(running)
    _, err = second.communicate(timeout=30)
    assert second.returncode == 1
    assert "is running at" in err


def test_without_a_fabric_the_commands_are_refused(tmp_path):
    assert "no running fabric at" in run(tmp_path, "show", code=1)
    with pytest.raises(NoFabric):
        ControlClient(socket_path(tmp_path)).ask("show")


def test_a_socket_left_by_a_killed_owner_is_taken_over(denied, tmp_path):
    if denied is not None:
        pytest.skip(denied)
    first = start(tmp_path)
    assert first.stdout is not None
    while "Ctrl-C" not in first.stdout.readline():
        assert first.poll() is None
    first.kill()
    first.communicate()
    assert socket_path(tmp_path).exists()
    second = start(tmp_path)
    assert second.stdout is not None
    while "Ctrl-C" not in second.stdout.readline():
        assert second.poll() is None
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=20)
    assert second.returncode == 0
