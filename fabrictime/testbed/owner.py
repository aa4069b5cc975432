"""The flow endpoint: registers a program's flows that may be moved and paced, and receives commands for them.

The endpoint reports each flow as a line of JSON to the flow reporter. It sends `FLOW`, `GONE`, `DONE` and
`FAILED` lines to the actuator and returns the actuator's lines as `Command`s. Both sockets may be missing or
appear later. The endpoint then reconnects and sends everything again; no flow ever waits for a socket.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from schemas.ipc import connect

__all__ = ["Command", "OwnedFlow", "Owner", "cookie_of", "parse_command"]

_SO_COOKIE: Final = 57
_RETRY_NS: Final = 500_000_000
_LINE_BYTES: Final = 512
_UNSENT_BYTES: Final = 4 << 20
_REFUSALS: Final = 16


@dataclass(slots=True)
class OwnedFlow:
    """One flow. `key` names it for good: `sock:` and the cookie of the first socket that carried it."""

    key: str
    host: str
    protocol: Literal["tcp", "udp"]
    source_address: str
    source_port: int
    peer_address: str
    peer_port: int
    can: tuple[str, ...] = ()
    job: str | None = None
    tenant: str | None = None
    sent_bytes: int | None = None
    rate_limit_bps: int | None = None

    def registration(self, at_ns: int) -> dict[str, Any]:
        """Return the entry for the flow reporter; `at_ns` of CLOCK_MONOTONIC."""
        lines: dict[str, Any] = {
            "protocol": self.protocol,
            "source_address": self.source_address,
            "source_port": self.source_port,
            "peer_address": self.peer_address,
            "peer_port": self.peer_port,
            "job": self.job,
            "tenant": self.tenant,
            "flow": self.key,
            "can": list(self.can),
        }
        if self.protocol == "udp":
            lines |= {
                "cookie": int(self.key.removeprefix("sock:")),
                "sent_bytes": self.sent_bytes or 0,
                "at_ns": at_ns,
                "rate_limit_bps": self.rate_limit_bps,
            }
        return lines


@dataclass(frozen=True, slots=True)
class Command:
    """A command: MOVE to source port `value`, or PACE to `value` bit/s (0: unlimited).

    `number` None: the sender is not the actuator and gets no answer.
    """

    verb: Literal["MOVE", "PACE"]
    number: int | None
    flow: OwnedFlow
    value: int


def cookie_of(sock: socket.socket) -> int:
    """Return the number that the kernel gave to a socket."""
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8), "little")


def parse_command(line: bytes, flows: dict[tuple[str, str], OwnedFlow]) -> Command:
    """Parse a line from the actuator. Raises ValueError with one line."""
    text = line.decode("ascii", "replace").split(" ")
    if len(text) not in (4, 5) or text[0] not in ("MOVE", "PACE"):
        raise ValueError(f"{text[0][:20]!r} of {len(text)} words: expected MOVE or PACE, id, key and value")
    verb, number, key, value = text[:4]
    if not (number.isdigit() and value.isdigit() and len(number) < 20 and len(value) < 17):
        raise ValueError(f"{verb} {number[:20]!r} {value[:20]!r}: expected whole numbers")
    flow = flows.get((text[4], key)) if len(text) == 5 else None
    if flow is None:
        flow = next((found for (_, known), found in flows.items() if known == key), None)
    if flow is None:
        raise LookupError(number)
    return Command("MOVE" if verb == "MOVE" else "PACE", int(number), flow, int(value))


class _Wire:
    """One Unix socket that is connected again where it was lost. Lines out, lines in, never a wait."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._due_ns = 0
        self._unsent = bytearray()
        self._unread = b""
        self.socket: socket.socket | None = None

    def open(self, now_ns: int) -> bool:
        """Connect where it is time to; returns whether it is connected newly."""
        if self._path is None or self.socket is not None or now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _RETRY_NS
        try:
            self.socket = connect(self._path, 0)
        except OSError:  # not there (yet): looked for again
            return False
        return True

    def send_line(self, line: bytes) -> None:
        """Send a line, or keep it until the socket takes it; dropped where there is no connection, since
        all is said again on the next one.
        """
        if self.socket is None:
            return
        self._unsent += line + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what was kept."""
        if self.socket is None or not self._unsent:
            return
        try:
            del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > _UNSENT_BYTES:
                self.close()
        except OSError:
            self.close()

    def lines(self) -> list[bytes]:
        """Return the whole lines that have come in."""
        found: list[bytes] = []
        while self.socket is not None:
            try:
                data = self.socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            *lines, self._unread = (self._unread + data).split(b"\n")
            found += lines
            if len(self._unread) > 16 * _LINE_BYTES:
                self.close()
        return found

    def close(self) -> None:
        """Hang up."""
        if self.socket is not None:
            self.socket.close()
        self.socket, self._unread = None, b""
        self._unsent.clear()


class Owner:
    """All flows of one program. Call `tend` every few ms, and whenever one of `sockets` is readable."""

    def __init__(self, registrations: Path | None, control: Path | None) -> None:
        self._reporter, self._actuator = _Wire(registrations), _Wire(control)
        self._flows: dict[tuple[str, str], OwnedFlow] = {}
        self.refused: list[str] = []
        """The first lines that the reporter or the actuator refused."""

    def add(self, flow: OwnedFlow) -> None:
        """Add a flow, or report that it has changed."""
        self._flows[flow.host, flow.key] = flow
        self.count(flow)
        self._actuator.send_line(_flow_line(flow))

    def count(self, flow: OwnedFlow) -> None:
        """Tell the flow reporter alone: what a UDP flow has sent."""
        self._reporter.send_line(json.dumps(flow.registration(time.monotonic_ns())).encode())

    def drop(self, flow: OwnedFlow) -> None:
        """Say that a flow is no more."""
        if self._flows.pop((flow.host, flow.key), None) is not None:
            self._actuator.send_line(f"GONE {flow.key} {flow.host}".encode())

    def sockets(self) -> list[socket.socket]:
        """Return the sockets that are connected now."""
        return [wire.socket for wire in (self._reporter, self._actuator) if wire.socket is not None]

    def tend(self) -> list[Command]:
        """Connect, exchange all lines that are due, and return the commands for this program."""
        now_ns = time.monotonic_ns()
        if self._reporter.open(now_ns):
            for flow in self._flows.values():
                self.count(flow)
        if self._actuator.open(now_ns):
            for flow in self._flows.values():
                self._actuator.send_line(_flow_line(flow))
        self._reporter.flush()
        self._actuator.flush()
        self._note(line.decode("utf-8", "replace") for line in self._reporter.lines())
        return list(self._commands())

    def done(self, command: Command, value: int, how: str) -> None:
        """Say that a command is carried out: the port or bit/s in force now, and by which means."""
        if command.number is not None:
            self._actuator.send_line(f"DONE {command.number} {value} {how}".encode())

    def failed(self, command: Command, reason: str) -> None:
        """Say that a command was not carried out; the flow goes on as it was."""
        if command.number is not None:
            text = " ".join(reason.split())[:400]
            self._actuator.send_line(f"FAILED {command.number} {text}".encode("ascii", "backslashreplace"))

    def close(self) -> None:
        """Take leave of both."""
        for flow in list(self._flows.values()):
            self.drop(flow)
        self._reporter.close()
        self._actuator.close()

    def _commands(self) -> Iterable[Command]:
        for line in self._actuator.lines():
            if line.startswith(b"ERROR"):
                self._note([line.decode("utf-8", "replace")])
                continue
            try:
                command = parse_command(line, self._flows)
            except LookupError as unknown:
                self._actuator.send_line(f"FAILED {unknown.args[0]} no such flow here".encode())
                continue
            except ValueError as error:
                self._actuator.send_line(f"ERROR {error}".encode()[:_LINE_BYTES])
                continue
            if command.verb not in command.flow.can:
                self.failed(command, f"{command.flow.key} does not {command.verb.lower()}")
            else:
                yield command

    def _note(self, refusals: Iterable[str]) -> None:
        self.refused = (self.refused + [text[:200] for text in refusals])[:_REFUSALS]


def _flow_line(flow: OwnedFlow) -> bytes:
    return f"FLOW {flow.key} {flow.source_port} {','.join(flow.can) or '-'} {flow.host}".encode()
