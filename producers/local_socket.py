"""Unix sockets of one owner's programs on one machine: the fabric's control, the registration of flows.

In: a path. Out: listening or connected stream sockets that no other user gets through to. An address of a
Unix socket holds 107 bytes; paths here may be longer. The folder of a listening one is its owner's, and who
takes a path over does it alone.
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
"""How long another one that is at the same folder is waited for."""


class InUse(OSError):
    """Somebody listens at the path already."""


def listen(path: Path) -> socket.socket:
    """Return a socket listening at `path`, for its owner alone; one that was left behind is replaced.

    Raises InUse where one answers there, OSError where it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with _alone(path) as name:
            if _answers(name):
                raise InUse(errno.EADDRINUSE, f"socket {path}: somebody listens there already")
            path.unlink(missing_ok=True)  # left by an owner that was killed
            os.fchmod(listener.fileno(), 0o600)  # bind gives the file this mode: never open to others
            listener.bind(name)
            listener.listen(_WAITING_MAX)
    except BaseException:
        listener.close()
        raise
    return listener


def leave(path: Path, listener: socket.socket) -> None:
    """Close the socket that listens at `path`, and remove the file unless somebody else is there by now. One
    that stays is taken over by the next who listens there."""
    listener.close()
    with contextlib.suppress(OSError), _alone(path) as name:
        if not _answers(name):
            path.unlink(missing_ok=True)


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


def read_line(connection: socket.socket, most_bytes: int, within_s: float) -> bytes:
    """Return the line that a client begins with, without its end: what has come of it after `most_bytes`, or
    when it hangs up. Raises TimeoutError where it dribbles for longer than `within_s`, OSError."""
    until_s, line = time.monotonic() + within_s, b""
    while b"\n" not in line and len(line) < most_bytes:
        connection.settimeout(max(0.001, until_s - time.monotonic()))
        data = connection.recv(most_bytes)
        if not data:
            break
        line += data
    return line.partition(b"\n")[0][:most_bytes]


def check_owner(connection: socket.socket) -> None:
    """Refuse any user but our own, beyond what the socket's mode does. Raises PermissionError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("=iII", raw)
    if uid != os.geteuid():
        raise PermissionError(f"user {uid} is not this socket's owner")


def _answers(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as trial:
        trial.setblocking(False)
        try:
            trial.connect(name)
        except BlockingIOError:  # its queue is full: there is somebody
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
    """Yield a short name of `path` while nobody else of ours makes or removes a socket in its folder.

    Raises PermissionError where others may put something else there, InUse where it is never free.
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
