"""Compacts closed segments: keeps the newest record of every key and drops old tombstones.

Records keep their offsets and times in the new files. Nothing writes to closed segments, so compaction runs
in a thread.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from fabrictime.log.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    Header,
    Record,
    filtered,
    inflate,
    read_header,
    records,
)
from fabrictime.log.segment import Segment

log = logging.getLogger(__name__)

MAX_KEY_BYTES: Final = 48 * 1024 * 1024
_YIELD_S: Final = 0.0005


@dataclass(frozen=True)
class Cleaned:
    """A cleaned file, under a name that recovery ignores, and the segments that this file replaces."""

    segment: Segment
    sources: list[Segment]
    is_complete: bool
    """False if the pass stopped in this file for lack of memory. The next pass then reads its keys again."""


def clean(
    segments: list[Segment], max_keys: int, segment_bytes: int, tombstones_before_ms: int
) -> list[Cleaned]:
    """Rewrite `segments` and return the cleaned files. Tombstones stamped before `tombstones_before_ms` are
    dropped. Raises OSError.

    A pass holds at most `max_keys` keys in memory. A cleaned file replaces up to `segment_bytes` of segments.
    """
    newest: dict[bytes, int] = {}
    key_bytes = 0
    known_to = segments[-1].end_offset
    for segment in segments:
        if segment.cleaned:
            continue
        for header, view in _batches(segment):
            for offset, record in _readable(header, view):
                if record.key is not None:
                    if record.key not in newest:
                        key_bytes += len(record.key)
                    newest[record.key] = offset
            if len(newest) >= max_keys or key_bytes >= MAX_KEY_BYTES:
                known_to = header.last_offset + 1
                break
        else:
            continue
        log.warning("%s: more keys than one pass remembers, cleaned up to offset %d", segment.path, known_to)
        break

    def keep(header: Header, offset: int, record: Record) -> bool:
        if record.key is None or offset >= known_to:
            return True
        if newest.get(record.key, offset) > offset:
            return False
        return record.has_value or header.max_timestamp >= tombstones_before_ms

    reached = [segment for segment in segments if segment.base_offset < known_to]
    return [
        _rewrite(group, keep, group[-1].end_offset <= known_to) for group in _groups(reached, segment_bytes)
    ]


def _groups(segments: list[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Yield groups of neighbouring segments that together fit into one file."""
    group: list[Segment] = []
    for segment in segments:
        if group and (
            sum(other.size for other in group) + segment.size > segment_bytes
            or segment.end_offset - group[0].base_offset > 2**31 - 1
        ):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def _batches(segment: Segment) -> Iterator[tuple[Header, memoryview]]:
    if not segment.size:
        return
    with (
        mmap.mmap(segment.handle.fd, segment.size, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        position = 0
        while position + HEADER_BYTES <= segment.size:
            header = read_header(view, position)
            # A copy: views that outlive the mapping would keep it open.
            yield header, memoryview(bytes(view[position : position + header.size]))
            position += header.size
            time.sleep(_YIELD_S if header.size > 65536 else 0)


def _readable(header: Header, view: memoryview) -> Iterator[tuple[int, Record]]:
    try:
        payload = inflate(view[HEADER_BYTES:], header.attributes & CODEC_MASK)
        for record in records(payload, header.record_count):
            yield header.base_offset + record.offset_delta, record
    except (ValueError, IndexError) as error:
        log.warning("batch at offset %d: %s: kept as it is", header.base_offset, error)


def _rewrite(group: list[Segment], keep: Callable[[Header, int, Record], bool], is_complete: bool) -> Cleaned:
    path = group[0].path.with_suffix(".cleaned")
    with path.open("wb") as output:
        for segment in group:
            for header, view in _batches(segment):
                left: bytes | memoryview | None
                try:
                    left = filtered(view, partial(keep, header))
                except (ValueError, IndexError):
                    left = view
                if left is not None:
                    output.write(left)
        output.flush()
        os.fsync(output.fileno())
    fresh = Segment(path)
    fresh.scan(lambda header: None)
    return Cleaned(fresh, group, is_complete)
