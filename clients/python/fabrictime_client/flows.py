"""Say whose a program's flows are, and let them be moved and paced.

In: sockets, and two Unix sockets of this host's agents (both may be missing, late, or go and come back). Out:
each flow registered with the flow reporter, and the actuator's wishes as calls of the program's own
functions. Nothing here blocks or starts a thread: watch `fileno()` for reading, and call `poll()` then and
once a second.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from typing import Any, Callable, Optional

__all__ = ["Flow", "FlowOwner", "default_sockets", "pace_tcp"]

_SO_COOKIE = 57
_SO_MAX_PACING_RATE = 47
_RETRY_S = 1.0
_LINE_BYTES = 512
_UNSENT_BYTES = 1 << 20
_AT_ONCE_BYTES = 1 << 20

Move = Callable[[int], Optional[int]]
Pace = Callable[[int], Optional[int]]


def default_sockets() -> tuple[str, str]:
    """Return where the flow reporter and the actuator listen: `$FABRICTIME_FLOWS` and `$FABRICTIME_CONTROL`,
    else `flows.sock` and `control.sock` in `$XDG_RUNTIME_DIR/fabrictime` or `/run/fabrictime`.
    """
    base = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/run", "fabrictime")
    return (
        os.environ.get("FABRICTIME_FLOWS") or os.path.join(base, "flows.sock"),
        os.environ.get("FABRICTIME_CONTROL") or os.path.join(base, "control.sock"),
    )


def pace_tcp(sock: socket.socket, rate_bps: int) -> int:
    """Have the kernel send at most so many bit/s on a TCP socket, 0: as fast as it goes. Returns them."""
    rate = max(1, rate_bps // 8) if rate_bps else 2**64 - 1
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", rate))
    return rate_bps


class Flow:
    """One flow, made by `FlowOwner.add`. `key` names it for good, whatever sockets carry it."""

    def __init__(
        self,
        owner: FlowOwner,
        sock: socket.socket,
        said: dict[str, Any],
        move: Move | None,
        pace: Pace | None,
    ) -> None:
        self._owner = owner
        self._said = said
        self._move, self._pace = move, pace
        self._asked: dict[str, tuple[int, int]] = {}
        self._cookie = _cookie(sock)
        self._udp = said["protocol"] == "udp"
        self._sent = 0
        self._limit: int | None = None
        self.key = "sock:%d" % self._cookie
        self._socket(sock)

    @property
    def source_port(self) -> int:
        """The source port of the socket that carries the flow now."""
        return int(self._said["source_port"])

    @property
    def verbs(self) -> list[str]:
        """What this flow can be told."""
        return [name for name, call in (("MOVE", self._move), ("PACE", self._pace)) if call is not None]

    def moved(self, sock: socket.socket) -> None:
        """Say that another socket carries the flow now; answers a MOVE that is open."""
        self._socket(sock)
        self._owner._changed(self)
        self._answer("MOVE", self.source_port, "SOCKET")

    def paced(self, rate_bps: int) -> None:
        """Say which limit is in force, bit/s, 0: none; answers a PACE that is open."""
        self._limit = rate_bps or None
        self._owner._changed(self)
        self._answer("PACE", rate_bps, "PACING")

    def failed(self, verb: str, reason: str) -> None:
        """Say that an open MOVE or PACE came to nothing, and why."""
        if verb in self._asked:
            number, _ = self._asked.pop(verb)
            self._owner._control.say("FAILED %d %s" % (number, " ".join(str(reason).split())[:400]))

    def sent(self, frame_bytes: int) -> None:
        """Say what a UDP flow has sent since it began, bytes of frames: the kernel does not count it. Ten
        times a second is enough.
        """
        self._sent = frame_bytes
        self._owner._register(self)

    def _socket(self, sock: socket.socket) -> None:
        source, peer = sock.getsockname(), sock.getpeername()
        self._said.update(
            source_address=source[0], source_port=source[1], peer_address=peer[0], peer_port=peer[1]
        )

    def _answer(self, verb: str, value: int, how: str) -> None:
        if verb in self._asked:
            number, _ = self._asked.pop(verb)
            self._owner._control.say("DONE %d %d %s" % (number, value, how))

    def _obey(self, verb: str, number: int, value: int) -> None:
        """Call the program's function; what it raises is the answer."""
        call = self._move if verb == "MOVE" else self._pace
        self.failed(verb, "superseded by %d" % number)
        self._asked[verb] = number, value
        if call is None:
            self.failed(verb, "%s does not %s" % (self.key, verb.lower()))
            return
        try:
            done = call(value)
        except Exception as error:  # noqa: BLE001  # the program's own, told to the actuator
            self.failed(verb, str(error) or type(error).__name__)
            return
        if done is None:
            return
        if verb == "PACE":
            self.paced(done)
        else:
            self._said["source_port"] = done
            self._owner._changed(self)
            self._answer(verb, done, "SOCKET")

    def _registration(self) -> str:
        said = dict(self._said, flow=self.key, can=self.verbs)
        if self._udp:
            said.update(cookie=self._cookie, sent_bytes=self._sent, at_ns=time.monotonic_ns())
            if self._limit is not None:
                said["rate_limit_bps"] = self._limit
        return json.dumps(said)


class FlowOwner:
    """All flows of a program. `host`: needed only where one actuator serves several hosts. Not
    thread-safe."""

    def __init__(self, flows: str | None = None, control: str | None = None, host: str | None = None) -> None:
        found = default_sockets()
        self._host = host
        self._epoll = select.epoll()
        self._flows: dict[str, Flow] = {}
        self._reporter = _Wire(flows or found[0], self._epoll)
        self._control = _Wire(control or found[1], self._epoll)
        self.refused: list[str] = []
        """What the agents refused, the last lines."""

    def add(
        self,
        sock: socket.socket,
        *,
        job: str | None = None,
        tenant: str | None = None,
        move: Move | None = None,
        pace: Pace | None = None,
    ) -> Flow:
        """Take in a connected TCP or UDP socket and return its flow.

        `move(port)`: have the flow go on from another source port; return the port in force, or None and call
        `Flow.moved` or `Flow.failed` later; what it raises is a refusal. `pace(bit/s)`: send at most so fast,
        0: as fast as it goes; return the limit in force, or None and call `Flow.paced` later.
        """
        protocol = "udp" if sock.type & 0xF == socket.SOCK_DGRAM else "tcp"
        flow = Flow(self, sock, {"protocol": protocol, "job": job, "tenant": tenant}, move, pace)
        self._flows[flow.key] = flow
        self._changed(flow)
        return flow

    def remove(self, flow: Flow) -> None:
        """Say that a flow is no more."""
        if self._flows.pop(flow.key, None) is not None:
            self._control.say("GONE %s%s" % (flow.key, self._suffix()))

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do."""
        return self._epoll.fileno()

    def poll(self) -> int:
        """Connect, say and hear what is due, call `move` and `pace`; returns how many were called."""
        if self._reporter.open():
            for flow in self._flows.values():
                self._register(flow)
        if self._control.open():
            for flow in self._flows.values():
                self._control.say(self._line(flow))
        for wire in (self._reporter, self._control):
            wire.flush()
        self.refused += self._reporter.lines()
        called = 0
        for line in self._control.lines():
            words = line.split(" ")
            if words[0] == "ERROR":
                self.refused.append(line[:_LINE_BYTES])
                continue
            if (
                len(words) not in (4, 5)
                or words[0] not in ("MOVE", "PACE")
                or not (_number(words[1]) and _number(words[3]))
            ):
                self._control.say("ERROR expected MOVE or PACE, id, key and value, not %s" % line[:80])
                continue
            named = self._flows.get(words[2])
            if named is None:
                self._control.say("FAILED %s no such flow here" % words[1])
                continue
            if words[0] == "MOVE" and not 0 < int(words[3]) < 65536:
                self._control.say("FAILED %s source port %s: expected 1 to 65535" % (words[1], words[3]))
                continue
            called += 1
            named._obey(words[0], int(words[1]), int(words[3]))
        del self.refused[:-16]
        return called

    def close(self) -> None:
        """Take leave of both agents. The flows themselves are the program's."""
        for flow in list(self._flows.values()):
            self.remove(flow)
        self._reporter.close()
        self._control.close()
        self._epoll.close()

    def __enter__(self) -> FlowOwner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _changed(self, flow: Flow) -> None:
        if flow.key in self._flows:
            self._register(flow)
            self._control.say(self._line(flow))

    def _register(self, flow: Flow) -> None:
        self._reporter.say(flow._registration())

    def _line(self, flow: Flow) -> str:
        return "FLOW %s %d %s%s" % (flow.key, flow.source_port, ",".join(flow.verbs) or "-", self._suffix())

    def _suffix(self) -> str:
        return "" if self._host is None else " " + self._host


class _Wire:
    """One Unix socket, found again where it was lost. What is said without one is said again by the owner."""

    def __init__(self, path: str, epoll: select.epoll) -> None:
        self._path, self._epoll = path, epoll
        self._due = 0.0
        self._socket: socket.socket | None = None
        self._unsent, self._unread = b"", b""

    def open(self) -> bool:
        """Connect where it is time to; returns whether it is connected newly."""
        now = time.monotonic()
        if self._socket is not None or now < self._due:
            return False
        self._due = now + _RETRY_S
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        directory = -1
        try:
            # By the directory's descriptor: an address of a Unix socket holds 107 bytes.
            directory = os.open(os.path.dirname(self._path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            sock.connect("/proc/self/fd/%d/%s" % (directory, os.path.basename(self._path)))
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("=iII", peer)[1] not in (0, os.geteuid()):
                raise PermissionError("%s is another user's" % self._path)
            self._epoll.register(sock.fileno(), select.EPOLLIN)
        except OSError:  # not there, or not ours: looked for again
            sock.close()
            return False
        finally:
            if directory >= 0:
                os.close(directory)
        self._socket = sock
        return True

    def say(self, line: str) -> None:
        if self._socket is not None:
            self._unsent += line.encode("ascii", "backslashreplace") + b"\n"
            self.flush()

    def flush(self) -> None:
        if self._socket is None or not self._unsent:
            return
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            if len(self._unsent) > _UNSENT_BYTES:
                self.close()
        except OSError:
            self.close()

    def lines(self) -> list[str]:
        found: list[str] = []
        taken = 0
        while self._socket is not None and taken < _AT_ONCE_BYTES:  # more of it wakes us again
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            taken += len(data)
            parts = (self._unread + data).split(b"\n")
            self._unread = parts.pop()
            found += [part.decode("ascii", "replace") for part in parts]
            if len(self._unread) > 8 * _LINE_BYTES:
                self.close()
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unsent, self._unread = None, b"", b""


def _number(text: str) -> bool:
    return text.isdigit() and len(text) <= 19


def _cookie(sock: socket.socket) -> int:
    return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))[0])
