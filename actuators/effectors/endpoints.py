"""Moves and paces flows through the programs that own them, over the control socket.

In: owners that connect and tell of their flows, commands. Out: one answer to each command, within a bounded
time: an owner that is slow, floods, or hangs up, holds up no other. A flow is the connection's that told of
it first; another program takes it over once that one has hung up. One thread, which the caller lends.
"""

from __future__ import annotations

import logging
import select
import selectors
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from actuators import endpoint_protocol
from actuators.applier import Answer
from actuators.owned_sockets import check_owner, leave, listen

__all__ = ["HostOwners", "Owners"]

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 8192
"""Taken of one owner before the next one's turn."""
_WAITING_BYTES: Final = 1 << 20
_CONNECTIONS: Final = 4096
_FLOWS: Final = 1_000_000
_WARNED_MOST: Final = 20
_FULL_NS: Final = 500_000_000
"""For which nobody is let in once no descriptor was left."""


class Hears(Protocol):
    """Who wants to know of the flows of a host."""

    def seen(self, key: str) -> None:
        """A flow is there, or has changed."""

    def gone(self, key: str) -> None:
        """A flow is no more."""


class _Refused(Exception):
    """What an owner says makes no sense here."""


@dataclass(slots=True)
class _Owner:
    connection: socket.socket
    process: int
    incoming: bytes = b""
    outgoing: bytearray = field(default_factory=bytearray)
    flows: set[tuple[str, str]] = field(default_factory=set)
    writing: bool = False


@dataclass(slots=True)
class _Owned:
    owner: _Owner
    port: int
    verbs: frozenset[str]


@dataclass(slots=True)
class _Ordered:
    """A command without an answer yet."""

    owner: _Owner
    flow: tuple[str, str]
    verb: str
    due_ns: int
    answer: Callable[[Answer], None] | None


class Owners:
    """All owners of this machine. Sockets are registered with `selector`; their data is what to call."""

    def __init__(
        self,
        path: Path,
        hosts: Sequence[str],
        selector: selectors.BaseSelector,
        clock_ns: Callable[[], int],
        answer_ns: int,
    ) -> None:
        """Listen at `path`. `answer_ns`: how long a command may take. Raises OSError."""
        self._path, self._hosts, self._selector = path, frozenset(hosts), selector
        self._only = hosts[0] if len(hosts) == 1 else None
        self._clock_ns, self._answer_ns = clock_ns, answer_ns
        self._owners: dict[int, _Owner] = {}
        self._flows: dict[tuple[str, str], _Owned] = {}
        self._counts = dict.fromkeys(hosts, 0)
        self._ordered: OrderedDict[int, _Ordered] = OrderedDict()
        self._hears: dict[str, Hears] = {}
        self._number = 0
        self.refused = 0
        """Lines that could not be read."""
        self.unanswered = 0
        self._full_until_ns: int | None = None
        self._listener = listen(path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def of(self, host: str) -> HostOwners:
        """Return the flows of one host."""
        return HostOwners(self, host)

    def tell(self, host: str, hears: Hears) -> None:
        """Tell of the flows of a host from now on."""
        self._hears[host] = hears

    @property
    def answer_s(self) -> float:
        """s that a command may take."""
        return self._answer_ns / 1e9

    @property
    def connected(self) -> int:
        """Owners that are connected."""
        return len(self._owners)

    def flows(self, host: str | None = None) -> int:
        """Return how many flows there are, in all or of one host."""
        return len(self._flows) if host is None else self._counts[host]

    def due_ns(self) -> int | None:
        """Return when the next command is to be answered at the latest; None: there is none."""
        return next((ordered.due_ns for ordered in self._ordered.values()), None)

    def tick(self) -> None:
        """Give up the commands whose time is over."""
        now_ns = self._clock_ns()
        if self._full_until_ns is not None and now_ns >= self._full_until_ns:
            self._full_until_ns = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while self._ordered:
            number, ordered = next(iter(self._ordered.items()))
            if ordered.due_ns > now_ns:
                return
            del self._ordered[number]
            self.unanswered += 1
            _answered(ordered, Answer(wrong=f"no answer within {self._answer_ns / 1e6:g} ms", unsure=True))

    def close(self) -> None:
        """Hang up and remove the socket."""
        for number in list(self._owners):
            self._drop(self._owners[number])
        if self._full_until_ns is None:
            self._selector.unregister(self._listener)
        leave(self._path, self._listener)

    # --- for the appliers ---

    def path_of(self, host: str, key: str) -> int | None:
        """Return a flow's source port, None where nobody has told of it."""
        owned = self._flows.get((host, key))
        return None if owned is None else owned.port

    def can(self, host: str, key: str) -> frozenset[str]:
        """Return what may be done to a flow."""
        owned = self._flows.get((host, key))
        return frozenset() if owned is None else owned.verbs

    def order(self, host: str, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Send a command; `answer` is called once."""
        owned = self._flows.get((host, key))
        if owned is None:
            answer(Answer(wrong="its owner is gone"))
            return
        self._number += 1
        due_ns = self._clock_ns() + self._answer_ns
        self._ordered[self._number] = _Ordered(owned.owner, (host, key), verb, due_ns, answer)
        self._send(owned.owner, endpoint_protocol.command(verb, self._number, key, value, host))

    # --- sockets ---

    def _accept(self, events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # it would wake us again at once, and who comes waits
            _log.warning("owner of flows not let in: %s", error.strerror)
            self._full_until_ns = self._clock_ns() + _FULL_NS
            self._selector.unregister(self._listener)
            return
        try:
            check_owner(connection)
            if len(self._owners) >= _CONNECTIONS:
                raise PermissionError(f"{_CONNECTIONS} owners are connected already")
        except PermissionError as error:
            _log.warning("owner of flows refused: %s", error)
            connection.close()
            return
        connection.setblocking(False)
        owner = _Owner(connection, _process(connection))
        self._owners[connection.fileno()] = owner
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, owner))

    def _serve(self, owner: _Owner, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(owner)
        if events & selectors.EVENT_READ and owner.connection.fileno() >= 0:
            self._read(owner)

    def _read(self, owner: _Owner) -> None:
        try:
            data = owner.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, owner.incoming = (owner.incoming + data).split(b"\n")
        for line in lines:
            self._line(owner, line)
            if owner.connection.fileno() < 0:
                return
        if len(owner.incoming) > endpoint_protocol.LINE_BYTES:
            self._refuse(owner, f"a line above {endpoint_protocol.LINE_BYTES} bytes")
            data = b""
        if not data:
            self._drop(owner)

    def _line(self, owner: _Owner, line: bytes) -> None:
        try:
            said = endpoint_protocol.parse(line)
        except ValueError as error:
            self._refuse(owner, str(error))
            return
        try:
            match said:
                case endpoint_protocol.Flow():
                    self._take_flow(owner, said, self._host(said.host))
                case endpoint_protocol.Gone():
                    self._take_gone(owner, (self._host(said.host), said.key))
                case endpoint_protocol.Done() | endpoint_protocol.Failed():
                    self._take_answer(owner, said)
        except _Refused as error:
            self._refuse(owner, str(error))

    def _host(self, host: str | None) -> str:
        found = host or self._only
        if found is None:
            raise _Refused(f"no host is named, expected one of {len(self._hosts)}")
        if found not in self._hosts:
            raise _Refused(f"host {found}: not served here")
        return found

    def _take_flow(self, owner: _Owner, said: endpoint_protocol.Flow, host: str) -> None:
        flow = (host, said.key)
        before = self._flows.get(flow)
        if before is None and len(self._flows) >= _FLOWS:
            raise _Refused(f"{_FLOWS} flows are known already")
        if before is not None and before.owner is not owner:
            if before.owner.process != owner.process and not _hung_up(before.owner.connection):
                raise _Refused(f"{said.key}: another program's, which is still here")
            before.owner.flows.discard(flow)  # its program connected anew before we saw that it hung up
        self._counts[host] += before is None
        self._flows[flow] = _Owned(owner, said.port, said.verbs)
        owner.flows.add(flow)
        if host in self._hears:
            self._hears[host].seen(said.key)

    def _take_gone(self, owner: _Owner, flow: tuple[str, str]) -> None:
        if flow not in owner.flows:
            return
        self._lose(owner, flow)
        self._fail(lambda ordered: ordered.flow == flow, "the flow ended")
        if flow[0] in self._hears:
            self._hears[flow[0]].gone(flow[1])

    def _take_answer(self, owner: _Owner, said: endpoint_protocol.Done | endpoint_protocol.Failed) -> None:
        ordered = self._ordered.get(said.number)
        if ordered is None or ordered.owner is not owner:
            return  # given up before: what it has now, its owner tells with the flow
        wrong = _impossible(ordered.verb, said)
        if wrong:
            self._refuse(owner, wrong)
            said = endpoint_protocol.Failed(said.number, wrong)
        self._ordered.pop(said.number, None)
        if isinstance(said, endpoint_protocol.Failed):
            _answered(ordered, Answer(wrong=said.text))
            return
        owned = self._flows.get(ordered.flow)
        if ordered.verb == "MOVE" and owned is not None:
            owned.port = said.value
        _answered(ordered, Answer(said.value, said.how))

    def _lose(self, owner: _Owner, flow: tuple[str, str]) -> None:
        owner.flows.discard(flow)
        if self._flows.pop(flow, None) is not None:
            self._counts[flow[0]] -= 1

    def _drop(self, owner: _Owner) -> None:
        """Forget an owner that hung up: its flows may go on, and come back with it."""
        if owner.connection.fileno() < 0:
            return
        self._owners.pop(owner.connection.fileno(), None)
        self._selector.unregister(owner.connection)
        owner.connection.close()
        for flow in list(owner.flows):
            self._lose(owner, flow)
        self._fail(lambda ordered: ordered.owner is owner, "its owner hung up")

    def _fail(self, which: Callable[[_Ordered], bool], wrong: str) -> None:
        for number in [number for number, ordered in self._ordered.items() if which(ordered)]:
            ordered = self._ordered.pop(number, None)
            if ordered is not None:
                _answered(ordered, Answer(wrong=wrong, unsure=True))

    def _refuse(self, owner: _Owner, reason: str) -> None:
        self.refused += 1
        if self.refused <= _WARNED_MOST:
            _log.warning("owner of flows: %s", reason)
        self._send(owner, f"ERROR {reason}\n".encode("ascii", "replace")[: endpoint_protocol.LINE_BYTES])

    def _send(self, owner: _Owner, data: bytes) -> None:
        if owner.connection.fileno() < 0:
            return
        owner.outgoing += data
        if len(owner.outgoing) > _WAITING_BYTES:  # it comes back, and then hears whole lines again
            _log.warning("owner of %d flows does not read what it is told", len(owner.flows))
            self._drop(owner)
        elif not owner.writing:
            self._flush(owner)

    def _flush(self, owner: _Owner) -> None:
        try:
            sent = owner.connection.send(owner.outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            owner.outgoing.clear()
            return  # the end of what it says tells us that it is gone
        del owner.outgoing[:sent]
        waiting = bool(owner.outgoing)
        if waiting != owner.writing:
            owner.writing = waiting
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
            self._selector.modify(owner.connection, events, partial(self._serve, owner))


@dataclass(frozen=True, slots=True)
class HostOwners:
    """The effector of one host."""

    owners: Owners
    host: str

    def path_of(self, key: str) -> int | None:
        """Return a flow's entropy value, None where there is no such open flow."""
        return self.owners.path_of(self.host, key)

    def can(self, key: str) -> frozenset[str]:
        """Return what its owner lets be done to a flow."""
        return self.owners.can(self.host, key)

    def order(self, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Let a flow go on from a source port (MOVE), or at a rate (PACE, bit/s; 0: let go)."""
        self.owners.order(self.host, key, verb, value, answer)


def _answered(ordered: _Ordered, answer: Answer) -> None:
    """Answer a command, once."""
    call, ordered.answer = ordered.answer, None
    if call is not None:
        call(answer)


def _impossible(verb: str, said: endpoint_protocol.Done | endpoint_protocol.Failed) -> str:
    """Return why an answer cannot be one to such a command, empty where it can."""
    if verb == "MOVE" and isinstance(said, endpoint_protocol.Done) and not 0 < said.value < 65_536:
        return f"DONE: source port {said.value}, expected 1 to 65535"
    return ""


def _process(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
    return int(struct.unpack("=iII", raw)[0])


def _hung_up(connection: socket.socket) -> bool:
    """Whether nobody is at the other end, whatever it said before."""
    waiting = select.poll()
    waiting.register(connection, 0)
    return bool(waiting.poll(0))
