"""A connection to an agent of this host: lines over a Unix socket that reconnects and never blocks."""

from __future__ import annotations

import os
import select
import socket
import struct
import time

__all__ = ["LINE_BYTES", "AgentConnection"]

LINE_BYTES = 512
_RETRY_S = 1.0
_UNSENT_BYTES = 1 << 20
_AT_ONCE_BYTES = 1 << 20


class AgentConnection:
    """One Unix socket that reconnects. Lines sent without a connection are dropped; the endpoint sends all
    again.
    """

    def __init__(self, path: str, epoll: select.epoll) -> None:
        self._path, self._epoll = path, epoll
        self._due = 0.0
        self._socket: socket.socket | None = None
        self._unsent, self._unread = b"", b""

    @property
    def connected(self) -> bool:
        """True while connected."""
        return self._socket is not None

    def open(self) -> bool:
        """Connect if it is time to. Return True if it has just connected."""
        now = time.monotonic()
        if self._socket is not None or now < self._due:
            return False
        self._due = now + _RETRY_S
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        directory = -1
        try:
            # Use the directory's descriptor: an address of a Unix socket holds 107 bytes.
            directory = os.open(os.path.dirname(self._path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            sock.connect("/proc/self/fd/%d/%s" % (directory, os.path.basename(self._path)))
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("=iII", peer)[1] not in (0, os.geteuid()):
                raise PermissionError("%s belongs to another user" % self._path)
            self._epoll.register(sock.fileno(), select.EPOLLIN)
        except OSError:  # missing, or not ours: try again later
            sock.close()
            return False
        finally:
            if directory >= 0:
                os.close(directory)
        self._socket = sock
        return True

    def send(self, line: str) -> None:
        """Send a line, or keep it until the socket takes it."""
        if self._socket is not None:
            self._unsent += line.encode("ascii", "backslashreplace") + b"\n"
            self.flush()

    def flush(self) -> None:
        """Send the lines that were kept."""
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
        """Return the complete lines that have arrived."""
        found: list[str] = []
        taken = 0
        while self._socket is not None and taken < _AT_ONCE_BYTES:  # more data will wake us again
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
            if len(self._unread) > 8 * LINE_BYTES:
                self.close()
        return found

    def close(self) -> None:
        """Close the connection; unsent lines are dropped."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unsent, self._unread = None, b"", b""
