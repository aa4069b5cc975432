"""The RAS query against a service on the loopback that speaks NCCL's protocol."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from producers.collectives.ras.query import is_own_address, query_ras


@contextlib.contextmanager
def served(*answers: bytes, report: bytes) -> Iterator[int]:
    """A service that answers each line, and the last one with the report."""
    lines: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as file:
            for answer in (*answers, report):
                lines.append(file.readline())
                connection.sendall(answer)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


@pytest.mark.parametrize("third", [b"OK\n", b"ERROR: Unknown command\n"])
def test_a_report_is_read_to_its_end(third):
    with served(b"SERVER PROTOCOL 2\n", b"OK\n", third, report=b"x" * 200_000) as port:
        assert query_ras("127.0.0.1", port, None) == b"x" * 200_000


def test_another_service_is_refused():
    with (
        served(report=b"SSH-2.0-OpenSSH\n") as port,
        pytest.raises(ValueError, match="expected 'SERVER PROTOCOL'"),
    ):
        query_ras("127.0.0.1", port, None)


def test_no_service_is_an_error():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            query_ras("127.0.0.1", unused.getsockname()[1], None)


def test_addresses_of_other_hosts_are_known():
    assert is_own_address("127.0.0.1", None)
    assert not is_own_address("192.0.2.1", None)
    assert not is_own_address("not-an-address.invalid", None)
