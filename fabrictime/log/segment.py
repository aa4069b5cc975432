"""Segment files: complete record batches one after the other, and a sparse index in memory.

A segment stores stamped batches and returns the byte range of the batches from an offset or a time on. A
file's name is its first offset. Beside a closed file, `NAME.meta` holds its index and the producers' state.
After a crash, recovery finds an incomplete batch at the end by its checksum and cuts it off.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from fabrictime.log.batch import CRC_START, HEADER, HEADER_BYTES, LENGTH_BYTES, Header, read_header

log = logging.getLogger(__name__)

INDEX_BYTES: Final = 16 * 1024
"""Least number of bytes between two entries of the index."""
_WALK_BYTES: Final = 2 * INDEX_BYTES


class Handle:
    """An open file that its last reader closes. So a response can still send a deleted file."""

    __slots__ = ("fd",)

    def __init__(self, path: Path, *, create: bool = False) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self.fd = os.open(path, flags, 0o600)

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)


class Segment:
    """One segment file of a partition. `end_offset` is the offset after its last record."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self.base_offset = int(path.stem)
        self.handle = Handle(path, create=create)
        self.size = os.fstat(self.handle.fd).st_size
        self.end_offset = self.base_offset
        self.first_ms = 0
        self.max_ms = 0
        self.cleaned = False
        self.unsynced = False
        self._clear_index()

    def _clear_index(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")

    @property
    def meta_path(self) -> Path:
        """Path of the file with the index of this segment, written when the segment is closed."""
        return self.path.with_suffix(".meta")

    def note(self, header: Header, position: int) -> None:
        """Add a batch at byte `position` to the index."""
        if not self._positions or position - self._positions[-1] >= INDEX_BYTES:
            self._offsets.append(header.base_offset)
            self._positions.append(position)
            # The newest time so far: append time may step back, and `find_time` needs ascending times.
            self._times.append(max(self.max_ms, header.max_timestamp))
        if not position:
            self.first_ms = header.max_timestamp
        self.max_ms = max(self.max_ms, header.max_timestamp)
        self.end_offset = header.last_offset + 1

    def append(self, view: memoryview) -> int:
        """Write a batch at the end and return its position. Raises OSError after removing an incomplete
        batch.
        """
        position = self.size
        try:
            written = os.pwrite(self.handle.fd, view, position)
            while written < len(view):
                written += os.pwrite(self.handle.fd, view[written:], position + written)
        except OSError:
            os.ftruncate(self.handle.fd, position)
            raise
        self.size += len(view)
        self.unsynced = True
        return position

    def headers(self, position: int, end: int | None = None) -> Iterator[tuple[int, Header]]:
        """Yield (position, header) of each batch from byte `position` on."""
        stop = self.size if end is None else min(end, self.size)
        chunk, start = b"", 0
        while position + HEADER_BYTES <= stop:
            if not chunk or position + HEADER_BYTES > start + len(chunk):
                start = position
                chunk = os.pread(self.handle.fd, min(_WALK_BYTES, self.size - position), position)
                if len(chunk) < HEADER_BYTES:
                    return
            header = read_header(chunk, position - start)
            if header.length < HEADER_BYTES - LENGTH_BYTES:
                return
            yield position, header
            position += header.size

    def locate(self, offset: int) -> int | None:
        """Return the position of the first batch that ends at or after `offset`; None if no batch does."""
        if offset >= self.end_offset or not self.size:
            return None
        entry = max(bisect_right(self._offsets, offset) - 1, 0)
        for position, header in self.headers(self._positions[entry]):
            if header.last_offset >= offset:
                return position
        return None

    def range_end(self, position: int, max_bytes: int) -> int:
        """Return the end position for a read: complete batches of at most `max_bytes`, at least one batch."""
        limit = position + max_bytes
        if limit >= self.size:
            return self.size
        indexed = self._positions[max(bisect_right(self._positions, limit) - 1, 0)]
        end = max(indexed, position)
        for at, header in self.headers(end):
            if at + header.size > limit:
                if at == position:
                    return at + header.size
                break
            end = at + header.size
        return end

    def find_time(self, time_ms: int) -> tuple[int, int] | None:
        """Return (offset, time) of the first batch stamped at or after `time_ms`; None if no batch is."""
        if not self.size or self.max_ms < time_ms:
            return None
        entry = max(bisect_left(self._times, time_ms) - 1, 0)
        for _, header in self.headers(self._positions[entry]):
            if header.max_timestamp >= time_ms:
                return header.base_offset, header.max_timestamp
        return None

    def save_meta(self, producers: list[Any]) -> None:
        """Write the index and the producers' state to `meta_path`, so that the next start need not scan."""
        state = {
            "size": self.size,
            "end_offset": self.end_offset,
            "first_ms": self.first_ms,
            "max_ms": self.max_ms,
            "cleaned": self.cleaned,
            "offsets": self._offsets.tolist(),
            "positions": self._positions.tolist(),
            "times": self._times.tolist(),
            "producers": producers,
        }
        temporary = self.path.with_suffix(".meta-new")
        try:
            temporary.write_text(json.dumps(state, separators=(",", ":")))
            temporary.replace(self.meta_path)
        except OSError as error:
            log.warning(
                "%s: not written (%s): the next start reads the segment instead", self.meta_path, error
            )
            temporary.unlink(missing_ok=True)

    def saved_producers(self) -> list[Any]:
        """Return the producers' state from `meta_path`; empty if the file does not exist."""
        try:
            producers = json.loads(self.meta_path.read_bytes())["producers"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return producers if isinstance(producers, list) else []

    def load_meta(self) -> list[Any] | None:
        """Load the index from `meta_path`. Return the producers' state; None if the file is missing or
        invalid.
        """
        try:
            state = json.loads(self.meta_path.read_bytes())
            if state["size"] != self.size or not len(state["offsets"]) == len(state["positions"]) == len(
                state["times"]
            ):
                return None
            self._offsets = array("q", state["offsets"])
            self._positions = array("q", state["positions"])
            self._times = array("q", state["times"])
            if self.size and (not self._positions or self._positions[-1] >= self.size):
                raise ValueError("index does not fit")
            self.end_offset = int(state["end_offset"])
            self.first_ms = int(state["first_ms"])
            self.max_ms = int(state["max_ms"])
            self.cleaned = bool(state["cleaned"])
            producers = state["producers"]
            return producers if isinstance(producers, list) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            log.warning("%s: not usable (%s): reading the segment instead", self.meta_path, error)
            self._clear_index()
            return None

    def scan(self, on_batch: Callable[[Header], None]) -> int:
        """Read the whole file, check every batch and rebuild the index. Return the number of valid bytes."""
        self._clear_index()
        self.end_offset = self.base_offset
        self.first_ms = self.max_ms = 0
        if not self.size:
            return 0
        position = 0
        with (
            mmap.mmap(self.handle.fd, self.size, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            while position + HEADER_BYTES <= self.size:
                header = Header._make(HEADER.unpack_from(view, position))
                end = position + header.size
                if (
                    header.magic != 2
                    or header.length < HEADER_BYTES - LENGTH_BYTES
                    or end > self.size
                    or header.base_offset < self.end_offset
                    or header.last_offset_delta < 0
                    or header.base_offset > 2**62
                ):
                    break
                with view[position + CRC_START : end] as checked:
                    if crc32c(checked) != header.crc:
                        break
                self.note(header, position)
                on_batch(header)
                position = end
        return position

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes."""
        os.ftruncate(self.handle.fd, size)
        self.size = size

    def delete(self) -> None:
        """Delete the segment's files. A response that is still sending its data can finish."""
        self.path.unlink(missing_ok=True)
        self.meta_path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Flush the file to the disk. May run in another thread. Raises OSError."""
        # Clear first, so that messages appended meanwhile count as new.
        self.unsynced = False
        try:
            os.fsync(self.handle.fd)
        except OSError:
            self.unsynced = True
            raise
