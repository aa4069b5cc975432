"""The start of one rank: mpirun's port, and the relay to it."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from fabrictime.testbed.jobs.mpi_rank import relay, relay_address, server_port, with_relay


def test_the_port_of_mpirun_is_in_the_environment() -> None:
    assert server_port({"PMIX_SERVER_URI4": "7.0;tcp4://127.0.0.1:45845", "PMIX_RANK": "0"}) == 45845


def test_each_rank_reaches_mpirun_at_an_address_of_its_own() -> None:
    addresses = [relay_address(rank) for rank in range(1000)]
    assert len(set(addresses)) == 1000
    variables = {"PMIX_SERVER_URI41": "7.0;tcp4://127.0.0.1:4711", "HOME": "/root"}
    assert with_relay(variables, addresses[3]) == {
        "PMIX_SERVER_URI41": "7.0;tcp4://127.1.0.4:4711",
        "HOME": "/root",
    }


def test_a_program_that_mpirun_did_not_start_is_refused() -> None:
    with pytest.raises(ValueError, match=r"PMIX_SERVER_URI4: missing or not tcp4://127\.0\.0\.1:PORT"):
        server_port({"PMIX_RANK": "0"})


def test_the_relay_passes_bytes_on_and_ends_connections() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    listener = socket.create_server(("127.0.0.1", 0))
    server.settimeout(10)
    child = os.fork()
    if child == 0:
        relay(listener, server.getsockname()[1])
    try:
        for _ in range(2):
            with socket.create_connection(listener.getsockname(), 10) as client:
                far, _ = server.accept()
                with far:
                    client.sendall(b"to mpirun")
                    assert far.recv(100) == b"to mpirun"
                    far.sendall(b"to the rank")
                    assert client.recv(100) == b"to the rank"
                assert client.recv(100) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        server.close()
        listener.close()
