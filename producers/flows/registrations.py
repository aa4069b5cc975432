"""Receives the registrations of flows from the programs that own them, over a Unix socket for its owner only.

Each line is a JSON object for one flow. Required are `protocol` (tcp, udp, roce), `source_address`,
`source_port`, `peer_address` and `peer_port`. Optional are `job`, `tenant`, `cookie` (SO_COOKIE), `flow` and
`can` (supported actions: MOVE, PACE). For UDP and RoCE, `sent_bytes` (frame bytes since it began) and `at_ns`
(CLOCK_MONOTONIC) are required, and `rate_limit_bps` is optional. A flow stays registered until its connection
ends. An invalid line is answered with `{"error": "one line"}`.

`flow` is a permanent name: the queue pair for RoCE, otherwise "sock:" and the cookie of the first socket. A
moved flow is registered again with its new ports and the same name, which replaces its former registration.
So a program that moves flows sends `cookie` or `flow` from the first line on. `sent_bytes` continues to grow.
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
from functools import partial
from pathlib import Path
from typing import Any, Final

from native.collectives.labels import printable
from producers.flows.intervals import Key, Registration
from schemas.ipc import SocketFile, listen
from schemas.socket_access import OWNER, SocketAccess, owned_name

_log = logging.getLogger(__name__)

_LINE_BYTES: Final = 4096
_READ_BYTES: Final = 65_536
"""Maximum bytes that are read from one program before the next one is served."""
_FULL_S: Final = 0.5
"""Time after which connections are accepted again if the process ran out of descriptors."""
_MAX_WARNINGS: Final = 20
_CONNECTIONS: Final = 4096
_FLOWS: Final = 65_536
_COUNT_MAX: Final = 2**62
_ACTIONS: Final = ("MOVE", "PACE")
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
    """Parse one line: return the flow's key and its registration. Raises ValueError with one line of text."""
    try:
        registration = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        raise ValueError(f"line {line[:60]!r}: expected one JSON object") from None
    if not isinstance(registration, dict):
        raise ValueError(f"line {line[:60]!r}: expected one JSON object")
    if unknown := set(registration) - _FIELDS:
        raise ValueError(f"{repr(min(unknown))[1:-1]:.60}: unknown, expected {', '.join(sorted(_FIELDS))}")
    protocol = registration.get("protocol")
    if protocol not in ("tcp", "udp", "roce"):
        raise ValueError(f"protocol {protocol!r}: expected tcp, udp or roce")
    flow = _flow_name(registration, protocol)
    if _closed(registration, protocol):
        return ("ROCE", "", 0, "", 0), Registration(flow=flow, closed=True)
    key = (
        protocol.upper(),
        _address(registration, "source_address"),
        _whole(registration, "source_port", 1, 65535),
        _address(registration, "peer_address"),
        _whole(registration, "peer_port", 1, 65535),
    )
    result = Registration(
        _name(registration, "job"), _name(registration, "tenant"), flow=flow, can=_actions(registration)
    )
    if protocol == "udp" or registration.get("cookie") is not None:
        result.cookie = _whole(registration, "cookie", 1, 2**64 - 1)
    if protocol != "tcp":
        result.sent_bytes = _whole(registration, "sent_bytes", 0, _COUNT_MAX)
        result.at_ns = _whole(registration, "at_ns", 0, _COUNT_MAX)
        if registration.get("rate_limit_bps") is not None:
            result.rate_limit_bps = _whole(registration, "rate_limit_bps", 0, _COUNT_MAX)
    return key, result


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    user: int
    waiting: bytes = b""
    keys: set[Key] = field(default_factory=set)
    queue_pairs: set[str] = field(default_factory=set)


class Registrations:
    """Receives programs' registrations of flows at the Unix socket `path`, in the caller's thread.

    `is_own_address` returns True for an address of this reporter's NICs.
    """

    def __init__(
        self, path: Path, is_own_address: Callable[[str], bool], access: SocketAccess = OWNER
    ) -> None:
        self._nic_by_address = is_own_address
        self._clients: dict[int, _Client] = {}
        self._ended_keys: set[Key] = set()
        self._full_until_s: float | None = None
        self.refused = 0
        """Number of refused lines and programs."""
        self._owner: dict[Key, int] = {}
        self._key_of: dict[tuple[str, str], Key] = {}
        """Ports of a flow's last registration, by its source address and name."""
        self.changes = 0
        """Counter that grows with each flow that is registered for the first time or with other ports."""
        self._ended_pairs: set[str] = set()
        self._pair_owner: dict[str, int] = {}
        self.flows: dict[Key, Registration] = {}
        self.queue_pairs: dict[str, tuple[Key, Registration]] = {}
        """Queue pairs by name, because several may share ports."""
        self._access = access
        self._file = SocketFile(path, partial(listen, access=access))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._file.socket, selectors.EVENT_READ)

    def sweep(self) -> None:
        """Drop the flows of connections that ended before the last `serve`; call after a read of counters."""
        for key in self._ended_keys:
            self._forget(key)
        self._ended_keys.clear()
        for name in self._ended_pairs:
            self.queue_pairs.pop(name, None)
            self._pair_owner.pop(name, None)
        self._ended_pairs.clear()

    def check(self) -> str | None:
        """Recreate the socket if its file was removed. Return one line of error if that fails, else None."""
        self._file.check(time.monotonic(), self._selector)
        return self._file.fault

    def _forget(self, key: Key) -> None:
        registration = self.flows.pop(key, None)
        self._owner.pop(key, None)
        if (
            registration is not None
            and registration.name is not None
            and self._key_of.get((key[1], registration.name)) == key
        ):
            del self._key_of[key[1], registration.name]

    def serve(self, until_s: float) -> None:
        """Receive registrations until `until_s`, in seconds of the monotonic clock."""
        while True:
            left_s = until_s - time.monotonic()
            if self._full_until_s is not None and time.monotonic() >= self._full_until_s:
                self._full_until_s = None
                self._selector.register(self._file.socket, selectors.EVENT_READ)
            for ready, _ in self._selector.select(max(0.0, left_s)):
                if ready.fileobj is self._file.socket:
                    self._accept()
                else:
                    self._read(ready.fd)
            if left_s <= 0:
                return

    def close(self) -> None:
        """Close all connections and remove the socket's file."""
        for number in list(self._clients):
            self._drop(number)
        self._selector.close()
        self._file.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._file.socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # the listener would stay readable, so it is unregistered for a while
            self._warn(error.strerror or str(error))
            self._full_until_s = time.monotonic() + _FULL_S
            self._selector.unregister(self._file.socket)
            return
        try:
            connection.setblocking(False)
            user = self._access.check(connection).user
            if len(self._clients) >= _CONNECTIONS:
                raise PermissionError(f"{_CONNECTIONS} programs are connected already")
        except PermissionError as error:
            self._refuse(_Client(connection, 0), str(error))
            connection.close()
            return
        self._clients[connection.fileno()] = _Client(connection, user)
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
            key, registration = parse_registration(line)
            if registration.job is not None:
                registration.job = owned_name(registration.job, client.user)
            if key[0] == "ROCE":
                self._pair(number, client, key, registration)
                return
            self._flow(number, client, key, registration)
        except ValueError as error:
            self._refuse(client, str(error))

    def _flow(self, number: int, client: _Client, key: Key, registration: Registration) -> None:
        """Store the registration of a flow over IP. Raises ValueError if it is refused."""
        self._check_capacity(key, key in self.flows)
        if self._is_anothers(key, number):
            raise ValueError(f"{key[0]} {key[1]}:{key[2]}: registered by another program already")
        former = key if registration.name is None else self._key_of.get((key[1], registration.name), key)
        if self._is_anothers(former, number):
            raise ValueError(f"flow {registration.name}: registered by another program already")
        before = self.flows.get(former)
        if before is not None and before.name == registration.name:
            _check_count(before, registration)
        if former != key:
            self._forget(former)
            client.keys.discard(former)
        self._ended_keys -= {key, former}
        self.changes += key not in self.flows
        self.flows[key], self._owner[key] = registration, number
        if registration.name is not None:
            self._key_of[key[1], registration.name] = key
        client.keys.add(key)

    def _pair(self, number: int, client: _Client, key: Key, registration: Registration) -> None:
        """Store the registration of a queue pair, or remove an ended one. Raises ValueError if refused."""
        name = registration.name or ""
        owner = self._pair_owner.get(name, number)
        if owner != number and name not in self._ended_pairs:
            raise ValueError(f"{name}: registered by another program already")
        if registration.closed:
            if name in self.queue_pairs:
                self._ended_pairs.add(name)
                client.queue_pairs.discard(name)
            return
        self._check_capacity(key, name in self.queue_pairs)
        before = self.queue_pairs.get(name)
        if before is not None:
            _check_count(before[1], registration)
        self._ended_pairs.discard(name)
        self.changes += before is None or before[0] != key
        self.queue_pairs[name], self._pair_owner[name] = (key, registration), number
        client.queue_pairs.add(name)

    def _is_anothers(self, key: Key, number: int) -> bool:
        """Return whether another program's connection has registered a flow with these ports."""
        return self._owner.get(key, number) != number and key not in self._ended_keys

    def _check_capacity(self, key: Key, is_known: bool) -> None:
        """Raise ValueError if the source is not a NIC of this host, or if too many flows are registered."""
        if not self._nic_by_address(key[1]):
            raise ValueError(f"source_address {key[1]}: no NIC of this host")
        if len(self.flows) + len(self.queue_pairs) >= _FLOWS and not is_known:
            raise ValueError(f"{_FLOWS} flows are registered already")

    def _warn(self, reason: str) -> None:
        self.refused += 1
        if self.refused <= _MAX_WARNINGS:
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
        self._ended_keys |= {key for key in client.keys if self._owner.get(key) == number}
        self._ended_pairs |= {name for name in client.queue_pairs if self._pair_owner.get(name) == number}


def _whole(registration: dict[str, Any], name: str, minimum: int, maximum: int) -> int:
    value = registration.get(name)
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{name} {value!r}: expected a whole number from {minimum} to {maximum}")
    return value


def _name(registration: dict[str, Any], name: str) -> str | None:
    value = registration.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= 128:
        raise ValueError(f"{name} {value!r}: expected 1 to 128 characters")
    return printable(value.encode("utf-8", "surrogateescape"))


def _flow_name(registration: dict[str, Any], protocol: str) -> str | None:
    value = registration.get("flow")
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


def _closed(registration: dict[str, Any], protocol: str) -> bool:
    value = registration.get("closed", False)
    if type(value) is not bool or (value and protocol != "roce"):
        raise ValueError(f"closed {value!r}: expected true or false, true of roce alone")
    return value


def _actions(registration: dict[str, Any]) -> tuple[str, ...]:
    value = registration.get("can")
    if value is None:
        return ()
    if not isinstance(value, list) or any(verb not in _ACTIONS for verb in value):
        raise ValueError(f"can {value!r}: expected a list out of {', '.join(_ACTIONS)}")
    return tuple(verb for verb in _ACTIONS if verb in value)


def _address(registration: dict[str, Any], name: str) -> str:
    value = registration.get(name)
    try:
        if not isinstance(value, str) or "%" in value:  # a zone is local to the host
            raise ValueError
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f"{name} {value!r}: expected an IPv4 or IPv6 address") from None


def _check_count(before: Registration, registration: Registration) -> None:
    """Raise ValueError if a flow's byte count is lower than in its earlier registration."""
    counted = before.sent_bytes or 0
    if (registration.sent_bytes or 0) < counted:
        raise ValueError(f"sent_bytes {registration.sent_bytes}: expected {counted} or more")
