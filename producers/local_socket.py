"""Unix sockets of one owner's programs on one machine: the fabric's control, the registration of flows.

In: a path. Out: listening or connected stream sockets that no other user gets through to. An address of a
Unix socket holds 107 bytes; paths here may be longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["InUse", "check_owner", "connect", "listen"]

_WAITING_MAX = 32


class InUse(OSError):
    """Somebody listens at the path already."""


def listen(path: Path) -> socket.socket:
    """Return a socket listening at `path`, for its owner alone; one that was left behind is replaced.

    Raises InUse where one answers there, OSError where it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _near(path) as name:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as trial:
                try:
                    trial.connect(name)
                except OSError:
                    path.unlink(missing_ok=True)  # left by an owner that was killed
                else:
                    raise InUse(f"socket {path}: somebody listens there already")
            os.fchmod(listener.fileno(), 0o600)  # bind gives the file this mode: never open to others
            listener.bind(name)
        listener.listen(_WAITING_MAX)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: Path, timeout_s: float | None) -> socket.socket:
    """Return a socket connected to whoever listens at `path`. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_s)
        with _near(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def check_owner(connection: socket.socket) -> None:
    """Refuse any user but our own, beyond what the socket's mode does. Raises PermissionError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("=iII", raw)
    if uid != os.geteuid():
        raise PermissionError(f"user {uid} is not this socket's owner")


@contextlib.contextmanager
def _near(path: Path) -> Iterator[str]:
    """Yield a short name of `path`."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
