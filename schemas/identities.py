"""Defines the identity of each record: the fields that distinguish it from other records of its topic.

Delivery is at least once. A record that is published again has the same identity, and replaces the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from schemas import topics
from schemas.codec import raw_schema
from schemas.topics import Topic

IDENTITY: Final[Mapping[str, tuple[str, ...]]] = {
    topics.DELAYS.name: ("nic", "window", "part"),
    topics.CLOCK_OFFSETS.name: ("shard", "window", "part"),
    topics.CLOCK_FITS.name: ("shard", "source", "window", "part"),
    topics.INVENTORY.name: ("nic",),
    topics.REJECTS.name: ("topic", "partition", "offset", "reader"),
    topics.LINK_HEALTH.name: ("subject", "seq"),
    topics.QUEUES.name: ("shard", "window", "part"),
    topics.PATH_QUEUEING.name: ("shard", "source", "first_offset", "part"),
    topics.CONTENTION.name: ("window_id", "update"),
    topics.ALERTS.name: ("alert_id", "update"),
    topics.ALERT_NOTES.name: ("subject", "updated_ns"),
    topics.FLOWS.name: ("host", "boot", "report"),
    topics.PATHS.name: ("nic", "peer"),
    topics.DECISIONS.name: ("decision_id",),
    topics.ACTIONS.name: ("decision_id", "outcome"),
    topics.AUDIT_RUNS.name: ("run",),
    topics.AUDIT.name: ("run", "host", "check"),
    topics.REPAIRS.name: ("repair_id", "state"),
    topics.POLICY_CYCLES.name: ("shard", "epoch", "first_cycle"),
    topics.FALLBACKS.name: ("host", "shard", "epoch", "seq"),
    topics.DIAGNOSES.name: ("job", "begin_ns", "number"),
    topics.COLLECTIVES.name: ("host", "boot", "process", "batch"),
}
"""The fields that identify a record, by topic."""


def identity_of(topic: Topic, record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of the fields that identify a record of a topic."""
    return tuple(record[field] for field in IDENTITY[topic.name])


def has_local_facts(topic: Topic) -> bool:
    """Return whether a topic's records have fields of local facts, which `comparable` leaves out."""
    return "'replay': 'exempt'" in repr(raw_schema(topic.record))


def comparable(topic: Topic, record: Mapping[str, Any]) -> Any:
    """Return a record without the fields that hold local facts, which a replay need not reproduce."""
    return _comparable(raw_schema(topic.record), record)


def _comparable(kind: Any, value: Any) -> Any:
    if isinstance(kind, list):
        kind = next((variant for variant in kind if not isinstance(variant, str)), None)
    if value is None or not isinstance(kind, Mapping):
        return value
    if kind["type"] == "array":
        return [_comparable(kind["items"], item) for item in value]
    if kind["type"] == "record":
        fields = [field for field in kind["fields"] if field.get("replay") != "exempt"]
        return {field["name"]: _comparable(field["type"], value[field["name"]]) for field in fields}
    return value
