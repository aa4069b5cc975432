"""A connection to an agent of this host: lines over a Unix socket that reconnects and never blocks."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from itertools import islice

__all__ = ["LINE_BYTES", "AgentConnection"]

LINE_BYTES = 512
_RETRY_S = 0.5
_UNSENT_BYTES = 1 << 20
_AT_ONCE_BYTES = 1 << 20
_AT_ONCE_LINES = 256
_REFUSALS = 16


class AgentConnection:
    """A Unix socket to an agent that reconnects, and then publishes all subjects again.

    With an empty path it never connects.
    """

    def __init__(self, path: str, epoll: select.epoll) -> None:
        self._path, self._epoll = path, epoll
        self._retry_s = 0.0
        self._socket: socket.socket | None = None
        self._unsent, self._unread = bytearray(), b""
        self._latest: dict[str, str] = {}
        """Maps subject to its last line."""
        self._due: dict[str, None] = {}
        """The subjects whose last line was not yet sent. One line per subject bounds the memory."""
        self.refused: list[str] = []
        """The agent's latest messages that refuse lines of ours."""

    def publish(self, subject: str, line: str) -> None:
        """Send the state of a subject at the next `flush`, unless the agent already has this line."""
        if self._latest.get(subject) != line:
            self._latest[subject] = line
            self._due[subject] = None

    def withdraw(self, subject: str, line: str | None = None) -> None:
        """Forget a subject; send `line`, if given, as the last line about this subject."""
        if self._latest.pop(subject, None) is not None:
            self._due.pop(subject, None)
            if line is not None:
                self.send(line)

    def send(self, line: str) -> None:
        """Send a line, or buffer it until the socket accepts it. Without a connection the line is dropped."""
        self.flush()
        if self._socket is not None:
            self._unsent += _encode(line)
            self.flush()

    def flush(self) -> None:
        """Send the waiting lines, as far as the socket accepts them."""
        while self._socket is not None and (self._unsent or self._due):
            if not self._unsent:
                for subject in list(islice(self._due, _AT_ONCE_LINES)):
                    del self._due[subject]
                    self._unsent += _encode(self._latest[subject])
            try:
                del self._unsent[: self._socket.send(self._unsent, socket.MSG_NOSIGNAL)]
            except BlockingIOError:
                if len(self._unsent) > _UNSENT_BYTES:
                    self.close()
                return
            except OSError:
                self.close()

    def exchange(self) -> list[str]:
        """Connect if a new attempt is due, send the waiting lines, and return the lines that have arrived."""
        self._open()
        self.flush()
        lines: list[str] = []
        read_bytes = 0
        while self._socket is not None and read_bytes < _AT_ONCE_BYTES:  # more data will wake us again
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            read_bytes += len(data)
            parts = (self._unread + data).split(b"\n")
            self._unread = parts.pop()
            lines += [part.decode("ascii", "replace") for part in parts]
            if len(self._unread) > 8 * LINE_BYTES:
                self.close()
        return lines

    def note_refusals(self, lines: list[str]) -> None:
        """Append refusals to `refused`, which keeps only the latest ones."""
        self.refused = [*self.refused, *(line[:LINE_BYTES] for line in lines)][-_REFUSALS:]

    def close(self) -> None:
        """Close the connection; unsent lines are dropped."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unsent, self._unread = None, bytearray(), b""

    def _open(self) -> None:
        now_s = time.monotonic()
        if self._socket is not None or now_s < self._retry_s or not self._path:
            return
        self._retry_s = now_s + _RETRY_S
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
            return
        finally:
            if directory >= 0:
                os.close(directory)
        self._socket, self._due = sock, dict.fromkeys(self._latest)


def _encode(line: str) -> bytes:
    return line.encode("ascii", "backslashreplace") + b"\n"
