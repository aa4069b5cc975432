"""Reads the fleet's probe key: 16 or 32 random bytes in a file that only its owner can read."""

from __future__ import annotations

from pathlib import Path

from schemas.secret_file import SecretFileError, read_secret

KEY_BYTES = (16, 32)


def read_key(path: Path) -> bytes:
    """Return the probe key in the file `path`, stored raw or in hexadecimal. Raises SecretFileError."""
    data = read_secret(path, "key_file", "the fleet's probe key")
    if len(data) in KEY_BYTES and not _is_hex(data):
        return data
    text = data.strip()
    if _is_hex(text) and len(text) // 2 in KEY_BYTES:
        return bytes.fromhex(text.decode())
    if len(data) in KEY_BYTES:
        return data
    raise SecretFileError(
        f"key_file {path}: {len(data)} bytes, expected 16 or 32 (or as many in hexadecimal)"
    )


def _is_hex(data: bytes) -> bool:
    return len(data) % 2 == 0 and len(data) > 0 and all(c in b"0123456789abcdefABCDEF" for c in data)
