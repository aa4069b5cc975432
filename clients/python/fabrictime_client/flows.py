"""Flow endpoint: registers a program's flows, and lets the actuator move and pace them.

It uses two Unix sockets of this host's agents, which may be missing, late, or restart. Each flow is
registered with the flow reporter, and the actuator's commands become calls of the program's functions. No
call blocks. Watch `fileno()` for reading; call `poll()` whenever it is readable, and once a second.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from typing import Any, Callable, Mapping, Optional

from fabrictime_client._connection import AgentConnection
from fabrictime_client.control import Command, ControlConnection

__all__ = ["Flow", "FlowEndpoint", "default_sockets", "pace_tcp"]

_SO_COOKIE = 57
_SO_MAX_PACING_RATE = 47

Move = Callable[[int], Optional[int]]
Pace = Callable[[int], Optional[int]]


def default_sockets() -> tuple[str, str]:
    """Return the paths of the flow reporter's and the actuator's sockets.

    They are `$FABRICTIME_FLOWS` and `$FABRICTIME_CONTROL`, else `flows.sock` and `control.sock` in
    `$XDG_RUNTIME_DIR/fabrictime` or `/run/fabrictime`.
    """
    base = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/run", "fabrictime")
    return (
        os.environ.get("FABRICTIME_FLOWS") or os.path.join(base, "flows.sock"),
        os.environ.get("FABRICTIME_CONTROL") or os.path.join(base, "control.sock"),
    )


def pace_tcp(sock: socket.socket, rate_bps: int) -> int:
    """Make the kernel limit a TCP socket to `rate_bps`, or remove the limit if 0; return the limit, bit/s."""
    rate = max(1, rate_bps // 8) if rate_bps else 2**64 - 1
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", rate))
    return rate_bps


class Flow:
    """One flow, returned by `FlowEndpoint.add`. `key` identifies the flow even if its socket changes."""

    def __init__(
        self,
        endpoint: FlowEndpoint,
        sock: socket.socket,
        registration: Mapping[str, str | None],
        move: Move | None,
        pace: Pace | None,
        host: str | None,
    ) -> None:
        self._endpoint, self.host = endpoint, host
        self._registration_fields: dict[str, Any] = dict(registration)
        self._move, self._pace = move, pace
        self._pending: dict[str, int] = {}
        self._cookie = _cookie(sock)
        self._udp = registration["protocol"] == "udp"
        self._sent = 0
        self._limit: int | None = None
        self.key = "sock:%d" % self._cookie
        self._socket(sock)

    @property
    def source_port(self) -> int:
        """The present source port of the flow's socket."""
        return int(self._registration_fields["source_port"])

    @property
    def verbs(self) -> list[str]:
        """The commands that this flow supports."""
        return [name for name, call in (("MOVE", self._move), ("PACE", self._pace)) if call is not None]

    def moved(self, sock: socket.socket) -> None:
        """Report that another socket now carries the flow; this answers a pending MOVE."""
        self._socket(sock)
        self._endpoint._changed(self)
        self._answer("MOVE", self.source_port, "SOCKET")

    def paced(self, rate_bps: int) -> None:
        """Report the rate limit in force, bit/s (0: none); this answers a pending PACE."""
        self._limit = rate_bps or None
        self._endpoint._changed(self)
        self._answer("PACE", rate_bps, "PACING")

    def failed(self, verb: str, reason: str) -> None:
        """Report that a pending MOVE or PACE failed, with the reason."""
        if verb in self._pending:
            self._endpoint._control.failed(self._pending.pop(verb), reason)

    def sent(self, frame_bytes: int) -> None:
        """Report how many frame bytes a UDP flow has sent since it began; the kernel does not count them.

        Calls ten times a second are enough.
        """
        self._sent = frame_bytes
        self._endpoint._changed(self)

    def _socket(self, sock: socket.socket) -> None:
        source, peer = sock.getsockname(), sock.getpeername()
        self._registration_fields.update(
            source_address=source[0], source_port=source[1], peer_address=peer[0], peer_port=peer[1]
        )

    def _answer(self, verb: str, value: int, how: str) -> None:
        if verb in self._pending:
            self._endpoint._control.done(self._pending.pop(verb), value, how)

    def _execute(self, command: Command) -> None:
        """Execute a command by a call of the program's function. An exception counts as a failure."""
        verb = command.verb
        call = self._move if verb == "MOVE" else self._pace
        self.failed(verb, "superseded by %d" % command.number)
        self._pending[verb] = command.number
        if call is None:
            self.failed(verb, "%s does not %s" % (self.key, verb.lower()))
            return
        try:
            done = call(command.value)
        except Exception as error:  # noqa: BLE001  # the program's own, told to the actuator
            self.failed(verb, getattr(error, "strerror", None) or str(error) or type(error).__name__)
            return
        if done is None:
            return
        if verb == "PACE":
            self.paced(done)
        else:
            self._registration_fields["source_port"] = done
            self._endpoint._changed(self)
            self._answer(verb, done, "SOCKET")

    def _registration(self) -> str:
        registration = dict(self._registration_fields, flow=self.key, can=self.verbs)
        if self._udp:
            registration.update(cookie=self._cookie, sent_bytes=self._sent, at_ns=time.monotonic_ns())
            if self._limit is not None:
                registration["rate_limit_bps"] = self._limit
        return json.dumps(registration)


class FlowEndpoint:
    """All flows of a program. `host` is needed only if one actuator serves several hosts. Not thread-safe.

    `flows` and `control` are the paths of the two sockets: None uses `default_sockets`, an empty path no
    socket.
    """

    def __init__(self, flows: str | None = None, control: str | None = None, host: str | None = None) -> None:
        sockets = default_sockets()
        self._host = host
        self._epoll = select.epoll()
        self._flows: dict[str, Flow] = {}
        self._reporter = AgentConnection(sockets[0] if flows is None else flows, self._epoll)
        self._control = ControlConnection(sockets[1] if control is None else control, self._epoll)

    @property
    def refused(self) -> list[str]:
        """The latest messages by which the agents refused lines."""
        return self._reporter.refused + self._control.refused

    def add(
        self,
        sock: socket.socket,
        *,
        job: str | None = None,
        tenant: str | None = None,
        move: Move | None = None,
        pace: Pace | None = None,
        host: str | None = None,
    ) -> Flow:
        """Add a connected TCP or UDP socket and return its flow; `host` overrides the endpoint's host.

        `move(port)` must change the source port. It returns the new source port, or None if `Flow.moved` or
        `Flow.failed` will be called later; an exception is a refusal. `pace(rate)` must limit the rate, bit/s
        (0: no limit). It returns the actual limit, or None if `Flow.paced` will be called later.
        """
        protocol = "udp" if sock.type & 0xF == socket.SOCK_DGRAM else "tcp"
        flow = Flow(
            self, sock, {"protocol": protocol, "job": job, "tenant": tenant}, move, pace, host or self._host
        )
        self._flows[flow.key] = flow
        self._changed(flow)
        return flow

    def remove(self, flow: Flow) -> None:
        """Report the end of a flow."""
        if self._flows.pop(flow.key, None) is not None:
            self._reporter.withdraw(flow.key)
            self._control.retire(flow.key, flow.host)

    def fileno(self) -> int:
        """Return a file descriptor that is readable when `poll` has work."""
        return self._epoll.fileno()

    def poll(self) -> int:
        """Connect, send and receive, and call `move` and `pace` for commands. Return the number of calls."""
        self._reporter.note_refusals(self._reporter.exchange())
        called = 0
        for command in self._control.commands():
            flow = self._flows.get(command.key)
            if flow is None:
                self._control.failed(command.number, "no such flow here")
            else:
                called += 1
                flow._execute(command)
        return called

    def close(self) -> None:
        """Close both connections. The flows themselves belong to the program."""
        for flow in list(self._flows.values()):
            self.remove(flow)
        self._reporter.close()
        self._control.close()
        self._epoll.close()

    def __enter__(self) -> FlowEndpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _changed(self, flow: Flow) -> None:
        if flow.key in self._flows:
            self._reporter.publish(flow.key, flow._registration())
            self._reporter.flush()
            self._control.announce(flow.key, flow.source_port, flow.verbs, flow.host)
            self._control.flush()


def _cookie(sock: socket.socket) -> int:
    return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))[0])
