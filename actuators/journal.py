"""Journal of the actions in force, written before and after each command, so that they survive a crash.

Each line holds the newest state of one flow or host as JSON. Lines are appended. The file is rewritten when
it has grown, or after a partial write. There is no fsync, because power loss ends flows too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 8 << 20
_RETRY_S: Final = 1.0
"""Pause after a failed write, s."""

State = dict[str, Any]


class StateStore(Protocol):
    """Stores the newest state for each name."""

    def save(self, name: str, state: Mapping[str, Any] | None) -> bool:
        """Store the state under a name; None deletes it. Return True if the change is stored."""


class NoJournal:
    """A store that saves nothing."""

    def save(self, name: str, state: Mapping[str, Any] | None) -> bool:
        """Do nothing; return True, as if the state had been stored."""
        return True


class Journal:
    """The journal file at `path`, readable by its owner only. `states` holds its content by name."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        """Read the file; unreadable lines are skipped. Raises OSError."""
        self._path, self._max_bytes = path, max_bytes
        self.states: dict[str, State] = {}
        self.unreadable = 0
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            for line in path.read_bytes().splitlines():
                self._take(line)
        except FileNotFoundError:
            pass
        if self.unreadable:
            _log.warning("%s: %d lines could not be read", path, self.unreadable)
        self._fd = -1
        self._size = 0
        self._retry_s = 0.0
        self.broken = False
        """True while the file lacks the newest state of a name, for example because the disk is full."""
        self._rewrite()

    def save(self, name: str, state: Mapping[str, Any] | None) -> bool:
        """Store the state under a name; None deletes it. Return True if the file contains the change."""
        if state is None:
            if self.states.pop(name, None) is None:
                return not self.broken
        else:
            self.states[name] = dict(state)
        if self.broken and time.monotonic() < self._retry_s:
            return False
        try:
            if self.broken:
                self._rewrite()
            else:
                self._add(_line(name, state))
                if self._size > self._max_bytes:
                    self._rewrite()
        except OSError as error:
            if not self.broken:
                _log.error("%s: %s; no rate is set until the file can be written", self._path, error.strerror)
            self.broken, self._retry_s = True, time.monotonic() + _RETRY_S
            return False
        if self.broken:
            _log.warning("%s: written again", self._path)
            self.broken = False
        return True

    def close(self) -> None:
        """Close the file; its content stays."""
        os.close(self._fd)

    def _take(self, line: bytes) -> None:
        try:
            name, state = json.loads(line)
            if not isinstance(name, str) or not isinstance(state, dict | None):
                raise ValueError(line)
        except (ValueError, TypeError, RecursionError):
            self.unreadable += 1
            return
        if state is None:
            self.states.pop(name, None)
        else:
            self.states[name] = state

    def _add(self, data: bytes) -> None:
        self._size += _write(self._fd, data)

    def _rewrite(self) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()  # left by a former process, or a link to elsewhere
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = _write(fd, b"".join(_line(name, state) for name, state in self.states.items()))
            new.replace(self._path)
        except BaseException:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, size
        self._max_bytes = max(self._max_bytes, 2 * self._size)


def _write(fd: int, data: bytes) -> int:
    left = data
    while left:
        left = left[os.write(fd, left) :]
    return len(data)


def _line(name: str, state: Mapping[str, Any] | None) -> bytes:
    return json.dumps([name, state], separators=(",", ":")).encode() + b"\n"
