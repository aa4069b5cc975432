"""Flow endpoints in C and in Python: their lines, and the commands that they carry out."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.ipc import listen

HERE = Path(__file__).parent
WAIT_S = 20.0


class Agent:
    """A listening agent that exchanges lines."""

    def __init__(self, path):
        self._path = path
        self._socket = listen(path, blocking=True)
        self._socket.settimeout(WAIT_S)

    def accept(self):
        self._connection, _ = self._socket.accept()
        self._connection.settimeout(WAIT_S)
        self._lines = self._connection.makefile("rb")

    def ask(self, line):
        self._connection.sendall(line.encode() + b"\n")

    def receive(self):
        return self._lines.readline().decode().rstrip("\n")

    def close(self):
        self._lines.close()
        self._connection.close()
        self._socket.close()
        self._path.unlink(missing_ok=True)


@pytest.fixture(params=["c", "python"])
def program(request, made, tmp_path):
    """The command of a program with one flow."""
    if request.param == "python":
        return [sys.executable, HERE / "endpoint.py"]
    compiler = request.getfixturevalue("compiler")
    subprocess.run(
        [
            compiler,
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsanitize=address,undefined",
            "-I",
            made.HEADER,
            HERE / "endpoint.c",
            "-o",
            tmp_path / "endpoint",
        ],
        check=True,
    )
    return [tmp_path / "endpoint"]


@pytest.fixture(params=["tcp", "udp"])
def peer(request):
    kind = socket.SOCK_STREAM if request.param == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        if request.param == "tcp":
            sock.listen()
        yield request.param, sock


def free_port(protocol):
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.mark.parametrize("directory", ["short", "d" * 120])
def test_a_program_registers_moves_paces_and_comes_back(program, peer, made, tmp_path, directory):
    protocol, sock = peer
    where = tmp_path / directory
    where.mkdir()
    reporter = Agent(where / "flows.sock")
    endpoint = subprocess.Popen(
        [
            *program,
            where / "flows.sock",
            where / "control.sock",
            "h1",
            "127.0.0.1",
            str(sock.getsockname()[1]),
            protocol,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(made.PYTHON_CLIENT)},
    )
    try:
        key, port = endpoint.stdout.readline().split()
        reporter.accept()
        message = json.loads(reporter.receive())
        assert message["protocol"] == protocol
        assert (message["source_address"], message["source_port"]) == ("127.0.0.1", int(port))
        assert (message["peer_address"], message["peer_port"]) == sock.getsockname()
        assert (message["job"], message["tenant"]) == ('train "7"', "blue")
        assert (message["flow"], message["can"]) == (key, ["MOVE", "PACE"])
        if protocol == "udp":
            assert (f"sock:{message['cookie']}", message["sent_bytes"]) == (key, 0)

        actuator = Agent(where / "control.sock")  # comes late
        actuator.accept()
        assert actuator.receive() == f"FLOW {key} {port} MOVE,PACE h1"
        to = free_port(protocol)
        actuator.ask(f"MOVE 5 {key} {to} h1")
        assert actuator.receive() == f"FLOW {key} {to} MOVE,PACE h1"
        assert actuator.receive() == f"DONE 5 {to} SOCKET"
        moved = json.loads(reporter.receive())
        assert (moved["flow"], moved["source_port"]) == (key, to)

        actuator.ask(f"MOVE 6 {key} {sock.getsockname()[1]} h1")  # the peer's own port: taken
        assert actuator.receive().startswith("FAILED 6 ")
        actuator.ask(f"MOVE 7 sock:1 {to} h1")
        assert actuator.receive() == "FAILED 7 no such flow here"
        for order in (
            "hello",
            "MOVE",
            f"MOVE 7 {key}",
            f"MOVE 7 {key} 4MOVE",
            f"MOVE -7 {key} {to}",
            f"PACE 7 {key} -1",
            f"MOVE 99999999999999999999 {key} {to}",
            f"PACE 7 {key} {'9' * 400}",
            f"move 7 {key} {to}",
        ):
            actuator.ask(order)
            assert actuator.receive().startswith("ERROR "), order
        actuator.ask("ERROR of the hand's own, which is no order\n\0\xff")
        assert actuator.receive().startswith("ERROR ")
        for order in (f"MOVE 7 {key} 0", f"MOVE 7 {key} 65536", f"MOVE 7 {key[:-1]} {to}"):
            actuator.ask(order)
            assert actuator.receive().startswith("FAILED 7 "), order
        actuator.ask(f"PACE 8 {key} 5000000 h1")
        heard = [actuator.receive()]
        while not heard[-1].startswith("DONE"):
            heard.append(actuator.receive())
        assert heard[-1] == "DONE 8 5000000 PACING"
        assert endpoint.stdout.readline() == f"pace {key} 5000000\n"

        actuator.close()
        actuator = Agent(where / "control.sock")  # and comes back
        actuator.accept()
        assert actuator.receive() == f"FLOW {key} {to} MOVE,PACE h1"
        endpoint.stdin.close()
        assert actuator.receive() == f"GONE {key} h1"
        assert endpoint.wait(WAIT_S) == 0
        actuator.close()
        reporter.close()
    finally:
        endpoint.kill()
        endpoint.wait()
        endpoint.stdout.close()
        endpoint.stdin.close()


@pytest.mark.parametrize("dialect", ["gnu11", "gnu17", "gnu++17"])
def test_flow_header_compiles_without_a_warning(made, compiler, tmp_path, dialect):
    source = """
#include "fabrictime_flow.h"
int main(void) {
  ft_endpoint endpoint;
  if (ft_endpoint_open(&endpoint, "/nowhere/flows", "/nowhere/control", NULL)) return 1;
  ft_endpoint_poll(&endpoint);
  ft_endpoint_close(&endpoint);
  return 0;
}
"""
    made.run_source(compiler, tmp_path, source, dialect)
