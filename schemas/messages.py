"""Decodes messages, and checks that each has the key that follows from its record.

A record with a wrong key would replace another record in a compacted topic, or reach a worker that does not
own it. So every reader refuses such a message.
"""

from __future__ import annotations

from typing import Any, Final

from schemas import codec
from schemas.checks import BadRecord
from schemas.topics import (
    ACTIONS,
    ACTUATORS,
    ALERT_NOTES,
    ALERTS,
    AUDIT,
    AUDIT_RUNS,
    CLOCK_FITS,
    CLOCK_OFFSETS,
    COLLECTIVES,
    CONFIG,
    CONTENTION,
    DECISIONS,
    DELAYS,
    DIAGNOSES,
    FALLBACKS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    LINKS,
    PATH_QUEUEING,
    PATHS,
    POLICY_CYCLES,
    PROBE_SCHEDULES,
    PROBES,
    QUEUES,
    REJECTS,
    REPAIRS,
    STEPS,
    TRUTH,
    R,
    Topic,
)

_KEY_FORMATS: Final[dict[str, str]] = {
    **dict.fromkeys((PROBES.name, INVENTORY.name, DELAYS.name, PROBE_SCHEDULES.name), "{nic}"),
    **dict.fromkeys((PATHS.name, FLOW_ROUTES.name), "{nic}>{peer}"),
    **dict.fromkeys(
        (CLOCK_FITS.name, LINKS.name, PATH_QUEUEING.name, QUEUES.name, POLICY_CYCLES.name, TRUTH.name),
        "{shard}",
    ),
    CLOCK_OFFSETS.name: "{shard}/{part}",
    **dict.fromkeys((LINK_HEALTH.name, ALERT_NOTES.name), "{subject}"),
    ALERTS.name: "{alert_id}",
    CONTENTION.name: "{link}",
    **dict.fromkeys((FLOWS.name, DECISIONS.name, FALLBACKS.name, ACTIONS.name, CONFIG.name), "{host}"),
    **dict.fromkeys((COLLECTIVES.name, DIAGNOSES.name), "{job}"),
    STEPS.name: "{stage}/{partition}",
    ACTUATORS.name: "{actuator}",
    **dict.fromkeys((AUDIT_RUNS.name, AUDIT.name), "{run}"),
    REJECTS.name: "{topic}",
    REPAIRS.name: "{repair_id}",
}


def key_of(topic: Topic[Any], record: Any) -> str:
    """Return the key that a record of a topic must have."""
    return _KEY_FORMATS[topic.name].format_map(record)


def check_key(topic: Topic[Any], key: bytes | str | None, record: Any) -> None:
    """Raise BadRecord if `key` is not the key that `key_of` gives for the record."""
    expected = key_of(topic, record)
    key_text = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    if key_text != expected:
        raise BadRecord("WRONG_KEY", f"{topic.record}: key {key_text!r:.120}, expected {expected!r:.200}")


def decode_message(
    topic: Topic[R], key: bytes | str | None, value: bytes, registry: codec.Registry | None = None
) -> R:
    """Decode and check a message's value, and check its key by `check_key`. Raises BadRecord."""
    record = codec.decode(value, topic.type, registry)
    check_key(topic, key, record)
    return record
