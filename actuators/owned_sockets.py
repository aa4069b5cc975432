"""Unix sockets that only their owner's programs get through to: control of flows, words of probers.

In: a path. Out: a listening stream socket, or a bound datagram socket. An address of a Unix socket holds 107
bytes; paths here may be longer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["InUse", "check_owner", "listen", "receive_at", "received"]

_WAITING_MOST: Final = 128
_UCRED: Final = struct.Struct("=iII")


class InUse(OSError):
    """Somebody listens at the path already."""


def listen(path: Path) -> socket.socket:
    """Return a stream socket listening at `path`, non-blocking; one that was left behind is replaced.

    Raises InUse where one answers there, OSError where it cannot be made.
    """
    made = _bound(path, socket.SOCK_STREAM)
    made.listen(_WAITING_MOST)
    return made


def receive_at(path: Path, buffer_bytes: int) -> socket.socket:
    """Return a datagram socket bound at `path`, non-blocking, that says who sent. Raises as `listen` does."""
    made = _bound(path, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return made


def received(receiver: socket.socket, most_bytes: int) -> bytes | None:
    """Return the next datagram, None where there is none. Raises PermissionError for another user's,
    ValueError for one that is too long."""
    try:
        data, told, flags, _ = receiver.recvmsg(most_bytes, socket.CMSG_SPACE(_UCRED.size))
    except BlockingIOError:
        return None
    users = [
        _UCRED.unpack(raw)[1]
        for level, kind, raw in told
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(raw) == _UCRED.size
    ]
    if users != [os.geteuid()]:
        raise PermissionError(
            f"datagram of user {users[0] if users else 'unknown'}, expected this socket's owner"
        )
    if flags & socket.MSG_TRUNC:
        raise ValueError(f"datagram above {most_bytes} bytes")
    return data


def check_owner(connection: socket.socket) -> None:
    """Refuse any user but our own, beyond what the socket's mode does. Raises PermissionError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    user = _UCRED.unpack(raw)[1]
    if user != os.geteuid():
        raise PermissionError(f"user {user} is not this socket's owner")


def _bound(path: Path, kind: socket.SocketKind) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        with _near(path) as name:
            with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC) as trial:
                try:
                    trial.connect(name)
                except OSError:
                    path.unlink(missing_ok=True)  # left by an owner that was killed
                else:
                    raise InUse(errno.EADDRINUSE, f"socket {path}: somebody listens there already")
            os.fchmod(made.fileno(), 0o600)  # bind gives the file this mode: never open to others
            made.bind(name)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


@contextlib.contextmanager
def _near(path: Path) -> Iterator[str]:
    """Yield a short name of `path`."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
