"""A partition: its segments, its append time, its producers and its waiting readers.

It appends one checked batch at a time, returns byte ranges for fetches, and finds offsets by time. Retention
removes whole segments; compaction replaces segments by cleaned ones.
"""

from __future__ import annotations

import errno
import itertools
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from fabrictime.log import batch
from fabrictime.log.compact import Cleaned
from fabrictime.log.errors import Code, LogError
from fabrictime.log.producers import Producers
from fabrictime.log.segment import Handle, Segment

log = logging.getLogger(__name__)

_HINTS: Final = 32
_SPACE_ERRORS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


class TopicConfig(NamedTuple):
    """The topic settings that a partition uses; -1 means 'no limit', as in Kafka."""

    compact: bool
    delete: bool
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    max_message_bytes: int
    min_compaction_lag_ms: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float


class Appended(NamedTuple):
    """The position of an appended batch. `size` is 0 for a duplicate of an earlier batch."""

    base_offset: int
    append_ms: int
    size: int


class Range(NamedTuple):
    """A range of bytes in a segment file that is sent as the result of a fetch."""

    handle: Handle
    position: int
    size: int


class Waiter(Protocol):
    """A waiting fetch that is notified of new data."""

    def more(self, size: int) -> None:
        """Report that `size` bytes were appended to one of the fetch's partitions."""

    def gone(self) -> None:
        """Report that one of the fetch's partitions was deleted."""


class Partition:
    """One partition's log. Opening it recovers the files after a crash. Not thread-safe.

    Append time is `now_ms()`; as in Kafka, it may step back, and readers follow.
    """

    def __init__(self, directory: Path, config: TopicConfig, now_ms: Callable[[], int]) -> None:
        self.directory = directory
        self.config = config
        self.producers = Producers()
        self.waiters: dict[Waiter, None] = {}
        self.compacting = False
        self._now_ms = now_ms
        self._hints: OrderedDict[int, tuple[Segment, int]] = OrderedDict()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.segments = self._recover()

    def _recover(self) -> list[Segment]:
        for leftover in [*self.directory.glob("*.cleaned"), *self.directory.glob("*.meta-new")]:
            leftover.unlink()
        segments: list[Segment] = []
        end = 0
        paths = sorted(path for path in self.directory.glob("*.log") if path.stem.isdecimal())
        for number, path in enumerate(paths):
            segment = Segment(path)
            if segments and segment.base_offset < end:
                log.warning("%s: dropped, a cleaned segment holds its records", path)
                segment.delete()
                continue
            saved = segment.load_meta()
            if saved is None:
                self._scan(segment, last=number == len(paths) - 1)
            else:
                try:
                    self.producers.load(saved)
                except (TypeError, ValueError) as error:
                    log.warning("%s: producers not usable (%s)", segment.meta_path, error)
            segments.append(segment)
            end = segment.end_offset
        if not segments:
            segments.append(Segment(self._path(0), create=True))
        segments[-1].meta_path.unlink(missing_ok=True)
        return segments

    def _scan(self, segment: Segment, last: bool) -> None:
        """Read a segment that was never closed, and cut off the bytes after its last complete batch."""
        valid = segment.scan(self.producers.note)
        if valid < segment.size:
            log.log(
                logging.WARNING if last else logging.ERROR,
                "%s: %d B after position %d are no whole batch: %s",
                segment.path,
                segment.size - valid,
                valid,
                "cut off" if last else "cut off, later segments kept",
            )
            segment.cut(valid)
        segment.unsynced = True

    def _path(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020d}.log"

    @property
    def start_offset(self) -> int:
        """Offset of the partition's oldest record."""
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """Offset of the next appended record."""
        return self.segments[-1].end_offset

    @property
    def size(self) -> int:
        """Size of all segments on disk, bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def oldest_ms(self) -> int:
        """Append time of the newest record in the oldest segment with records, ms; 0 without records."""
        return next((segment.max_ms for segment in self.segments if segment.size), 0)

    def append(self, view: memoryview) -> Appended:
        """Check, stamp and write one batch; the bytes in `view` are changed.

        Raises LogError; with KAFKA_STORAGE_ERROR, the disk is full and the batch is not in the log.
        """
        header = batch.check(view, self.config.max_message_bytes)
        if header.size > self.config.segment_bytes:
            raise LogError(
                Code.RECORD_LIST_TOO_LARGE,
                f"record batch of {header.size} B, a segment holds {self.config.segment_bytes}",
            )
        if self.config.compact:
            batch.require_keys(view, header)
        if header.producer_id >= 0:
            earlier = self.producers.check(header)
            if earlier is not None:
                return Appended(earlier.base_offset, earlier.append_ms, 0)
        append_ms = self._now_ms()
        active = self.segments[-1]
        try:
            if active.size and (
                active.size + len(view) > self.config.segment_bytes
                or append_ms - active.first_ms >= self.config.segment_ms
            ):
                active = self.roll()
            base_offset = active.end_offset
            batch.stamp(view, base_offset, append_ms)
            position = active.append(view)
        except OSError as error:
            kind = "no room" if error.errno in _SPACE_ERRORS else "write failed"
            raise LogError(Code.KAFKA_STORAGE_ERROR, f"{self.directory}: {kind}: {error.strerror}") from error
        stamped = header._replace(base_offset=base_offset, max_timestamp=append_ms)
        active.note(stamped, position)
        self.producers.note(stamped)
        for waiter in tuple(self.waiters):
            waiter.more(len(view))
        return Appended(base_offset, append_ms, len(view))

    def roll(self) -> Segment:
        """Close the active segment, open the next one and return it. Raises OSError."""
        active = self.segments[-1]
        following = Segment(self._path(active.end_offset), create=True)
        active.save_meta(self.producers.dump())
        self.segments.append(following)
        return following

    def _segment_at(self, offset: int) -> int:
        return max(bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)

    def available(self, offset: int, enough: int) -> int:
        """Return about how many bytes there are from `offset` on; the count stops at `enough`."""
        if offset >= self.end_offset:
            return 0
        available_bytes = 0
        for segment in self.segments[self._segment_at(offset) :]:
            if segment.size and offset < segment.end_offset:
                position = 0
                if offset > segment.base_offset:
                    position = self._locate(segment, offset) or 0
                available_bytes += segment.size - position
            if available_bytes >= enough:
                break
        return available_bytes

    def _locate(self, segment: Segment, offset: int) -> int | None:
        hint = self._hints.get(offset)
        if hint is not None and hint[0] is segment and hint[1] < segment.size:
            return hint[1]
        position = segment.locate(offset)
        if position is not None:
            self._hint(offset, segment, position)
        return position

    def _hint(self, offset: int, segment: Segment, position: int) -> None:
        self._hints[offset] = (segment, position)
        if len(self._hints) > _HINTS:
            self._hints.popitem(last=False)

    def read(self, offset: int, max_bytes: int) -> Range | None:
        """Return the bytes to send from `offset` on: whole batches, at least one; None at the end of the log.

        Raises LogError OFFSET_OUT_OF_RANGE.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise LogError(
                Code.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, there are {self.start_offset} to {self.end_offset}",
            )
        for segment in self.segments[self._segment_at(offset) :]:
            position = self._locate(segment, offset)
            if position is not None:
                end = segment.range_end(position, max_bytes)
                if end == segment.size:
                    self._hint(segment.end_offset, segment, end)
                return Range(segment.handle, position, end - position)
        return None

    def find_time(self, time_ms: int) -> tuple[int, int] | None:
        """Return (offset, time) of the first batch stamped at or after `time_ms`; None if no batch is."""
        for segment in self.segments:
            offset_time = segment.find_time(time_ms)
            if offset_time is not None:
                return max(offset_time[0], self.start_offset), offset_time[1]
        return None

    def expire(self, now_ms: int) -> int:
        """Remove the segments that exceed the topic's retention. Return their size in bytes. Raises
        OSError.
        """
        self.producers.expire(now_ms)
        if not self.config.delete or self.compacting:
            return 0
        config, freed = self.config, 0
        active = self.segments[-1]
        if config.retention_ms >= 0 and active.size and active.max_ms < now_ms - config.retention_ms:
            self.roll()
        while len(self.segments) > 1:
            oldest = self.segments[0]
            too_old = config.retention_ms >= 0 and oldest.max_ms < now_ms - config.retention_ms
            too_many = config.retention_bytes >= 0 and self.size - oldest.size >= config.retention_bytes
            if not (too_old or too_many):
                break
            freed += self.drop_oldest()
        return freed

    def drop_oldest(self) -> int:
        """Remove the oldest closed segment and return its size, bytes."""
        oldest = self.segments.pop(0)
        oldest.delete()
        return oldest.size

    def cleanable(self, now_ms: int, min_bytes: int) -> list[Segment]:
        """Return the closed segments for a compaction pass; empty if a pass would free too little."""
        config = self.config
        if not config.compact or self.compacting:
            return []
        before_ms = now_ms - config.min_compaction_lag_ms
        dirty = sum(s.size for s in self.segments if not s.cleaned and s.max_ms <= before_ms)
        if dirty < max(min_bytes, 1, config.min_cleanable_dirty_ratio * self.size):
            return []
        active = self.segments[-1]
        if active.max_ms <= before_ms and active.size >= max(min_bytes, 1):
            self.roll()
        segments = list(itertools.takewhile(lambda s: s.max_ms <= before_ms, self.segments[:-1]))
        return [] if all(segment.cleaned for segment in segments) else segments

    def replace(self, cleaned: Cleaned) -> None:
        """Replace segments by the cleaned file that was made from these segments. Raises OSError."""
        old, fresh = cleaned.sources, cleaned.segment
        first = next((at for at, segment in enumerate(self.segments) if segment is old[0]), None)
        if first is None or self.segments[first : first + len(old)] != old:
            fresh.path.unlink(missing_ok=True)
            return
        producers = old[-1].saved_producers()
        for segment in old:
            segment.meta_path.unlink(missing_ok=True)
        fresh.path = fresh.path.replace(old[0].path)
        for segment in old[1:]:
            segment.delete()
        fresh.end_offset = old[-1].end_offset
        fresh.first_ms, fresh.max_ms = old[0].first_ms, old[-1].max_ms
        fresh.cleaned = cleaned.is_complete
        fresh.save_meta(producers)
        self.segments[first : first + len(old)] = [fresh]
        self._hints.clear()

    def close(self) -> None:
        """Store also the index of the active segment, so that the next start need not read the segment.

        Release the files: each file is closed once no response is sending it.
        """
        if self.segments[-1].size:
            self.segments[-1].save_meta(self.producers.dump())
        self.segments = []
        self._hints.clear()

    def wake(self) -> None:
        """Notify all waiting readers that this partition was deleted."""
        for waiter in tuple(self.waiters):
            waiter.gone()


DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "",
    "segment.ms": "",
}
"""Default topic configuration. An empty value means that LogSettings sets it."""


def parse_config(config: Mapping[str, str]) -> TopicConfig:
    """Return the settings from a complete topic configuration. Raises LogError INVALID_CONFIG."""

    def number(name: str, low: int, high: int = 2**63 - 1) -> int:
        try:
            value = int(config[name])
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise LogError(Code.INVALID_CONFIG, f"{name}={config[name]}: expected {low} to {high}")
        return value

    policy = {part.strip() for part in config["cleanup.policy"].split(",")}
    if not policy <= {"compact", "delete"}:
        raise LogError(
            Code.INVALID_CONFIG,
            f"cleanup.policy={config['cleanup.policy']}: expected compact, delete or both",
        )
    if config["message.timestamp.type"] != "LogAppendTime":
        raise LogError(
            Code.INVALID_CONFIG,
            f"message.timestamp.type={config['message.timestamp.type']}: this log stamps LogAppendTime only",
        )
    if config["compression.type"] != "producer":
        raise LogError(
            Code.INVALID_CONFIG,
            f"compression.type={config['compression.type']}: batches are kept as produced",
        )
    try:
        ratio = float(config["min.cleanable.dirty.ratio"])
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise LogError(
            Code.INVALID_CONFIG,
            f"min.cleanable.dirty.ratio={config['min.cleanable.dirty.ratio']}: expected 0 to 1",
        )
    number("min.insync.replicas", 1, 1)
    return TopicConfig(
        compact="compact" in policy,
        delete="delete" in policy,
        retention_ms=number("retention.ms", -1),
        retention_bytes=number("retention.bytes", -1),
        segment_bytes=number("segment.bytes", 14, 2**31 - 1),
        segment_ms=number("segment.ms", 1),
        max_message_bytes=number("max.message.bytes", 0, 2**31 - 1),
        min_compaction_lag_ms=number("min.compaction.lag.ms", 0),
        delete_retention_ms=number("delete.retention.ms", 0),
        min_cleanable_dirty_ratio=ratio,
    )
