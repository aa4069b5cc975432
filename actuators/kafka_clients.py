"""The Kafka client configuration and schema registry that the actuator's services share."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import KafkaError

from actuators.settings import ActuatorSettings
from schemas import codec

__all__ = ["kafka_client", "registry_of"]

_log = logging.getLogger(__name__)


def kafka_client(settings: ActuatorSettings) -> dict[str, Any]:
    """Return the configuration of a Kafka client."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "broker.address.family": "any",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
        "statistics.interval.ms": 0,
        "error_cb": _on_error,
    }


def registry_of(settings: ActuatorSettings) -> codec.Registry | None:
    """Return the schema registry; None if none is configured."""
    if settings.schema_registry_url is None:
        return None
    from schemas.registry import ConfluentRegistry

    return ConfluentRegistry(settings.schema_registry_url)


_last_warned_s: dict[str, float] = {}


def _on_error(error: KafkaError) -> None:
    """Log an error of librdkafka, at most every 10 s for the same text."""
    line, now_s = str(error), time.monotonic()
    if now_s - _last_warned_s.get(line, -1e9) > 10:
        if len(_last_warned_s) > 100:
            _last_warned_s.clear()
        _last_warned_s[line] = now_s
        _log.warning("log: %s", line)
