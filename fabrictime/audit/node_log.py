"""Reads records about nodes from the log: audit results, and repairs."""

from __future__ import annotations

from actuators.nodes.fitness import AuditHistory
from schemas import codec
from schemas.kafka.reader import BEGINNING, TopicReader, back
from schemas.kafka.settings import KafkaSettings
from schemas.records import Repair
from schemas.topics import AUDIT, REPAIRS

MARGIN_S = 3600.0
"""Results are read from this much earlier, so that all results of a run are read if its last is."""


def read_audits(
    cluster: KafkaSettings, run: str | None, max_age_s: float, registry: codec.Registry | None = None
) -> AuditHistory:
    """Read the audit results of `run`, or of the last `max_age_s` s if it is None. Raises LogUnavailable."""
    history = AuditHistory(run)
    start = BEGINNING if run is not None else back(max_age_s + MARGIN_S)
    with TopicReader.open(cluster, {AUDIT: start}) as reader:
        for message, record in reader.decoded(reader.read_to_end(), registry):
            if record is not None:
                history.take(record, message.append_ns)
    return history


def read_repairs(cluster: KafkaSettings, registry: codec.Registry | None = None) -> list[Repair]:
    """Read the newest record of each repair, the newest repair first. Raises LogUnavailable."""
    repairs: dict[str, Repair] = {}
    with TopicReader.open(cluster, {REPAIRS: BEGINNING}) as reader:
        for message, record in reader.decoded(reader.read_to_end(), registry):
            repairs.pop(message.key, None)
            if record is not None:
                repairs[message.key] = record
    return sorted(repairs.values(), key=lambda repair: -repair["opened_ns"])
