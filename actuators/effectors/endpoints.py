"""Moves and paces flows through the programs that own them, over the control socket.

A flow endpoint connects, announces its flows, and receives commands for them. Each command gets one answer
within a bounded time, even if an endpoint is slow, floods the socket or hangs up. A flow belongs to the first
connection that announced it. Another program can take it over once that connection is closed. All work
happens in the caller's thread.
"""

from __future__ import annotations

import logging
import select
import selectors
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from actuators.effectors import endpoint_protocol
from actuators.effectors.base import Answer
from schemas.ipc import SocketFile, check_owner, listen

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 8192
"""Largest number of bytes read from one endpoint before the next one is served."""
_WAITING_BYTES: Final = 1 << 20
_CONNECTIONS: Final = 4096
_FLOWS: Final = 1_000_000
_MAX_WARNINGS: Final = 20
_FULL_NS: Final = 500_000_000
"""Pause before connections are accepted again after the process ran out of file descriptors."""


class FlowListener(Protocol):
    """Receives notice of appearing, changed and ended flows of a host."""

    def seen(self, key: str) -> None:
        """Handle a flow that appeared or changed."""

    def gone(self, key: str) -> None:
        """Handle a flow that ended."""


class _Refused(Exception):
    """Raised for a line from an endpoint that cannot be accepted."""


@dataclass(slots=True)
class _Endpoint:
    connection: socket.socket
    process: int
    incoming: bytes = b""
    outgoing: bytearray = field(default_factory=bytearray)
    flows: set[tuple[str, str]] = field(default_factory=set)
    writing: bool = False


@dataclass(slots=True)
class _EndpointFlow:
    endpoint: _Endpoint
    port: int
    verbs: frozenset[str]


@dataclass(slots=True)
class _PendingCommand:
    """A command that its endpoint has not answered yet, with the time limit for the answer."""

    endpoint: _Endpoint
    flow: tuple[str, str]
    verb: str
    due_ns: int
    answer: Callable[[Answer], None] | None


class FlowEndpoints:
    """All flow endpoints of this machine. Registers each socket with `selector`, with a callback as data."""

    def __init__(
        self,
        path: Path,
        hosts: Sequence[str],
        selector: selectors.BaseSelector,
        clock_ns: Callable[[], int],
        answer_ns: int,
        take_time: Callable[[int], None] | None = None,
    ) -> None:
        """Listen for endpoints at the socket `path`. Raises OSError.

        `answer_ns`: time limit for an answer. `take_time` receives the fabric time of simulated hosts; None
        if the hosts are real.
        """
        self._hosts, self._selector = frozenset(hosts), selector
        self._only = hosts[0] if len(hosts) == 1 else None
        self._clock_ns, self._answer_ns, self._take_time = clock_ns, answer_ns, take_time
        self._endpoints: dict[int, _Endpoint] = {}
        self._flows: dict[tuple[str, str], _EndpointFlow] = {}
        self._counts = dict.fromkeys(hosts, 0)
        self._pending: OrderedDict[int, _PendingCommand] = OrderedDict()
        self._listeners: dict[str, FlowListener] = {}
        self._number = 0
        self.refused = 0
        """Number of refused lines."""
        self.unanswered = 0
        self._full_until_ns: int | None = None
        self._file = SocketFile(path, listen)
        selector.register(self._file.socket, selectors.EVENT_READ, self._accept)

    def of(self, host: str) -> HostEndpoints:
        """Return the effector of one host."""
        return HostEndpoints(self, host)

    def set_listener(self, host: str, listener: FlowListener) -> None:
        """Notify `listener` of appearing, changed and ended flows of a host."""
        self._listeners[host] = listener

    @property
    def fault(self) -> str | None:
        """The reason why endpoints cannot reach the socket, in one line; None if they can."""
        return self._file.fault

    @property
    def answer_s(self) -> float:
        """Time limit for an endpoint's answer to a command, s."""
        return self._answer_ns / 1e9

    @property
    def connected(self) -> int:
        """The number of connected endpoints."""
        return len(self._endpoints)

    def flows(self, host: str | None = None) -> int:
        """Return the number of flows of `host`, or of all hosts."""
        return len(self._flows) if host is None else self._counts[host]

    def due_ns(self) -> int | None:
        """Return the earliest time limit of a pending command, ns; None if no command is pending."""
        return next((command.due_ns for command in self._pending.values()), None)

    def tick(self) -> None:
        """Give up the commands that exceeded their time limit, and recreate a removed socket file."""
        self._file.check(time.monotonic(), self._selector)
        now_ns = self._clock_ns()
        if self._full_until_ns is not None and now_ns >= self._full_until_ns:
            self._full_until_ns = None
            self._selector.register(self._file.socket, selectors.EVENT_READ, self._accept)
        while self._pending:
            number, command = next(iter(self._pending.items()))
            if command.due_ns > now_ns:
                return
            del self._pending[number]
            self.unanswered += 1
            _answer(command, Answer(error=f"no answer within {self._answer_ns / 1e6:g} ms", maybe_done=True))

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for number in list(self._endpoints):
            self._drop(self._endpoints[number])
        if self._full_until_ns is None:
            self._selector.unregister(self._file.socket)
        self._file.close()

    # --- for the appliers ---

    def path_of(self, host: str, key: str) -> int | None:
        """Return the source port of a flow; None if no endpoint announced it."""
        flow_entry = self._flows.get((host, key))
        return None if flow_entry is None else flow_entry.port

    def can(self, host: str, key: str) -> frozenset[str]:
        """Return the commands that a flow's endpoint supports."""
        flow_entry = self._flows.get((host, key))
        return frozenset() if flow_entry is None else flow_entry.verbs

    def execute(self, host: str, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Send a command to a flow's endpoint. `answer` is called exactly once, with the result."""
        flow_entry = self._flows.get((host, key))
        if flow_entry is None:
            answer(Answer(error="its endpoint is gone"))
            return
        self._number += 1
        due_ns = self._clock_ns() + self._answer_ns
        self._pending[self._number] = _PendingCommand(flow_entry.endpoint, (host, key), verb, due_ns, answer)
        self._send(flow_entry.endpoint, endpoint_protocol.command(verb, self._number, key, value, host))

    # --- sockets ---

    def _accept(self, events: int) -> None:
        try:
            connection, _ = self._file.socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except (
            OSError
        ) as error:  # the listener would wake us at once, and the connection waits in the backlog
            _log.warning("flow endpoint not accepted: %s", error.strerror)
            self._full_until_ns = self._clock_ns() + _FULL_NS
            self._selector.unregister(self._file.socket)
            return
        try:
            check_owner(connection)
            if len(self._endpoints) >= _CONNECTIONS:
                raise PermissionError(f"{_CONNECTIONS} flow endpoints are connected already")
        except PermissionError as error:
            _log.warning("flow endpoint refused: %s", error)
            connection.close()
            return
        connection.setblocking(False)
        endpoint = _Endpoint(connection, _process(connection))
        self._endpoints[connection.fileno()] = endpoint
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, endpoint))

    def _serve(self, endpoint: _Endpoint, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(endpoint)
        if events & selectors.EVENT_READ and endpoint.connection.fileno() >= 0:
            self._read(endpoint)

    def _read(self, endpoint: _Endpoint) -> None:
        try:
            data = endpoint.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, endpoint.incoming = (endpoint.incoming + data).split(b"\n")
        for line in lines:
            self._line(endpoint, line)
            if endpoint.connection.fileno() < 0:
                return
        if len(endpoint.incoming) > endpoint_protocol.LINE_BYTES:
            self._refuse(endpoint, f"a line above {endpoint_protocol.LINE_BYTES} bytes")
            data = b""
        if not data:
            self._drop(endpoint)

    def _line(self, endpoint: _Endpoint, line: bytes) -> None:
        try:
            message = endpoint_protocol.parse(line)
        except ValueError as error:
            self._refuse(endpoint, str(error))
            return
        try:
            match message:
                case endpoint_protocol.Flow():
                    self._take_flow(endpoint, message, self._host(message.host))
                case endpoint_protocol.Gone():
                    self._take_gone(endpoint, (self._host(message.host), message.key))
                case endpoint_protocol.Done() | endpoint_protocol.Failed():
                    self._take_answer(endpoint, message)
                case endpoint_protocol.Time():
                    if self._take_time is None:
                        raise _Refused("TIME: expected of a simulated fleet only")
                    self._take_time(message.now_ns)
        except _Refused as error:
            self._refuse(endpoint, str(error))

    def _host(self, host: str | None) -> str:
        host_name = host or self._only
        if host_name is None:
            raise _Refused(f"no host given, expected one of {len(self._hosts)}")
        if host_name not in self._hosts:
            raise _Refused(f"host {host_name}: not served here")
        return host_name

    def _take_flow(self, endpoint: _Endpoint, message: endpoint_protocol.Flow, host: str) -> None:
        flow = (host, message.key)
        before = self._flows.get(flow)
        if before is None and len(self._flows) >= _FLOWS:
            raise _Refused(f"{_FLOWS} flows are known already")
        if before is not None and before.endpoint is not endpoint:
            if before.endpoint.process != endpoint.process and not _has_hung_up(before.endpoint.connection):
                raise _Refused(f"{message.key}: belongs to another program that is still connected")
            before.endpoint.flows.discard(flow)  # its program reconnected before we noticed that it hung up
        self._counts[host] += before is None
        self._flows[flow] = _EndpointFlow(endpoint, message.port, message.verbs)
        endpoint.flows.add(flow)
        if host in self._listeners:
            self._listeners[host].seen(message.key)

    def _take_gone(self, endpoint: _Endpoint, flow: tuple[str, str]) -> None:
        if flow not in endpoint.flows:
            return
        self._lose(endpoint, flow)
        self._fail(lambda command: command.flow == flow, "the flow ended")
        if flow[0] in self._listeners:
            self._listeners[flow[0]].gone(flow[1])

    def _take_answer(
        self, endpoint: _Endpoint, message: endpoint_protocol.Done | endpoint_protocol.Failed
    ) -> None:
        command = self._pending.get(message.number)
        if command is None or command.endpoint is not endpoint:
            return  # given up before; the endpoint's next FLOW line has the present state
        error = _invalid_answer(command.verb, message)
        if error:
            self._refuse(endpoint, error)
            message = endpoint_protocol.Failed(message.number, error)
        self._pending.pop(message.number, None)
        if isinstance(message, endpoint_protocol.Failed):
            _answer(command, Answer(error=message.text))
            return
        flow_entry = self._flows.get(command.flow)
        if command.verb == "MOVE" and flow_entry is not None:
            flow_entry.port = message.value
        _answer(command, Answer(message.value, message.how))

    def _lose(self, endpoint: _Endpoint, flow: tuple[str, str]) -> None:
        endpoint.flows.discard(flow)
        if self._flows.pop(flow, None) is not None:
            self._counts[flow[0]] -= 1

    def _drop(self, endpoint: _Endpoint) -> None:
        """Remove an endpoint that hung up. Its flows may continue; a new connection announces them again."""
        if endpoint.connection.fileno() < 0:
            return
        self._endpoints.pop(endpoint.connection.fileno(), None)
        self._selector.unregister(endpoint.connection)
        endpoint.connection.close()
        for flow in list(endpoint.flows):
            self._lose(endpoint, flow)
        self._fail(lambda command: command.endpoint is endpoint, "its endpoint hung up")

    def _fail(self, which: Callable[[_PendingCommand], bool], error: str) -> None:
        for number in [number for number, command in self._pending.items() if which(command)]:
            command = self._pending.pop(number, None)
            if command is not None:
                _answer(command, Answer(error=error, maybe_done=True))

    def _refuse(self, endpoint: _Endpoint, reason: str) -> None:
        self.refused += 1
        if self.refused <= _MAX_WARNINGS:
            _log.warning("flow endpoint: %s", reason)
        self._send(endpoint, f"ERROR {reason}\n".encode("ascii", "replace")[: endpoint_protocol.LINE_BYTES])

    def _send(self, endpoint: _Endpoint, data: bytes) -> None:
        if endpoint.connection.fileno() < 0:
            return
        endpoint.outgoing += data
        if len(endpoint.outgoing) > _WAITING_BYTES:  # after it reconnects it gets whole lines again
            _log.warning("flow endpoint with %d flows does not read its commands", len(endpoint.flows))
            self._drop(endpoint)
        elif not endpoint.writing:
            self._flush(endpoint)

    def _flush(self, endpoint: _Endpoint) -> None:
        try:
            sent = endpoint.connection.send(endpoint.outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            endpoint.outgoing.clear()
            return  # the end of its input will show that it is gone
        del endpoint.outgoing[:sent]
        waiting = bool(endpoint.outgoing)
        if waiting != endpoint.writing:
            endpoint.writing = waiting
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
            self._selector.modify(endpoint.connection, events, partial(self._serve, endpoint))


@dataclass(frozen=True, slots=True)
class HostEndpoints:
    """The effector of one host: passes commands to the host's flow endpoints."""

    endpoints: FlowEndpoints
    host: str

    def path_of(self, key: str) -> int | None:
        """Return the flow's entropy value; None if no such flow is open."""
        return self.endpoints.path_of(self.host, key)

    def can(self, key: str) -> frozenset[str]:
        """Return the commands that the flow's endpoint supports."""
        return self.endpoints.can(self.host, key)

    def execute(self, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Move a flow to a source port (MOVE), or limit its rate (PACE; bit/s, 0 removes the limit)."""
        self.endpoints.execute(self.host, key, verb, value, answer)


def _answer(command: _PendingCommand, answer: Answer) -> None:
    """Pass an answer to a command's callback, unless the command already has one."""
    call, command.answer = command.answer, None
    if call is not None:
        call(answer)


def _invalid_answer(verb: str, message: endpoint_protocol.Done | endpoint_protocol.Failed) -> str:
    """Return why an answer does not fit its command; empty if it fits."""
    if verb == "MOVE" and isinstance(message, endpoint_protocol.Done) and not 0 < message.value < 65_536:
        return f"DONE: source port {message.value}, expected 1 to 65535"
    return ""


def _process(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
    return int(struct.unpack("=iII", raw)[0])


def _has_hung_up(connection: socket.socket) -> bool:
    """Return True if the other end has closed the connection, even if its data is still unread."""
    waiting = select.poll()
    waiting.register(connection, 0)
    return bool(waiting.poll(0))
