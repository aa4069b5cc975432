"""Keeps the committed offsets of consumer groups in a journal that survives kill -9.

Each commit is one line of the journal, a checksum and JSON. At the start, an incomplete last line is cut off.
Once most lines are obsolete, the journal is rewritten.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

log = logging.getLogger(__name__)

_REWRITE_BYTES: Final = 4 * 1024 * 1024


class Committed(NamedTuple):
    """An offset that a group committed, with the metadata that the client sent."""

    offset: int
    metadata: str


def _line(entry: list[Any]) -> bytes:
    body = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(body), body)


class OffsetStore:
    """The committed offsets of all groups, by (topic, partition)."""

    def __init__(self, directory: Path) -> None:
        """Read the committed offsets from the journal in `directory`. Raises OSError."""
        self._path = directory / "offsets.log"
        self._groups: dict[str, dict[tuple[str, int], Committed]] = {}
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = self._load()
        self._live_bytes = self._size
        if self._size > _REWRITE_BYTES:
            self._rewrite()

    def _load(self) -> int:
        position = 0
        with open(self._fd, "rb", closefd=False) as journal:
            for line in journal:
                if not line.endswith(b"\n") or not self._replay(line):
                    break
                position += len(line)
        size = os.fstat(self._fd).st_size
        if position < size:
            log.warning("%s: %d B at its end are no whole line: cut off", self._path, size - position)
            os.ftruncate(self._fd, position)
        return position

    def _replay(self, line: bytes) -> bool:
        try:
            checksum, body = line.rstrip(b"\n").split(b" ", 1)
            if int(checksum, 16) != crc32c(body):
                return False
            group, topic, partition, offset, metadata = json.loads(body)
            self._set(str(group), str(topic), int(partition), int(offset), str(metadata))
        except (ValueError, TypeError):
            return False
        return True

    def _set(self, group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
        if offset < 0:
            self._groups.get(group, {}).pop((topic, partition), None)
            if not self._groups.get(group):
                self._groups.pop(group, None)
        else:
            self._groups.setdefault(group, {})[topic, partition] = Committed(offset, metadata)

    def commit(self, group: str, offsets: dict[tuple[str, int], Committed]) -> None:
        """Write `offsets` to the journal. Afterwards, they survive a kill of the process. If it raises
        OSError, none of them is stored.
        """
        lines = b"".join(
            _line([group, topic, partition, committed.offset, committed.metadata])
            for (topic, partition), committed in offsets.items()
        )
        self._write(lines)
        for (topic, partition), committed in offsets.items():
            self._set(group, topic, partition, committed.offset, committed.metadata)
        if self._size > max(_REWRITE_BYTES, 4 * self._live_bytes):
            self._rewrite()

    def _write(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._size + written)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _rewrite(self) -> None:
        temporary = self._path.with_suffix(".new")
        data = b"".join(
            _line([group, topic, partition, committed.offset, committed.metadata])
            for group, offsets in self._groups.items()
            for (topic, partition), committed in offsets.items()
        )
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fd = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            temporary.replace(self._path)
        except OSError as error:
            log.warning("%s: not rewritten: %s", self._path, error)
            temporary.unlink(missing_ok=True)
            self._live_bytes = self._size
            return
        os.close(self._fd)
        self._fd, self._size = fd, len(data)
        self._live_bytes = self._size

    def fetch(self, group: str) -> dict[tuple[str, int], Committed]:
        """Return the committed offsets of a group, by (topic, partition)."""
        return self._groups.get(group, {})

    def groups(self) -> list[str]:
        """Return the names of the groups with committed offsets."""
        return list(self._groups)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drop the offsets of a group or of a deleted topic. Raises OSError."""
        removed_keys = [
            (name, key)
            for name, offsets in self._groups.items()
            for key in offsets
            if (group is None or name == group) and (topic is None or key[0] == topic)
        ]
        self._write(b"".join(_line([name, key[0], key[1], -1, ""]) for name, key in removed_keys))
        for name, key in removed_keys:
            self._set(name, key[0], key[1], -1, "")

    def sync(self) -> None:
        """Write the journal through to the disk. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the journal."""
        os.close(self._fd)
