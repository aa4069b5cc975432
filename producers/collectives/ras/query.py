"""Queries NCCL's RAS service on this host over TCP.

The service answers lines that set protocol, time limit and format. Then it sends the report until it closes
the connection. NCCL before 2.28.7 has no JSON and answers with an error; the report is then text.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from producers.collectives.ras.parse import MAX_BYTES
from producers.netns import in_netns
from schemas.ipc import read_line

_TIMEOUT_S: Final = 5
"""Time that NCCL's processes have to answer each other, s."""
_LINE_S: Final = 2.0
_LINE_BYTES: Final = 256
_READ_BYTES: Final = 1 << 16


def is_own_address(address: str, netns: str | None) -> bool:
    """Return whether a socket can bind to an IP address in a network namespace of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def bound() -> bool:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.bind((address, 0))
        except OSError:
            return False
        return True

    return in_netns(netns, bound)


def query_ras(address: str, port: int, netns: str | None) -> bytes:
    """Query the RAS service at an address and return its report. Raises OSError, or ValueError if another
    service answers.
    """
    connection = in_netns(netns, lambda: socket.create_connection((address, port), _LINE_S))
    with connection:
        _ask(connection, "CLIENT PROTOCOL 2", "SERVER PROTOCOL ")
        _ask(connection, f"TIMEOUT {_TIMEOUT_S}", "OK")
        connection.sendall(b"SET FORMAT json\n")
        read_line(connection, _LINE_BYTES, _LINE_S)  # an error means text
        connection.sendall(b"VERBOSE STATUS\n")
        return _report(connection)


def _ask(connection: socket.socket, line: str, expected: str) -> None:
    connection.sendall(line.encode() + b"\n")
    answer = read_line(connection, _LINE_BYTES, _LINE_S).decode("utf-8", "replace")
    if not answer.upper().startswith(expected):
        raise ValueError(f"RAS service: answer {answer[:60]!r} to {line!r}, expected {expected.strip()!r}")


def _report(connection: socket.socket) -> bytes:
    """Receive and return a report, until the service closes the connection or the time limit ends."""
    parts: list[bytes] = []
    size = 0
    until_s = time.monotonic() + _TIMEOUT_S + _LINE_S
    while size < MAX_BYTES and (left_s := until_s - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            data = connection.recv(_READ_BYTES)
        except TimeoutError:
            break
        if not data:
            break
        parts.append(data)
        size += len(data)
    return b"".join(parts)
