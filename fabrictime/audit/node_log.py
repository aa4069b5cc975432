"""Reads records about nodes from the log: audit results, limits, and reports of earlier actions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from actuators.nodes.fitness import AuditHistory
from schemas import codec
from schemas.kafka.reader import BEGINNING, Start, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.limits import Limits
from schemas.records import ActionOutcome, ActuatorConfig
from schemas.topics import ACTIONS, AUDIT, CONFIG, Topic

MARGIN_S = 3600.0
"""Results are read from this much earlier, so that all results of a run are read if its last is."""


@dataclass(slots=True)
class NodeLog:
    """Audit results, limits and reports of earlier actions, up to the end of the log at `read_ns`."""

    audits: AuditHistory
    configs: dict[str, ActuatorConfig]
    reported: set[tuple[str, str]]
    """(Decision id, outcome) of the reports."""
    read_ns: int

    def limits_of(self, host: str) -> Limits:
        """Return the limits of a host."""
        return Limits.of(self.configs, host)

    def is_reported(self, decision_id: str, outcome: ActionOutcome) -> bool:
        """Return whether the log has a report of this decision and outcome."""
        return (decision_id, outcome) in self.reported

    @classmethod
    def read(
        cls, cluster: KafkaSettings, max_age_s: float, registry: codec.Registry | None = None
    ) -> NodeLog:
        """Read the log up to its end. Raises LogUnavailable."""
        recent = back(max_age_s + MARGIN_S)
        node_log = cls(AuditHistory(), {}, set(), time.time_ns())
        starts: dict[Topic[Any], Start] = {AUDIT: recent, CONFIG: BEGINNING, ACTIONS: recent}
        with TopicReader.open(cluster, starts) as reader:
            for message, record in reader.decoded(reader.read_to_end(), registry):
                if message.topic == CONFIG.name:
                    node_log._take_config(message.key, record)
                elif record is not None and message.topic == ACTIONS.name:
                    node_log.reported.add((record["decision_id"], record["outcome"]))
                elif record is not None:
                    node_log.audits.take(record, message.append_ns)
        return node_log

    def _take_config(self, key: str, record: ActuatorConfig | None) -> None:
        if record is None:
            self.configs.pop(key, None)
        else:
            self.configs[key] = record


def read_audits(
    cluster: KafkaSettings, run: str | None, max_age_s: float, registry: codec.Registry | None = None
) -> AuditHistory:
    """Read the audit results of `run`, or of the last `max_age_s` if it is None. Raises LogUnavailable."""
    history = AuditHistory(run)
    start = BEGINNING if run is not None else back(max_age_s + MARGIN_S)
    with TopicReader.open(cluster, {AUDIT: start}) as reader:
        for message, record in reader.decoded(reader.read_to_end(), registry):
            if record is not None:
                history.take(record, message.append_ns)
    return history
