"""Fabric time now, for commands that compare records with the present.

The system clock gives it, unless the log's fleet is simulated and its time is behind.
"""

from __future__ import annotations

import time

from schemas import codec
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.messages import decode_message
from schemas.simulation_pace import SimulatedTime
from schemas.topics import INVENTORY

__all__ = ["fabric_now_ns"]


def fabric_now_ns(cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> int:
    """Return fabric time, ns since the Unix epoch. Raises ValueError if the log cannot be read."""
    simulated = SimulatedTime()
    with TopicReader.open(cluster, {INVENTORY: BEGINNING}) as reader:
        for message in reader.read_to_end():
            try:
                value = message.value
                nic = None if value is None else decode_message(INVENTORY, message.key, value, registry)
            except codec.BadRecord:
                continue  # the workers reject it
            simulated.take(message.key, nic, message.append_ns)
    now_ns = time.time_ns()
    return now_ns - simulated.lag_ns(now_ns)
