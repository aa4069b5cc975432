"""The flow endpoint of the simulated fleet: registers flows at the actuator, and moves and paces them.

It connects to the actuator's control socket, reconnects when needed, and then registers all flows again. It
runs in the simulation's own thread, between two ticks, and never blocks.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from pathlib import Path
from typing import Any, Final

from producers.sim.simulation import Simulation
from producers.sim.workload import SimFlow
from schemas.ipc import connect

__all__ = ["SimFlowEndpoint"]

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
_READ_BYTES: Final = 65_536
_LINE_BYTES: Final = 512
_VERBS: Final = "MOVE,PACE"


class SimFlowEndpoint:
    """All flows of a simulated fleet, at the actuator that listens at `path`."""

    def __init__(self, path: Path, run: Simulation) -> None:
        self._path, self._run = path, run
        self._connection: socket.socket | None = None
        self._retry_s = 0.0
        self._incoming = b""
        self._outgoing = bytearray()
        self._sent_ports: dict[str, int] = {}
        """Flow to the source port last sent."""
        self.carried_out = 0
        """Number of executed commands."""

    def serve(self) -> None:
        """Send changed flows and execute received commands."""
        if self._connection is None and not self._connect():
            return
        for flow in self._run.flow_news():
            self._send_flow(flow)
        self._flush()
        self._read()

    def wait(self, max_s: float) -> None:
        """Wait for a command for at most this time, and execute it."""
        if self._connection is None:
            time.sleep(max_s)
            return
        if select.select([self._connection], [], [], max_s)[0]:
            self._read()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._retry_s:
            return False
        self._retry_s = now_s + _RETRY_S
        try:
            self._connection = connect(self._path, 0)
        except OSError:
            return False
        self._incoming, self._sent_ports = b"", {}
        self._outgoing.clear()
        self._run.flow_news()
        for flow in self._run.flows():
            self._send_flow(flow)
        _log.info("actuator at %s: %d flows registered", self._path, len(self._sent_ports))
        return True

    def _send_flow(self, flow: SimFlow) -> None:
        host, _, key = _parts(flow)
        if not flow.opened:
            if self._sent_ports.pop(flow.flow_id, None) is not None:
                self._outgoing += f"GONE {key} {host}\n".encode("ascii")
        elif self._sent_ports.get(flow.flow_id) != flow.port:
            self._sent_ports[flow.flow_id] = flow.port
            self._outgoing += f"FLOW {key} {flow.port} {_VERBS} {host}\n".encode("ascii")

    def _flush(self) -> None:
        if self._connection is None or not self._outgoing:
            return
        try:
            del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            return
        except OSError:
            self._lost()

    def _read(self) -> None:
        if self._connection is None:
            return
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        for line in lines:
            self._do(line.decode("ascii", "replace"))
        if not data or len(self._incoming) > _LINE_BYTES:
            self._lost()
        else:
            self._flush()

    def _do(self, line: str) -> None:
        verb, *rest = line.split(" ")
        if (
            verb not in ("MOVE", "PACE")
            or len(rest) != 4
            or not (rest[0].isdecimal() and rest[2].isdecimal())
        ):
            _log.warning("actuator: %s", line[:200])
            return
        number, key, value, host = rest[0], rest[1], int(rest[2]), rest[3]
        try:
            flow = self._run.flow_of(host, key)
            if verb == "MOVE":
                self._run.set_flow_path(flow.flow_id, value)
                self._sent_ports[flow.flow_id] = value
            else:
                self._run.set_flow_rate(flow.flow_id, value or None)
        except ValueError as error:
            self._outgoing += f"FAILED {number} {error}"[: _LINE_BYTES - 1].encode("ascii", "replace") + b"\n"
            return
        self.carried_out += 1
        self._outgoing += f"DONE {number} {value} SIMULATED\n".encode("ascii")

    def _lost(self) -> None:
        self.close()
        self._retry_s = time.monotonic() + _RETRY_S


def _parts(flow: SimFlow) -> tuple[Any, ...]:
    """Return host, boot and key of a flow."""
    return tuple(flow.flow_id.split("/", 2))
