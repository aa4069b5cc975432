"""Gives a process its own PID namespace, in which a program can be started under a chosen process id.

Tests of reused process ids need the module. The process must have called `userns.enter`. The module uses the
standard library only and forks, so it must run before any thread starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

LAST_ID: Final = Path("/proc/sys/kernel/ns_last_pid")
ATTEMPTS: Final = 100
"""Processes that are started until one has the wanted id: others of the namespace start processes too."""

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWPID: Final = 0x20000000
_MOUNT_FLAGS: Final = 0xE  # nosuid, nodev, noexec
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


def enter_own_ids() -> str | None:
    """Continue in the first process of a new PID namespace, with a /proc of its own; return None there.

    The calling process waits for the first process and ends with it. All processes of the namespace end with
    its first one. If the kernel or a setting forbids the namespace, return the reason in the calling process.
    """
    trial = os.fork()
    if trial == 0:
        os._exit(_denial_number())
    denial = os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1])
    if denial:
        return f"a namespace of process ids: {os.strerror(abs(denial))}"
    _unshare(_CLONE_NEWPID)
    first = os.fork()
    if first:
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        os._exit(code if code >= 0 else 1)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _mount_proc()
    return None


def start_at(pid: int, argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program under a process id that is free; `options` are those of Popen.

    Raises OSError if the kernel does not let ids be chosen, or another process holds the id.
    """
    for _ in range(ATTEMPTS):
        LAST_ID.write_text(str(pid - 1), encoding="ascii")
        process = subprocess.Popen(argv, **options)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise OSError(f"process id {pid}: held by another process, expected a free one")


def _denial_number() -> int:
    """Try all steps of `enter_own_ids` in this process, which then ends; return 0 or the errno."""
    try:
        _unshare(_CLONE_NEWPID | _CLONE_NEWNS)
        first = os.fork()
        if first == 0:
            os._exit(_mount_number())
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    except OSError as error:
        return error.errno or 1


def _mount_number() -> int:
    try:
        _mount_proc()
    except OSError as error:
        return error.errno or 1
    return 0


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def _mount_proc() -> None:
    if _libc.mount(b"proc", b"/proc", b"proc", _MOUNT_FLAGS, None):
        raise OSError(ctypes.get_errno(), "mount /proc")
