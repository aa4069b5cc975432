"""Unix sockets that only programs of their owner can use: the control socket and the path status socket.

A Unix socket address holds 107 bytes; paths here may be longer. The folder must belong to the owner, and a
lock on it ensures that one process at a time takes over a path.
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

__all__ = ["InUse", "check_owner", "leave", "listen", "receive_at", "received"]

_MAX_BACKLOG: Final = 128
_UCRED: Final = struct.Struct("=iII")
_LOCK_WAIT_S: Final = 2.0
"""Time limit for the lock of the folder."""


class InUse(OSError):
    """Another process listens at the path already."""


def listen(path: Path) -> socket.socket:
    """Return a non-blocking stream socket that listens at `path`; a stale socket file is replaced.

    Raises InUse if another process answers there, OSError if it cannot be created.
    """
    return _bound(path, socket.SOCK_STREAM)


def receive_at(path: Path, buffer_bytes: int) -> socket.socket:
    """Return a non-blocking datagram socket at `path` that receives senders' credentials.

    Raises the same errors as `listen`.
    """
    made = _bound(path, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return made


def received(receiver: socket.socket, max_bytes: int) -> bytes | None:
    """Return the next datagram; None if there is none.

    Raises PermissionError if another user sent it, ValueError if it is too long.
    """
    try:
        data, ancillary, flags, _ = receiver.recvmsg(max_bytes, socket.CMSG_SPACE(_UCRED.size))
    except BlockingIOError:
        return None
    users = [
        _UCRED.unpack(raw)[1]
        for level, kind, raw in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(raw) == _UCRED.size
    ]
    if users != [os.geteuid()]:
        raise PermissionError(
            f"datagram of user {users[0] if users else 'unknown'}, expected this socket's owner"
        )
    if flags & socket.MSG_TRUNC:
        raise ValueError(f"datagram above {max_bytes} bytes")
    return data


def check_owner(connection: socket.socket) -> None:
    """Check that the peer is our own user, in addition to the socket's mode. Raises PermissionError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    user = _UCRED.unpack(raw)[1]
    if user != os.geteuid():
        raise PermissionError(f"user {user} is not this socket's owner")


def leave(path: Path, made: socket.socket) -> None:
    """Close a socket made at `path`, and remove the file unless another process listens there.

    A file that stays is replaced by the next process that listens.
    """
    kind = made.type
    made.close()
    with contextlib.suppress(OSError), _locked_folder(path) as name:
        if not _answers(name, kind):
            path.unlink(missing_ok=True)


def _bound(path: Path, kind: socket.SocketKind) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        with _locked_folder(path) as name:
            if _answers(name, kind):
                raise InUse(errno.EADDRINUSE, f"socket {path}: another process listens there already")
            path.unlink(missing_ok=True)  # left by an owner that was killed
            os.fchmod(made.fileno(), 0o600)  # bind gives the file this mode, so it is never open to others
            made.bind(name)
            if kind is socket.SOCK_STREAM:
                made.listen(_MAX_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _answers(name: str, kind: int) -> bool:
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC) as trial:
        trial.setblocking(False)
        try:
            trial.connect(name)
        except BlockingIOError:  # its queue is full, so a process listens
            return True
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[str]:
    """Yield a short name for `path` while holding the lock of its folder.

    Raises PermissionError if other users could replace the file, InUse if the lock is not released in time.
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
        until_s = time.monotonic() + _LOCK_WAIT_S
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
