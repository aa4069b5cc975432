"""Makes names from users' programs printable, and keeps different names different."""

from __future__ import annotations

import zlib
from typing import Final

MAX_LABEL: Final = 256
"""Maximum characters of a label in records."""
_HASH_CHARS: Final = 9


def printable(raw: bytes) -> str:
    r"""Return a text of at most `MAX_LABEL` printable characters; different bytes give different texts.

    UTF-8 remains unchanged. Other bytes, control characters and line ends become \xNN; a backslash before an
    x becomes \x5c. A longer text ends with the checksum of its bytes.
    """
    if raw.isascii() and b"\\" not in raw:
        text = raw.decode("ascii")
        if text.isprintable() and len(text) <= MAX_LABEL:
            return text
    text = raw.decode("utf-8", "surrogateescape").replace("\\x", "\\x5cx")
    text = "".join(_escaped(char) if _is_unprintable(char) else char for char in text)
    if len(text) <= MAX_LABEL:
        return text
    return f"{text[: MAX_LABEL - _HASH_CHARS]}~{zlib.crc32(raw):08x}"


def _is_unprintable(char: str) -> bool:
    """Return whether a terminal cannot show a character unchanged; it shows wide and no-break spaces."""
    return not (
        char.isprintable()
        or (char.isspace() and char not in "\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029")
    )


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
