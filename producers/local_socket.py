"""Stream sockets between one owner's programs on a machine: fabric control and flow registration.

No other user can connect. A Unix socket address holds 107 bytes, and paths here may be longer. The directory
of a listening socket belongs to its owner, and a lock makes taking over a path exclusive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["InUse", "check_owner", "connect", "leave", "listen", "read_line"]

_WAITING_MAX = 32
_ALONE_S: Final = 2.0
"""Timeout for the lock on the directory."""


class InUse(OSError):
    """Another program listens at the path already."""


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path` for its owner only; a stale socket file is replaced.

    Raises InUse if another program listens there, OSError if the socket cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _alone(path) as name:
            if _answers(name):
                raise InUse(errno.EADDRINUSE, f"socket {path}: another program listens there")
            path.unlink(missing_ok=True)  # left by an owner that was killed
            os.fchmod(listener.fileno(), 0o600)  # the mode of the file that bind makes
            listener.bind(name)
            listener.listen(_WAITING_MAX)
    except BaseException:
        listener.close()
        raise
    return listener


def leave(path: Path, listener: socket.socket) -> None:
    """Close the socket that listens at `path`, and remove the file unless another program listens there.

    A file that stays is replaced by the next listener.
    """
    listener.close()
    with contextlib.suppress(OSError), _alone(path) as name:
        if not _answers(name):
            path.unlink(missing_ok=True)


def connect(path: Path, timeout_s: float | None) -> socket.socket:
    """Return a socket connected to the listener at `path`. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_s)
        with _near(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def read_line(connection: socket.socket, max_bytes: int, timeout_s: float) -> bytes:
    """Return a client's first line without its end; at most `max_bytes`, or what came before the client left.

    Raises TimeoutError if the line takes longer than `timeout_s`, and OSError.
    """
    until_s, line = time.monotonic() + timeout_s, b""
    while b"\n" not in line and len(line) < max_bytes:
        connection.settimeout(max(0.001, until_s - time.monotonic()))
        data = connection.recv(max_bytes)
        if not data:
            break
        line += data
    return line.partition(b"\n")[0][:max_bytes]


def check_owner(connection: socket.socket) -> None:
    """Refuse other users, in addition to the socket's mode. Raises PermissionError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("=iII", raw)
    if uid != os.geteuid():
        raise PermissionError(f"user {uid} is not this socket's owner")


def _answers(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as trial:
        trial.setblocking(False)
        try:
            trial.connect(name)
        except BlockingIOError:  # its queue is full, so a program listens
            return True
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _near(path: Path) -> Iterator[str]:
    """Yield a short name of `path`."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[str]:
    """Yield a short name of `path` and hold the lock on its directory.

    Raises PermissionError if other users can replace files there, InUse if the lock is not free in time.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(directory)
        others = found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH
        if others and not found.st_mode & stat.S_ISVTX:
            raise PermissionError(
                errno.EPERM,
                f"folder {path.parent}: user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}, expected"
                " one that other users cannot write to",
            )
        until_s = time.monotonic() + _ALONE_S
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    text = f"folder {path.parent}: locked by another program"
                    raise InUse(errno.EADDRINUSE, text) from None
                time.sleep(0.01)
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
