"""Opens Unix sockets between programs of one user on a machine; `socket_access` can admit other users.

The address of a Unix socket holds 107 bytes; paths here may be longer. The folder of a bound socket must not
be writable by other users. A socket file that a killed program left behind is replaced. A lock on the folder
keeps programs that start at the same time from replacing each other's sockets.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import logging
import os
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from schemas.socket_access import OWNER, SocketAccess

BACKLOG: Final = 128
ADDRESS_BYTES: Final = 107
"""Maximum number of bytes in the address of a Unix socket."""
LOCK_WAIT_S: Final = 2.0
"""Longest wait for another program that binds a socket in the same folder."""
CHECK_S: Final = 1.0
"""Interval of the checks whether a socket's file is still in place."""
_UCRED: Final = struct.Struct("=iII")
_DESCRIPTORS_MAX: Final = 253
"""Largest number of descriptors that the kernel passes in one message (SCM_MAX_FD)."""


_log = logging.getLogger(__name__)


class InUse(OSError):
    """Another process already listens at the path."""


def listen(path: Path, *, blocking: bool = False, access: SocketAccess = OWNER) -> socket.socket:
    """Return a stream socket that listens at `path`; replace a socket file that was left behind.

    Programs of the users that `access` names can connect. Raises InUse if a process already listens at the
    path, OSError if the socket cannot be made.
    """
    listener = _bound(path, socket.SOCK_STREAM, access)
    listener.setblocking(blocking)
    return listener


def listen_for_packets(path: Path, *, access: SocketAccess = OWNER) -> socket.socket:
    """Return a non-blocking socket (SOCK_SEQPACKET) that listens at `path`. Raises as `listen` does."""
    return _bound(path, socket.SOCK_SEQPACKET, access)


class SocketFile:
    """A listening socket that is recreated if its file is removed or replaced.

    A clean-up of temporary files can remove a socket's file, and then no program can connect. A file of
    another kind is not touched. `make` is called for each new socket. Raises as `listen` does.
    """

    def __init__(self, path: Path, make: Callable[[Path], socket.socket]) -> None:
        self.path, self._make = path, make
        self.socket = make(path)
        self._file = _identity(path)
        self._check_at_s = time.monotonic() + CHECK_S
        self.remade = 0
        """Number of times that the file was made again."""
        self.fault: str | None = None
        """One line if the file is missing and cannot be made again."""

    def check(self, now_s: float, selector: selectors.BaseSelector | None = None) -> None:
        """Recreate the socket if its file is gone; check the file once in `CHECK_S` (monotonic time).

        The new socket replaces the former one in `selector`. Connections stay open.
        """
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + CHECK_S
        if _identity(self.path) == self._file:
            self.fault = None
            return
        try:
            new_socket = self._make(self.path)
        except OSError as error:
            reason = f"socket {self.path}: its file was removed or replaced: {error.strerror or error}"
            if reason != self.fault:
                _log.warning("%s; tried again every %.0f s", reason, CHECK_S)
            self.fault = reason
            return
        former, self.socket = self.socket, new_socket
        self._file, self.fault = _identity(self.path), None
        self.remade += 1
        _log.warning("socket %s: its file was removed or replaced, made again", self.path)
        if selector is not None:
            with contextlib.suppress(KeyError):  # not registered while descriptors are short
                key = selector.unregister(former)
                selector.register(new_socket, key.events, key.data)
        former.close()

    def close(self) -> None:
        """Close the socket and remove its file."""
        leave(self.path, self.socket)


def receive_at(path: Path, buffer_bytes: int) -> socket.socket:
    """Return a non-blocking datagram socket at `path` with senders' credentials. Raises as `listen` does."""
    receiver = _bound(path, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return receiver


def received(receiver: socket.socket, max_bytes: int) -> bytes | None:
    """Return the next datagram; None if no datagram is waiting.

    Raises PermissionError for a datagram from another user, ValueError for a datagram that is too long.
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
        sender = users[0] if users else "unknown"
        raise PermissionError(f"datagram of user {sender}, expected this socket's owner")
    if flags & socket.MSG_TRUNC:
        raise ValueError(f"datagram above {max_bytes} bytes")
    return data


def connect(path: Path, timeout_s: float | None) -> socket.socket:
    """Return a stream socket that is connected to the listener at `path`. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout_s)
        with _short_name(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def read_line(connection: socket.socket, max_bytes: int, within_s: float) -> bytes:
    """Return a client's first line, without its end of line.

    If no line ends within `max_bytes` or before the client hangs up, return the bytes received. Raises
    TimeoutError if the line takes longer than `within_s`, OSError.
    """
    until_s, line = time.monotonic() + within_s, b""
    while b"\n" not in line and len(line) < max_bytes:
        connection.settimeout(max(0.001, until_s - time.monotonic()))
        data = connection.recv(max_bytes)
        if not data:
            break
        line += data
    return line.partition(b"\n")[0][:max_bytes]


def receive_descriptor(connection: socket.socket, max_bytes: int) -> tuple[bytes, int | None] | None:
    """Return (packet, descriptor or None) for the next packet; None at the end of the connection.

    The caller closes the descriptor. Raises BlockingIOError if no packet is waiting, ValueError for a packet
    that is too long or carries several descriptors.
    """
    control_bytes = socket.CMSG_SPACE(_DESCRIPTORS_MAX * array.array("i").itemsize)
    data, messages, flags, _ = connection.recvmsg(max_bytes, control_bytes, socket.MSG_CMSG_CLOEXEC)
    numbers = array.array("i")
    for level, kind, content in messages:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(numbers) > 1:
        for number in numbers:
            os.close(number)
        raise ValueError(
            f"packet of {len(data)} bytes and {len(numbers)} descriptors: expected at most {max_bytes} and 1"
        )
    if not data and not numbers:
        return None
    return data, numbers[0] if numbers else None


def check_owner(connection: socket.socket) -> int:
    """Check that the peer runs as our user, in addition to the file's mode, and return its process id.

    The id is 0 if the peer is in another PID namespace. Raises PermissionError for another user.
    """
    return OWNER.check(connection).pid


def leave(path: Path, bound: socket.socket) -> None:
    """Close a socket that was bound at `path`, and remove its file unless another process listens there.

    If the file stays, the next `listen` at the path replaces it.
    """
    kind = bound.type
    bound.close()
    with contextlib.suppress(OSError), _locked_folder(path) as name:
        if not _answers(name, kind):
            _remove(path)


def _bound(path: Path, kind: socket.SocketKind, access: SocketAccess = OWNER) -> socket.socket:
    access.prepare_folder(path.parent)
    bound = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        with _locked_folder(path) as name:
            if len(os.fsencode(name)) > ADDRESS_BYTES:
                text = f"socket {path}: name of {len(os.fsencode(path.name))} bytes, expected a shorter one"
                raise OSError(errno.ENAMETOOLONG, text)
            if _answers(name, kind):
                raise InUse(errno.EADDRINUSE, f"socket {path}: another process listens there already")
            _remove(path)  # left behind by a killed process
            os.fchmod(bound.fileno(), 0o600)  # bind gives this mode to the file: not open before it is ready
            bound.bind(name)
            access.admit(name)
            if kind is not socket.SOCK_DGRAM:
                bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _remove(path: Path) -> None:
    """Remove the socket or link at `path`, if present. Raises FileExistsError for any other file."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISSOCK(mode) and not stat.S_ISLNK(mode):
            raise FileExistsError(errno.EEXIST, f"{path}: not a socket, expected a socket or no file")
        path.unlink()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return (device, inode) of the file at a path; None if there is no file.

    The inode of a bound socket is not used again while the socket is open.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _answers(name: str, kind: int) -> bool:
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC) as trial:
        trial.setblocking(False)
        try:
            trial.connect(name)
        except BlockingIOError:  # its queue is full, so a process owns it
            return True
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Yield an equivalent of `path` that fits into a socket address (107 bytes)."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[str]:
    """Lock the folder of `path` against other programs that bind or remove sockets; yield a short path.

    Raises PermissionError if other users could replace the socket, InUse if the lock does not become free.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_folder(path.parent, os.fstat(directory))
        until_s = time.monotonic() + LOCK_WAIT_S
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


def _check_folder(folder: Path, status: os.stat_result) -> None:
    writable = status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH
    if writable and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(
            errno.EPERM,
            f"folder {folder}: user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}, expected"
            " one that other users cannot write to",
        )
