"""A global table of the live configuration: thresholds, latency SLOs and mode.

The table is filled from the compacted topic `fabric.config`: one `ActuatorConfig` per host and one for `*`. A
value of a host's own record overrides the value for `*`.
"""

from __future__ import annotations

import logging
from typing import Final

from schemas.records import ActuatorConfig, LatencyRule
from schemas.topics import CONFIG
from streams.runtime.tables import GlobalTable
from streams.runtime.thresholds import Thresholds

log = logging.getLogger(__name__)

EVERYONE: Final = "*"


class LiveConfig(GlobalTable):
    """Maps host to its newest `ActuatorConfig`."""

    topic = CONFIG

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._records: dict[str, ActuatorConfig] = {}
        self._thresholds: dict[str, Thresholds] = {}

    def remove(self, key: str) -> None:
        """Remove the record of a host, or of `*`."""
        if self._records.pop(key, None) is not None:
            self._changed()

    def apply(self, record: ActuatorConfig, append_ns: int) -> None:
        """Replace the configuration of the record's host, or of `*`."""
        self._records[record["host"]] = record
        for refused in Thresholds.of([record])[1]:
            log.warning("%s: %s, version %d: %s", self.topic.name, record["host"], record["version"], refused)
        self._changed()

    def _changed(self) -> None:
        self._thresholds.clear()
        self.version += 1

    def all(self) -> dict[str, ActuatorConfig]:
        """Return every active record, by host or `*`."""
        return dict(self._records)

    def records(self, host: str = EVERYONE) -> list[ActuatorConfig]:
        """Return the records that apply to a host; a later record overrides an earlier one."""
        names = (EVERYONE,) if host == EVERYONE else (EVERYONE, host)
        return [self._records[name] for name in names if name in self._records]

    def thresholds(self, host: str = EVERYONE) -> Thresholds:
        """Return a host's active thresholds; evaluations of a whole shard use the thresholds of key `*`."""
        thresholds = self._thresholds.get(host)
        if thresholds is None:
            thresholds = self._thresholds[host] = Thresholds.of(self.records(host))[0]
        return thresholds

    def latency_rules(self) -> list[LatencyRule]:
        """Return the latency SLOs of all records, sorted by name; if names repeat, the last record counts."""
        rules = {
            rule["name"]: rule
            for name in sorted(self._records, key=lambda name: (name != EVERYONE, name))
            for rule in self._records[name]["latency_rules"]
        }
        return [rules[name] for name in sorted(rules)]
