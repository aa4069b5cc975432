"""Starts one rank of an MPI job in the network namespace of its host; mpirun runs it once per rank.

The rank connects to mpirun over TCP on the loopback, which the namespace does not share. A relay listens at
mpirun's port inside the namespace and connects to mpirun outside. Each rank has a relay with a loopback
address of its own, so that several ranks can share a host and no rank depends on another's relay. The process
executes the program itself, so that signals and exit codes are the program's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

from fabrictime.testbed.processes.userns import in_netns, setns

_PR_SET_PDEATHSIG: Final = 1
_READ_BYTES: Final = 65_536
_RANKS_PER_BYTE: Final = 250
_URI: Final = re.compile(r"tcp4://127\.0\.0\.1:([0-9]+)")


def server_port(variables: dict[str, str]) -> int:
    """Return the port of mpirun's server, from a rank's environment variables. Raises ValueError."""
    for name, value in variables.items():
        if name.startswith("PMIX_SERVER_URI") and (address := _URI.search(value)):
            return int(address[1])
    raise ValueError("PMIX_SERVER_URI4: missing or not tcp4://127.0.0.1:PORT, expected a rank of Open MPI")


def relay_address(rank: int) -> str:
    """Return the loopback address of a rank's relay."""
    return f"127.1.{rank // _RANKS_PER_BYTE}.{rank % _RANKS_PER_BYTE + 1}"


def with_relay(variables: dict[str, str], address: str) -> dict[str, str]:
    """Return a rank's environment variables with the relay's address in place of mpirun's server."""
    return {
        name: _URI.sub(rf"tcp4://{address}:\1", value) if name.startswith("PMIX_SERVER_URI") else value
        for name, value in variables.items()
    }


def relay(listener: socket.socket, port: int) -> None:
    """Connect each client of `listener` to `port` on this process's loopback; run until the process ends."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for ready, _ in selector.select():
            if ready.data is None:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                selector.register(near, selectors.EVENT_READ, (near, far))
                selector.register(far, selectors.EVENT_READ, (far, near))
            elif not _pass_on(*ready.data):
                for end in ready.data:
                    selector.unregister(end)
                    end.close()
                break  # the other end may be among those that are ready


def _pass_on(source: socket.socket, target: socket.socket) -> bool:
    """Forward waiting bytes; return False at the end of the connection."""
    with suppress(OSError):
        if data := source.recv(_READ_BYTES):
            target.sendall(data)
            return True
    return False


def main() -> None:
    """Enter the network namespace of this rank's host and execute its program."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    row, address = json.loads(sys.argv[1])[rank], relay_address(rank)
    port = server_port(dict(os.environ))
    listener = in_netns(row["netns"], lambda: socket.create_server((address, port)))
    program_pid = os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for descriptor in (0, 1, 2):  # mpirun waits for the end of these
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        if os.getppid() == program_pid:
            relay(listener, port)
        os._exit(0)
    listener.close()
    setns(row["netns"])
    variables = with_relay(dict(os.environ), address) | row["variables"]
    os.execvpe(sys.argv[2], sys.argv[2:], variables)  # noqa: S606  # no shell is meant


if __name__ == "__main__":
    main()
