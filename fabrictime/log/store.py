"""The log's directory: its lock, its topics, and the producer ids that it has assigned.

`topics/NAME/topic.json` holds a topic's partitions and configuration. A topic folder without it is removed.
`meta.json` holds the cluster's id, and `producer-ids` the start of the next free block of producer ids.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fabrictime.log.append_clock import AppendClock
from fabrictime.log.errors import AlreadyRunning, Code, LogError
from fabrictime.log.partition import DEFAULTS, Partition, TopicConfig, parse_config
from fabrictime.log.segment import Segment
from fabrictime.log.settings import LogSettings
from schemas.topics import TOPICS, Partitions

log = logging.getLogger(__name__)

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ID_BLOCK: Final = 1000
_CHECK_SPACE_BYTES: Final = 16 * 1024 * 1024
MAX_PARTITIONS: Final = 10_000


@dataclass
class TopicLog:
    """A topic and its partitions; `overrides` holds the settings that differ from the defaults."""

    name: str
    overrides: dict[str, str]
    config: TopicConfig
    partitions: list[Partition]


class DirectoryLock:
    """An exclusive lock on a directory; the lock file names its process. The lock ends with the process."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises AlreadyRunning if another process holds it, OSError if it cannot be
        written.
        """
        path = directory / "lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The directory is locked too: a file that somebody removed locks nothing for the next process.
        self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for fd in (self._directory_fd, self._fd):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            os.close(self._directory_fd)
            raise AlreadyRunning(f"log directory {directory} is held by process {holder}") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
        os.close(self._directory_fd)


class Store:
    """All topics of one directory. Opening it takes the lock and recovers the data. Not thread-safe."""

    def __init__(self, settings: LogSettings, now_ms: Callable[[], int] | None = None) -> None:
        """Open the directory. Raises AlreadyRunning, OSError, or ValueError for a bad topic folder."""
        self.settings = settings
        self.now_ms = AppendClock() if now_ms is None else now_ms
        self.directory = settings.directory
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = DirectoryLock(self.directory)
        try:
            self.cluster_id = self._open_meta()
            self._next_id = self._id_limit = 0
            self._space_bytes_left = 0
            self._no_space = ""
            self.topics: dict[str, TopicLog] = {}
            self._open_topics()
            if settings.create_topics:
                self._create_ours()
            self.check_space()
        except BaseException:
            self._lock.release()
            raise

    # -- state beside the topics

    def _open_meta(self) -> str:
        path = self.directory / "meta.json"
        if not path.exists():
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            _write(path, json.dumps({"version": 1, "cluster_id": cluster_id}))
        meta = json.loads(path.read_text())
        if meta.get("version") != 1:
            raise ValueError(f"{path}: version {meta.get('version')}, expected 1")
        return str(meta["cluster_id"])

    def producer_id(self) -> int:
        """Return a producer id that was never assigned before. Raises OSError."""
        if self._next_id >= self._id_limit:
            path = self.directory / "producer-ids"
            start = int(path.read_text()) if path.exists() else 0
            _write(path, str(start + _ID_BLOCK))
            self._next_id, self._id_limit = start, start + _ID_BLOCK
        self._next_id += 1
        return self._next_id - 1

    # -- topics

    def _open_topics(self) -> None:
        shutil.rmtree(self.directory / "trash", ignore_errors=True)
        folder = self.directory / "topics"
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(folder.iterdir()):
            if not (path / "topic.json").exists():
                log.warning("%s: a topic that was never finished, removed", path)
                shutil.rmtree(path)
                continue
            state = json.loads((path / "topic.json").read_text())
            overrides = {str(key): str(value) for key, value in state["config"].items()}
            config = self._parse(overrides)
            partitions = [
                Partition(path / str(number), config, self.now_ms)
                for number in range(int(state["partitions"]))
            ]
            self.topics[path.name] = TopicLog(path.name, overrides, config, partitions)

    def _create_ours(self) -> None:
        for topic in TOPICS.values():
            count = self.settings.partitions if topic.partitions is Partitions.DATA else 1
            hours = self.settings.retention_hours.get(topic.retention_setting or "")
            config = topic.config(retention_hours=hours)
            stored_topic = self.topics.get(topic.name)
            if stored_topic is None:
                self.create_topic(topic.name, count, config)
                continue
            if stored_topic.overrides != config:
                self.configure(topic.name, config)
            if len(stored_topic.partitions) < count:
                log.info("%s: %d partitions, now %d", topic.name, len(stored_topic.partitions), count)
                self._grow(stored_topic, count)
            elif len(stored_topic.partitions) > count:
                log.warning(
                    "%s: keeps its %d partitions, set are %d", topic.name, len(stored_topic.partitions), count
                )

    def full_config(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """Return a topic's whole configuration. Raises LogError INVALID_CONFIG if a key is unknown."""
        settings = self.settings
        config = dict(DEFAULTS) | {
            "max.message.bytes": str(settings.max_message_bytes),
            "segment.bytes": str(settings.segment_bytes),
            "segment.ms": str(settings.segment_ms),
        }
        for key, value in overrides.items():
            if key not in config:
                raise LogError(Code.INVALID_CONFIG, f"unknown topic config {key}")
            config[key] = value
        return config

    def check_config(self, overrides: Mapping[str, str]) -> None:
        """Raise LogError if `overrides` is not a valid topic configuration."""
        self._parse(overrides)

    def _parse(self, overrides: Mapping[str, str]) -> TopicConfig:
        return parse_config(self.full_config(overrides))

    def check_new(self, name: str, partitions: int, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the configuration for a new topic. Raises LogError if the topic could not be created."""
        if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
            raise LogError(
                Code.INVALID_TOPIC, f"topic {name[:260]!r}: expected 1 to 249 of a-z A-Z 0-9 . _ -"
            )
        if name in self.topics:
            raise LogError(Code.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
        total = sum(len(topic.partitions) for topic in self.topics.values())
        if not 1 <= partitions <= MAX_PARTITIONS - total:
            raise LogError(
                Code.INVALID_PARTITIONS, f"{partitions} partitions: expected 1 to {MAX_PARTITIONS - total}"
            )
        return self._parse(overrides)

    def create_topic(self, name: str, partitions: int, overrides: Mapping[str, str]) -> TopicLog:
        """Create a topic. Raises LogError, with code KAFKA_STORAGE_ERROR if the disk cannot be written."""
        config = self.check_new(name, partitions, overrides)
        path = self.directory / "topics" / name
        try:
            logs = [Partition(path / str(number), config, self.now_ms) for number in range(partitions)]
            topic = TopicLog(name, dict(overrides), config, logs)
            self._save(topic)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise LogError(Code.KAFKA_STORAGE_ERROR, f"{path}: {error.strerror}") from error
        self.topics[name] = topic
        log.info("topic %s created, %d partitions", name, partitions)
        return topic

    def _save(self, topic: TopicLog) -> None:
        state = {"partitions": len(topic.partitions), "config": topic.overrides}
        _write(self.directory / "topics" / topic.name / "topic.json", json.dumps(state))

    def _grow(self, topic: TopicLog, partitions: int) -> None:
        path = self.directory / "topics" / topic.name
        for number in range(len(topic.partitions), partitions):
            topic.partitions.append(Partition(path / str(number), topic.config, self.now_ms))
        self._save(topic)

    def configure(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace the overrides of a topic's configuration. Raises LogError if they are invalid or not
        saved.
        """
        topic = self.topics[name]
        config = self._parse(overrides)
        before = topic.overrides
        topic.overrides = dict(overrides)
        try:
            self._save(topic)
        except OSError as error:
            topic.overrides = before
            raise LogError(Code.KAFKA_STORAGE_ERROR, f"{name}: {error.strerror}") from error
        topic.config = config
        for partition in topic.partitions:
            partition.config = config
        log.info("topic %s configured: %s", name, topic.overrides)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises LogError if it does not exist."""
        topic = self.topics.get(name)
        if topic is None:
            raise LogError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name[:260]!r}: no such topic")
        trash = self.directory / "trash"
        try:
            trash.mkdir(exist_ok=True)
            (self.directory / "topics" / name).rename(trash / uuid.uuid4().hex)
        except OSError as error:
            raise LogError(Code.KAFKA_STORAGE_ERROR, f"{name}: {error.strerror}") from error
        del self.topics[name]
        for partition in topic.partitions:
            partition.wake()
        shutil.rmtree(trash, ignore_errors=True)
        log.info("topic %s deleted", name)

    def partition(self, topic: str, number: int) -> Partition:
        """Return a partition. Raises LogError UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        stored_topic = self.topics.get(topic)
        if stored_topic is None or not 0 <= number < len(stored_topic.partitions):
            raise LogError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{topic[:260]}-{number}: no such partition")
        return stored_topic.partitions[number]

    # -- free space

    @property
    def no_space(self) -> str:
        """Reason why messages are refused; empty while there is space."""
        return self._no_space

    def check_space(self) -> None:
        """Check the file system's free space, and refuse or accept messages. Log each change in one line."""
        state = os.statvfs(self.directory)
        free = state.f_bavail * state.f_frsize
        self._space_bytes_left = _CHECK_SPACE_BYTES
        min_ = self.settings.min_free_bytes
        if free < min_:
            self.out_of_space(f"{free} B free under {self.directory}, min_free_bytes is {min_}")
        elif self._no_space and free >= min_ + self.settings.max_message_bytes:
            log.warning("there is room again (%d B free): messages are taken again", free)
            self._no_space = ""

    def out_of_space(self, reason: str) -> None:
        """Refuse messages until there is space again, and log the reason once."""
        if not self._no_space:
            log.error("no room: %s: messages are refused, what was acknowledged stays", reason)
        self._no_space = reason

    def require_space(self, size: int) -> None:
        """Count `size` bytes that will be written. Raises LogError KAFKA_STORAGE_ERROR if there is no
        space.
        """
        self._space_bytes_left -= size
        if self._space_bytes_left < 0:
            self.check_space()
        if self._no_space:
            raise LogError(Code.KAFKA_STORAGE_ERROR, f"no room: {self._no_space}")

    # -- upkeep

    def partitions(self) -> list[Partition]:
        """Return every partition of every topic."""
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def expire(self) -> None:
        """Apply the retention of every topic, and the size limit of all topics together. Raises OSError."""
        now_ms = self.now_ms()
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                freed = partition.expire(now_ms)
                if freed:
                    log.info("%s-%d: retention removed %d B", topic.name, number, freed)
        total = sum(partition.size for partition in self.partitions())
        while total > self.settings.total_bytes and (oldest := self._oldest_deletable()) is not None:
            if len(oldest.segments) == 1:
                oldest.roll()
            freed = oldest.drop_oldest()
            total -= freed
            log.info("%s: total_bytes removed %d B", oldest.directory, freed)

    def _oldest_deletable(self) -> Partition | None:
        """Return the partition with the oldest deletable segment; None without any. Compacted topics keep
        their data.
        """
        topics = [t for t in self.topics.values() if t.config.delete and not t.config.compact]
        candidates = [p for topic in topics for p in topic.partitions if p.size and not p.compacting]
        return min(candidates, key=lambda partition: partition.oldest_ms, default=None)

    def unsynced(self) -> list[Segment]:
        """Return the segments with bytes that are not yet flushed to the disk."""
        return [
            segment for partition in self.partitions() for segment in partition.segments if segment.unsynced
        ]

    def close(self) -> None:
        """Write the state that speeds up the next start, and release the directory."""
        for partition in self.partitions():
            partition.close()
        with contextlib.suppress(OSError):
            self._lock.release()


def _write(path: Path, text: str) -> None:
    """Write a small file atomically: a crash leaves the old or the new content. Raises OSError."""
    temporary = path.with_suffix(path.suffix + ".new")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
