"""Access tokens in files that only their owner can read. A missing token is created at random."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def ensure_token(path: Path) -> str:
    """Return the token in `path`. Create the file (mode 0600) and its folder (0700) if they are missing.

    Raises ValueError if the file is empty or others may read it, OSError if it cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(token + "\n")
    return token


def read_token(path: Path) -> str:
    """Return the token in `path`. Raises ValueError if the file is empty or others may read it."""
    mode = path.stat().st_mode
    if mode & 0o077:
        raise ValueError(f"{path}: mode {mode & 0o777:04o}, expected 0600 (others may read the token)")
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{path}: empty, expected a token")
    return token
