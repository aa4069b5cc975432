"""Reads the fleet's probe key: 16 or 32 random bytes in a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

KEY_BYTES = (16, 32)


class KeyFileError(ValueError):
    """The key file cannot be used. The exception's text is one line."""


def read_key(path: Path) -> bytes:
    """Return the key in `path`, stored as raw bytes or in hexadecimal. Raises KeyFileError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KeyFileError(f"key_file {path}: {error.strerror}, expected the fleet's probe key") from None
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise KeyFileError(f"key_file {path}: not a regular file")
        if state.st_mode & 0o077:
            mode = stat.S_IMODE(state.st_mode)
            raise KeyFileError(f"key_file {path}: mode {mode:04o}, expected 0600, others could read the key")
        if state.st_uid not in (os.geteuid(), 0):
            raise KeyFileError(f"key_file {path}: belongs to user {state.st_uid}, expected {os.geteuid()}")
        data = os.read(fd, 256)
    finally:
        os.close(fd)
    if len(data) in KEY_BYTES and not _is_hex(data):
        return data
    text = data.strip()
    if _is_hex(text) and len(text) // 2 in KEY_BYTES:
        return bytes.fromhex(text.decode())
    if len(data) in KEY_BYTES:
        return data
    raise KeyFileError(f"key_file {path}: {len(data)} bytes, expected 16 or 32 (or as many in hexadecimal)")


def _is_hex(data: bytes) -> bool:
    return len(data) % 2 == 0 and len(data) > 0 and all(c in b"0123456789abcdefABCDEF" for c in data)
