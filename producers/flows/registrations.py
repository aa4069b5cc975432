"""Where a program says whose its flows are, and counts those that the kernel does not.

In: an owner-only Unix socket; lines of JSON, each one flow: `protocol` (tcp, udp, roce), `source_address`,
`source_port`, `peer_address`, `peer_port`, as known `job`, `tenant`, `cookie` (SO_COOKIE), `flow`, `can` (of
MOVE and PACE: what may be done to it); not of TCP: `sent_bytes` (frames, since it began), `at_ns`
(CLOCK_MONOTONIC), as known `rate_limit_bps`. Out: `Registration`s by flow. A flow stands until its connection
ends; a line that cannot be is answered by `{"error": "one line"}`.

`flow` is a name for good: of RoCE its queue pair, else "sock:" and the cookie of the first socket. A flow
that moved is told with its new ports and that name, and its former line is let go of: so a program that moves
flows names `cookie` or `flow` from the first line on. `sent_bytes` goes on counting.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from producers.flows.intervals import Key, Registration
from schemas.ipc import check_owner, leave, listen

__all__ = ["Registrations", "parse_registration"]

_log = logging.getLogger(__name__)

_LINE_BYTES: Final = 4096
_READ_BYTES: Final = 65_536
"""Taken of one program before the next one's turn."""
_FULL_S: Final = 0.5
"""For which nobody is let in once no descriptor was left."""
_WARNED_MOST: Final = 20
_CONNECTIONS: Final = 4096
_FLOWS: Final = 65_536
_COUNT_MAX: Final = 2**62
_VERBS: Final = ("MOVE", "PACE")
_SOCKET: Final = re.compile(r"sock:[1-9][0-9]{0,19}")
_QUEUE_PAIR: Final = re.compile(r"qp:[!-.0-9;-~]{1,64}:[0-9]{1,10}:[0-9]{1,20}")
_FIELDS: Final = {
    "protocol",
    "source_address",
    "source_port",
    "peer_address",
    "peer_port",
    "job",
    "tenant",
    "cookie",
    "sent_bytes",
    "at_ns",
    "rate_limit_bps",
    "flow",
    "can",
    "closed",
}


def parse_registration(line: bytes) -> tuple[Key, Registration]:
    """Return the flow that a line names and what it says. Raises ValueError, one line."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"line {line[:60]!r}: expected one JSON object") from None
    if not isinstance(said, dict):
        raise ValueError(f"line {line[:60]!r}: expected one JSON object")
    if unknown := set(said) - _FIELDS:
        raise ValueError(f"{repr(min(unknown))[1:-1]:.60}: unknown, expected {', '.join(sorted(_FIELDS))}")
    protocol = said.get("protocol")
    if protocol not in ("tcp", "udp", "roce"):
        raise ValueError(f"protocol {protocol!r}: expected tcp, udp or roce")
    flow = _flow_name(said, protocol)
    if _closed(said, protocol):
        return ("ROCE", "", 0, "", 0), Registration(flow=flow, closed=True)
    key = (
        protocol.upper(),
        _address(said, "source_address"),
        _whole(said, "source_port", 1, 65535),
        _address(said, "peer_address"),
        _whole(said, "peer_port", 1, 65535),
    )
    found = Registration(_name(said, "job"), _name(said, "tenant"), flow=flow, can=_verbs(said))
    if protocol == "udp" or said.get("cookie") is not None:
        found.cookie = _whole(said, "cookie", 1, 2**64 - 1)
    if protocol != "tcp":
        found.sent_bytes = _whole(said, "sent_bytes", 0, _COUNT_MAX)
        found.at_ns = _whole(said, "at_ns", 0, _COUNT_MAX)
        if said.get("rate_limit_bps") is not None:
            found.rate_limit_bps = _whole(said, "rate_limit_bps", 0, _COUNT_MAX)
    return key, found


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    waiting: bytes = b""
    keys: set[Key] = field(default_factory=set)
    queue_pairs: set[str] = field(default_factory=set)


class Registrations:
    """Listens at `path`. `mine` says whether an address is a NIC's of this reporter. No thread of its own."""

    def __init__(self, path: Path, mine: Callable[[str], bool]) -> None:
        self._path, self._mine = path, mine
        self._clients: dict[int, _Client] = {}
        self._gone: set[Key] = set()
        self._full_until_s: float | None = None
        self.refused = 0
        """Lines and programs that were refused."""
        self._owner: dict[Key, int] = {}
        self._key_of: dict[tuple[str, str], Key] = {}
        """Source address and name of a flow to the ports that it was last registered with."""
        self.news = 0
        """Grows when a flow is registered that was not, or with other ports."""
        self._gone_pairs: set[str] = set()
        self._pair_owner: dict[str, int] = {}
        self.flows: dict[Key, Registration] = {}
        self.queue_pairs: dict[str, tuple[Key, Registration]] = {}
        """By name: their ports are not theirs alone."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listener = listen(path, blocking=True)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def sweep(self) -> None:
        """Let go of the flows whose connections had ended before the last `serve`: once their last counters
        were looked at."""
        for key in self._gone:
            self._forget(key)
        self._gone.clear()
        for name in self._gone_pairs:
            self.queue_pairs.pop(name, None)
            self._pair_owner.pop(name, None)
        self._gone_pairs.clear()

    def _forget(self, key: Key) -> None:
        said = self.flows.pop(key, None)
        self._owner.pop(key, None)
        if said is not None and said.name is not None and self._key_of.get((key[1], said.name)) == key:
            del self._key_of[key[1], said.name]

    def serve(self, until_s: float) -> None:
        """Take what programs say until the monotonic clock shows `until_s`."""
        while True:
            left_s = until_s - time.monotonic()
            if self._full_until_s is not None and time.monotonic() >= self._full_until_s:
                self._full_until_s = None
                self._selector.register(self._listener, selectors.EVENT_READ)
            for ready, _ in self._selector.select(max(0.0, left_s)):
                if ready.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(ready.fd)
            if left_s <= 0:
                return

    def close(self) -> None:
        """Hang up and remove the socket."""
        for number in list(self._clients):
            self._drop(number)
        self._selector.close()
        leave(self._path, self._listener)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # it would wake us again at once, and who comes waits
            self._warn(error.strerror or str(error))
            self._full_until_s = time.monotonic() + _FULL_S
            self._selector.unregister(self._listener)
            return
        try:
            check_owner(connection)
            if len(self._clients) >= _CONNECTIONS:
                raise PermissionError(f"{_CONNECTIONS} programs are connected already")
        except PermissionError as error:
            self._warn(str(error))
            connection.close()
            return
        connection.setblocking(False)
        self._clients[connection.fileno()] = _Client(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, number: int) -> None:
        client = self._clients[number]
        try:
            data = client.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, client.waiting = (client.waiting + data).split(b"\n")
        for line in lines:
            self._line(number, client, line)
        if len(client.waiting) > _LINE_BYTES:
            self._refuse(client, f"a line of {len(client.waiting)} bytes: expected at most {_LINE_BYTES}")
            data = b""
        if not data:
            self._drop(number)

    def _line(self, number: int, client: _Client, line: bytes) -> None:
        try:
            if len(line) > _LINE_BYTES:
                raise ValueError(f"a line of {len(line)} bytes: expected at most {_LINE_BYTES}")
            key, said = parse_registration(line)
            if key[0] == "ROCE":
                self._pair(number, client, key, said)
                return
            if not self._mine(key[1]):
                raise ValueError(f"source_address {key[1]}: no NIC of this host")
            if self._owner.get(key, number) != number and key not in self._gone:
                raise ValueError(f"{key[0]} {key[1]}:{key[2]}: registered by another program already")
            if len(self.flows) + len(self.queue_pairs) >= _FLOWS and key not in self.flows:
                raise ValueError(f"{_FLOWS} flows are registered already")
            former = self._key_of.get((key[1], said.name), key) if said.name is not None else key
            if self._owner.get(former, number) != number and former not in self._gone:
                raise ValueError(f"flow {said.name}: registered by another program already")
            before = self.flows.get(former)
            counted = None if before is None or before.name != said.name else before.sent_bytes
            if counted is not None and (said.sent_bytes or 0) < counted:
                raise ValueError(f"sent_bytes {said.sent_bytes}: it was {counted} already")
        except ValueError as error:
            self._refuse(client, str(error))
            return
        if former != key:
            self._forget(former)
            client.keys.discard(former)
        self._gone -= {key, former}
        self.news += key not in self.flows
        self.flows[key], self._owner[key] = said, number
        if said.name is not None:
            self._key_of[key[1], said.name] = key
        client.keys.add(key)

    def _pair(self, number: int, client: _Client, key: Key, said: Registration) -> None:
        """Take what is said of a queue pair. Raises ValueError."""
        name = said.name or ""
        owner = self._pair_owner.get(name, number)
        if owner != number and name not in self._gone_pairs:
            raise ValueError(f"{name}: registered by another program already")
        if said.closed:
            if name in self.queue_pairs:
                self._gone_pairs.add(name)
                client.queue_pairs.discard(name)
            return
        if not self._mine(key[1]):
            raise ValueError(f"source_address {key[1]}: no NIC of this host")
        if len(self.flows) + len(self.queue_pairs) >= _FLOWS and name not in self.queue_pairs:
            raise ValueError(f"{_FLOWS} flows are registered already")
        before = self.queue_pairs.get(name)
        counted = 0 if before is None else before[1].sent_bytes or 0
        if (said.sent_bytes or 0) < counted:
            raise ValueError(f"sent_bytes {said.sent_bytes}: it was {counted} already")
        self._gone_pairs.discard(name)
        self.news += before is None or before[0] != key
        self.queue_pairs[name], self._pair_owner[name] = (key, said), number
        client.queue_pairs.add(name)

    def _warn(self, reason: str) -> None:
        self.refused += 1
        if self.refused <= _WARNED_MOST:
            _log.warning("flow registration refused: %s", reason)

    def _refuse(self, client: _Client, reason: str) -> None:
        self._warn(reason)
        try:
            client.connection.send(json.dumps({"error": reason}).encode() + b"\n")
        except OSError:
            return

    def _drop(self, number: int) -> None:
        client = self._clients.pop(number)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._gone |= {key for key in client.keys if self._owner.get(key) == number}
        self._gone_pairs |= {name for name in client.queue_pairs if self._pair_owner.get(name) == number}


def _whole(said: dict[str, Any], name: str, least: int, most: int) -> int:
    value = said.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} {value!r}: expected a whole number from {least} to {most}")
    return value


def _name(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= 128 or not value.isprintable():
        raise ValueError(f"{name} {value!r}: expected 1 to 128 printable characters")
    return value


def _flow_name(said: dict[str, Any], protocol: str) -> str | None:
    value = said.get("flow")
    if value is None and protocol != "roce":
        return None
    form, text = (
        (_QUEUE_PAIR, "qp:<device>:<qpn>:<create count>")
        if protocol == "roce"
        else (_SOCKET, "sock:<cookie>")
    )
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"flow {value!r}: expected {text}")
    return value


def _closed(said: dict[str, Any], protocol: str) -> bool:
    value = said.get("closed", False)
    if type(value) is not bool or (value and protocol != "roce"):
        raise ValueError(f"closed {value!r}: expected true or false, true of roce alone")
    return value


def _verbs(said: dict[str, Any]) -> tuple[str, ...]:
    value = said.get("can")
    if value is None:
        return ()
    if not isinstance(value, list) or any(verb not in _VERBS for verb in value):
        raise ValueError(f"can {value!r}: expected a list out of {', '.join(_VERBS)}")
    return tuple(verb for verb in _VERBS if verb in value)


def _address(said: dict[str, Any], name: str) -> str:
    value = said.get(name)
    try:
        if not isinstance(value, str) or "%" in value:  # a zone is no part of what a fabric knows
            raise ValueError
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"{name} {value!r}: expected an IPv4 or IPv6 address") from None
