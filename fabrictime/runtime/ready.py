"""Readiness and liveness messages from children to the supervisor, by systemd's protocol.

A child sends datagrams `READY=1`, `STATUS=line`, `WATCHDOG=1` and `X_FAULT=line` to an abstract socket, which
accepts them only from that child. X_FAULT is the reason why the child works only in part; an empty reason
ends the fault. X_END is the reason why the child ends itself. The child itself calls `die_with_parent`.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final

PARENT_VARIABLE: Final = "FABRICTIME_SUPERVISOR_PID"
"""Environment variable with the pid of the supervisor, with which the child must die."""

_PR_SET_PDEATHSIG: Final = 1
_CREDENTIALS: Final = struct.Struct("iII")
_MAX_BYTES: Final = 4096


class NotifySocket:
    """The socket to which one child process reports; the child's NOTIFY_SOCKET holds `address`."""

    def __init__(self) -> None:
        name = f"fabrictime-{secrets.token_hex(16)}"
        self.address = f"@{name}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{name}")

    def fileno(self) -> int:
        """Return the file descriptor, so that a selector can wait for messages."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket, which also frees its name."""
        self._socket.close()

    def messages(self, pid: int) -> Iterator[tuple[str, str]]:
        """Yield the messages of process `pid` as (variable, value); drop messages of other processes."""
        while True:
            try:
                data, control, _, _ = self._socket.recvmsg(_MAX_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return
            senders = [
                _CREDENTIALS.unpack(body[: _CREDENTIALS.size])[0]
                for level, kind, body in control
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS
            ]
            if senders != [pid]:
                continue
            for line in data.decode("utf-8", "replace").splitlines():
                variable, equals, value = line.partition("=")
                if equals:
                    yield variable, value


def die_with_parent() -> None:
    """Make the kernel kill this process when its supervisor dies.

    Do nothing if there is no supervisor. End the process at once if the supervisor is already dead.
    """
    parent_pid = os.environ.get(PARENT_VARIABLE)
    if parent_pid is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent_pid):
        sys.exit("supervisor is gone")
