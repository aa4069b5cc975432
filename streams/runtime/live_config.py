"""What is told live, as a read-only view for every stage: thresholds, latency rules, mode.

In: the compacted topic `fabric.config`, one `ActuatorConfig` of each host and of `*`. Out: `LiveConfig`.
A host's own record goes before that of `*`, value by value. Knows no Kafka.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from schemas import codec
from schemas.sanity import MAX_NS
from schemas.topics import CONFIG
from streams.runtime.thresholds import Thresholds

__all__ = ["EVERYONE", "LiveConfig"]

log = logging.getLogger(__name__)

EVERYONE: Final = "*"


class LiveConfig:
    """Host to its newest `ActuatorConfig`."""

    topic: Final = CONFIG.name

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._records: dict[str, dict[str, Any]] = {}
        self._thresholds: dict[str, Thresholds] = {}

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        registry: codec.Registry | None = None,
        append_ns: int = MAX_NS,
    ) -> None:
        """Take one message; None as its value takes the key's record back. Raises BadRecord."""
        if value is None:
            if key is not None and self._records.pop(key.decode("utf-8", "replace"), None) is not None:
                self._changed()
            return
        record = codec.decode(value, CONFIG.record, registry)
        if key != record["host"].encode():
            raise codec.BadRecord("WRONG_KEY", f"key {key!r}, expected the record's host {record['host']!r}")
        self._records[record["host"]] = record
        for refused in Thresholds.of([record])[1]:
            log.warning("%s: %s, version %d: %s", self.topic, record["host"], record["version"], refused)
        self._changed()

    def _changed(self) -> None:
        self._thresholds.clear()
        self.version += 1

    def all(self) -> dict[str, dict[str, Any]]:
        """Return every record in force, by key."""
        return dict(self._records)

    def records(self, host: str = EVERYONE) -> list[dict[str, Any]]:
        """Return the records that count for a host, the weaker first."""
        names = (EVERYONE,) if host == EVERYONE else (EVERYONE, host)
        return [self._records[name] for name in names if name in self._records]

    def thresholds(self, host: str = EVERYONE) -> Thresholds:
        """Return the thresholds in force at a host; what judges a whole shard takes those of everyone."""
        found = self._thresholds.get(host)
        if found is None:
            found = self._thresholds[host] = Thresholds.of(self.records(host))[0]
        return found

    def latency_rules(self) -> list[dict[str, Any]]:
        """Return the promises to watch, of all records, by name; the later of one name stands."""
        rules = {
            rule["name"]: rule
            for name in sorted(self._records, key=lambda name: (name != EVERYONE, name))
            for rule in self._records[name]["latency_rules"]
        }
        return [rules[name] for name in sorted(rules)]
