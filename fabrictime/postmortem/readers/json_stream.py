"""Reads JSON values one after the other from text that arrives in chunks, with bounded memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

MAX_VALUE: Final = 8 << 20
"""Largest number of characters of one value."""
_DECODER: Final = json.JSONDecoder()
_BETWEEN: Final = re.compile(r"[\s,]*")


class Damaged(ValueError):
    """The text is not valid JSON at some position; the values before it have been read."""


class JsonText:
    """A JSON text that arrives in chunks, with a read position."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self._chunks = chunks
        self._at = 0
        self._text = ""
        self.is_ended = False

    def _grow(self) -> bool:
        """Append the next chunk to the text; return False if there is none."""
        chunk = next(self._chunks, None)
        if chunk is None:
            self.is_ended = True
            return False
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True

    def skip_to(self, key: str) -> bool:
        """Move behind `"key": [`, and drop the text before; return False if the text ends first."""
        pattern = re.compile(rf'"{re.escape(key)}"\s*:\s*\[')
        while (match := pattern.search(self._text, self._at)) is None:
            self._at = max(self._at, len(self._text) - len(key) - 64)
            if not self._grow():
                return False
        self._at = match.end()
        return True

    def head(self, characters: int) -> str:
        """Return the next `characters` characters without moving the read position."""
        while len(self._text) - self._at < characters and self._grow():
            pass
        return self._text[self._at : self._at + characters]

    def values(self) -> Iterator[Any]:
        """Yield values that whitespace or commas separate, up to the end or a bracket. Raises Damaged."""
        while True:
            match = _BETWEEN.match(self._text, self._at)
            self._at = match.end() if match is not None else self._at
            if self._at >= len(self._text):
                if not self._grow():
                    return
                continue
            if self._text[self._at] in "]}":
                return
            yield self._value()

    def _value(self) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                is_short = isinstance(error, ValueError) and len(self._text) - self._at < MAX_VALUE
                if is_short and self._grow():
                    continue
                raise Damaged("JSON: damaged or cut, expected a whole file") from None
            if end >= len(self._text) - 1 and not self.is_ended and self._grow():
                continue  # a number at the end of the chunk may be longer
            self._at = min(end, len(self._text))
            return value


def named_value(text: str, key: str) -> Any:
    """Return the first value of a key in a part of a JSON text; None if the value is absent or truncated."""
    match = re.search(rf'"{re.escape(key)}"\s*:\s*', text)
    if match is None:
        return None
    try:
        return _DECODER.raw_decode(text, match.end())[0]
    except (ValueError, RecursionError):
        return None
