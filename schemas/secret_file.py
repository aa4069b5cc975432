"""Reads secrets from files that no other user can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from schemas.input_error import InputError

MAX_BYTES: Final = 1 << 20


class SecretFileError(InputError):
    """A secret's file cannot be used. The exception's text is one line and contains no secret."""


def read_secret(path: Path, name: str, expected: str) -> bytes:
    """Return the content of a file that only its owner can read. Raises SecretFileError.

    A file of root may also be readable to our group, like the secrets that Kubernetes mounts. Root also reads
    files of other users, such as the key of the agent's user. For messages, `name` is the setting and
    `expected` the content of the file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretFileError(f"{name} {path}: {error.strerror}, expected {expected}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SecretFileError(f"{name} {path}: not a regular file")
        is_mounted = status.st_uid == 0 != os.geteuid() and status.st_gid in (os.getegid(), *os.getgroups())
        if status.st_mode & (0o037 if is_mounted else 0o077):
            mode = stat.S_IMODE(status.st_mode)
            raise SecretFileError(f"{name} {path}: mode {mode:04o}, expected 0600, others could read it")
        if os.geteuid() and status.st_uid not in (os.geteuid(), 0):
            raise SecretFileError(f"{name} {path}: belongs to user {status.st_uid}, expected {os.geteuid()}")
        return os.read(fd, MAX_BYTES)
    finally:
        os.close(fd)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that differs after each change of a file; None if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read. Raises FileExistsError, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
