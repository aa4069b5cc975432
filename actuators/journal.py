"""What the hand of a host had in force when it ended: a file that is written before and after each effect.

In: the state of one flow, or of one host, as JSON takes it. Out: after a kill, the newest state of each.
Lines are only ever added; where they grow many, the file is written anew. No fsync: a machine that loses
power loses its flows too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["Journal", "NoJournal", "Notes"]

_MOST_BYTES: Final = 8 << 20

State = dict[str, Any]


class Notes(Protocol):
    """Where states are noted."""

    def note(self, name: str, state: Mapping[str, Any] | None) -> None:
        """Keep the newest state of a name; None: it is of no use any more."""


class NoJournal:
    """Keeps nothing."""

    def note(self, name: str, state: Mapping[str, Any] | None) -> None:
        """Do nothing."""


class Journal:
    """The file at `path`, owner-only. `states`: what it held at the start, by name."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        """Read what is there; a last line that was cut short is left out. Raises OSError."""
        self._path, self._most_bytes = path, most_bytes
        self.states: dict[str, State] = {}
        self.unreadable = 0
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            for line in path.read_bytes().splitlines():
                self._take(line)
        except FileNotFoundError:
            pass
        self._fd = -1
        self._size = 0
        self._write_anew()

    def note(self, name: str, state: Mapping[str, Any] | None) -> None:
        """Keep the newest state of a name; None: it is of no use any more. Raises OSError."""
        if state is None:
            if self.states.pop(name, None) is None:
                return
        else:
            self.states[name] = dict(state)
        self._add(_line(name, state))
        if self._size > self._most_bytes:
            self._write_anew()

    def close(self) -> None:
        """Close the file; what it says stays."""
        os.close(self._fd)

    def _take(self, line: bytes) -> None:
        try:
            name, state = json.loads(line)
            if not isinstance(name, str) or not isinstance(state, dict | None):
                raise ValueError(line)
        except ValueError:
            self.unreadable += 1
            return
        if state is None:
            self.states.pop(name, None)
        else:
            self.states[name] = state

    def _add(self, data: bytes) -> None:
        self._size += os.write(self._fd, data)

    def _write_anew(self) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = b"".join(_line(name, state) for name, state in self.states.items())
        while data:
            data = data[os.write(fd, data) :]
        new.replace(self._path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, os.fstat(fd).st_size
        self._most_bytes = max(self._most_bytes, 2 * self._size)


def _line(name: str, state: Mapping[str, Any] | None) -> bytes:
    return json.dumps([name, state], separators=(",", ":")).encode() + b"\n"
