"""Checks the formats of the strings in records, named by the attribute `format` of `.avsc` fields.

`schemas.ids` builds and parses the ids, and the patterns here accept all of these ids. Strings that passed
are cached, because records repeat the same few names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

_REMEMBERED: Final = 1 << 16

# One part of an id: no separator, no white space, nothing that a terminal would not show.
_PART: Final = r"[^\s/>\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}"
_LINE: Final = r"[^\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"


def _is_address(text: str) -> bool:
    """Return whether `text` is an IPv4 or IPv6 address, with or without a scope."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_network(text: str) -> bool:
    """Return whether `text` is an IPv4 or IPv6 network with its prefix length."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "/" in text


class Format:
    """A format of strings: its description in words, and a test of a string."""

    def __init__(self, example: str, expected: str, test: str | Callable[[str], bool]) -> None:
        self.example = example
        self.expected = expected
        """Description for error messages, after the word 'expected'."""
        if isinstance(test, str):
            pattern = re.compile(test)
            self._test: Callable[[str], bool] = lambda text: pattern.fullmatch(text) is not None
        else:
            self._test = test
        self._passed: set[str] = set()

    def has_passed(self, values: Iterable[str]) -> bool:
        """Return whether all strings are cached as having passed the check before."""
        return self._passed.issuperset(values)

    def first_wrong(self, values: Iterable[str]) -> str | None:
        """Return the first string that does not have this format; None if all have."""
        new = set(values) - self._passed
        for text in new:
            if not self._test(text):
                return text
        if len(self._passed) + len(new) > _REMEMBERED:
            self._passed.clear()
        self._passed |= new
        return None


FORMATS: Final[dict[str, Format]] = {
    "name": Format("h1", "1 to 128 printable characters without '/', '>' or space", _PART),
    "host_or_all": Format("h1", "a host's name, or *", _PART),
    "nic": Format("h1/eth0", "host/device", rf"{_PART}/{_PART}"),
    "nic_or_empty": Format("h1/eth0", "host/device, or nothing", rf"(?:{_PART}/{_PART})?"),
    "address": Format("10.0.0.1", "an IP address", _is_address),
    "address_or_empty": Format(
        "10.0.0.1", "an IP address, or nothing", lambda text: not text or _is_address(text)
    ),
    "network": Format("10.0.0.0/24", "an IP network with its prefix length", _is_network),
    "gid": Format("00000000000000000000000000000000", "32 hexadecimal digits", r"[0-9a-f]{32}"),
    "topic": Format("fabric", "a topic's name", r"[a-zA-Z0-9._-]{1,249}"),
    "symbol": Format("MOVE", "capitals, digits and '_', or nothing", r"[A-Z0-9_]{0,64}"),
    "label": Format("train", "at most 256 printable characters", rf"{_LINE}{{0,256}}"),
    "subject": Format("h1/eth0", "1 to 512 printable characters", rf"{_LINE}{{1,512}}"),
    "text": Format("one line", "one line", rf"{_LINE}{{0,512}}"),
}


@cache
def format_of(name: str) -> Format:
    """Return a format by its name in a schema. Raises KeyError, with all known names, for other names."""
    try:
        return FORMATS[name]
    except KeyError:
        raise KeyError(f"format {name!r}: expected one of {sorted(FORMATS)}") from None
