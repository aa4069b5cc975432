"""Holds the socket of one host on which profilers pass their segments; see native/collectives/segment.h.

A connection belongs to one process and stays open. It ends when the process has ended or is about to pass
its segment again. A segment is identified by its inode, so that none is counted twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from native.collectives import SegmentError
from native.collectives.reader import Reader
from schemas.ipc import SocketFile, listen_for_packets, receive_descriptor
from schemas.socket_access import OWNER, SocketAccess

_log = logging.getLogger(__name__)

GREETING: Final = b"SEGMENT 1"
_PACKET_BYTES: Final = 64
_MAX_WARNINGS: Final = 20
_MAX_SILENT: Final = 256
"""Maximum number of a user's connections that have not passed a segment yet; further ones are refused."""
_DEAD_STATES: Final = "ZXx"


class ProcessId(NamedTuple):
    """Identifies a process: its pid, and its start time in clock ticks since boot, 0 if unknown."""

    pid: int
    ticks: int


class Passed(NamedTuple):
    """A segment that a process has passed. `inode` identifies it while the descriptor is open."""

    process: ProcessId
    inode: int
    reader: Reader
    user: int
    """User id of the process, by the kernel."""


class _Connection(NamedTuple):
    socket: socket.socket
    process: ProcessId
    user: int
    inode: int | None = None
    """Inode of the segment; None before it was passed."""


def socket_of(path: Path, host: str, hosts: int) -> Path:
    """Return the path of a host's socket: `path`, plus the host's name if `hosts` is more than one."""
    return path if hosts == 1 else path.with_name(f"{path.stem}-{host}{path.suffix}")


def process_id(pid: int) -> ProcessId:
    """Return the process id `pid` with the process's start time, 0 if unknown."""
    fields = _stat_of(pid)
    return ProcessId(pid, int(fields[19]) if fields is not None else 0)


def is_alive(process: ProcessId) -> bool:
    """Return whether a process runs. Process id 0, from another PID namespace, counts as running."""
    if process.pid == 0:
        return True
    fields = _stat_of(process.pid)
    return fields is not None and fields[0] not in _DEAD_STATES and process.ticks in (0, int(fields[19]))


def _stat_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the program's name; None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 and fields[19].isdecimal() else None


class Listener:
    """Listens at `path` and receives segments. Raises OSError if it cannot listen.

    `take` receives each segment and returns the reason to refuse it, or None to accept it. `lost` receives
    the inode of a segment whose connection has ended.
    """

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        max_segment_bytes: int,
        take: Callable[[Passed], str | None],
        lost: Callable[[int], None],
        access: SocketAccess = OWNER,
    ) -> None:
        self._path, self._selector, self._max_bytes = path, selector, max_segment_bytes
        self._take, self._lost = take, lost
        self._access = access
        self._file = SocketFile(path, partial(listen_for_packets, access=access))
        self._connections: dict[int, _Connection] = {}
        self.refused = 0
        """Number of connections and segments that were refused."""
        selector.register(self._file.socket, selectors.EVENT_READ, self._accept)

    def check(self, now_s: float) -> str | None:
        """Recreate the socket if its file was removed. Return one line of error if that fails, else None."""
        self._file.check(now_s, self._selector)
        return self._file.fault

    def close(self) -> None:
        """Close all connections and remove the socket's file."""
        for number in list(self._connections):
            self._drop(number)
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._file.socket)
        self._file.close()

    def _accept(self, number: int) -> None:
        try:
            connection, _ = self._file.socket.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError | ConnectionError):
                self._warn(error.strerror or str(error))
            return
        connection.setblocking(False)
        try:
            peer = self._access.check(connection)
            silent = sum(one.inode is None and one.user == peer.user for one in self._connections.values())
            if silent >= _MAX_SILENT:
                raise PermissionError(f"{_MAX_SILENT} connections have passed no segment")
        except OSError as error:
            self._answer(connection, error.strerror or str(error))
            connection.close()
            return
        self._connections[connection.fileno()] = _Connection(connection, process_id(peer.pid), peer.user)
        self._selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, number: int) -> None:
        peer_connection = self._connections[number]
        connection, inode = peer_connection.socket, peer_connection.inode
        try:
            packet = receive_descriptor(connection, _PACKET_BYTES)
        except BlockingIOError:
            return
        except ValueError as error:
            self._answer(connection, str(error))
            packet = None
        except OSError:
            packet = None
        if packet is None:
            self._drop(number)
            return
        text, descriptor = packet
        refusal = f"packet {text[:20]!r}: expected {GREETING.decode()} with a descriptor, once"
        if descriptor is not None:
            try:
                if text == GREETING and inode is None:
                    refusal, inode = self._open(peer_connection, descriptor)
            finally:
                os.close(descriptor)
        if refusal:
            self._answer(connection, refusal)
            self._drop(number)
            return
        self._connections[number] = peer_connection._replace(inode=inode)
        self._answer(connection, None)

    def _open(self, peer_connection: _Connection, descriptor: int) -> tuple[str, int | None]:
        """Pass a segment to `take`. Return the reason if it is refused, else "", and the segment's inode."""
        file_status = os.fstat(descriptor)
        if file_status.st_size > self._max_bytes:
            return f"segment: {file_status.st_size} bytes, expected at most {self._max_bytes}", None
        try:
            reader = Reader(descriptor)
        except (SegmentError, OSError) as error:
            return str(error), None
        refusal = self._take(
            Passed(peer_connection.process, file_status.st_ino, reader, peer_connection.user)
        )
        if refusal is not None:
            reader.close()
            return refusal, None
        return "", file_status.st_ino

    def _answer(self, connection: socket.socket, refusal: str | None) -> None:
        line = "OK" if refusal is None else f"ERROR {refusal}"
        if refusal is not None:
            self._warn(refusal)
        with contextlib.suppress(OSError):
            connection.send(line.encode()[:200])

    def _warn(self, reason: str) -> None:
        self.refused += 1
        if self.refused <= _MAX_WARNINGS:
            _log.warning("%s: refused: %s", self._path.name, reason)

    def _drop(self, number: int) -> None:
        peer_connection = self._connections.pop(number)
        self._selector.unregister(peer_connection.socket)
        peer_connection.socket.close()
        if peer_connection.inode is not None:
            self._lost(peer_connection.inode)
