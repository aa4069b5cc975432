"""Fabric time now, for commands that compare records with the present.

The system clock gives it, unless the log's fleet is simulated and its time is behind.
"""

from __future__ import annotations

import time
from contextlib import closing

from fabrictime.state.simulated_time_reader import SimulatedTimeReader
from schemas import codec
from schemas.kafka.settings import KafkaSettings

__all__ = ["fabric_now_ns"]


def fabric_now_ns(cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> int:
    """Return fabric time, ns since the Unix epoch. Raises ValueError if the log cannot be read."""
    with closing(SimulatedTimeReader(cluster, registry)) as reader:
        simulated = reader.read()
    now_ns = time.time_ns()
    return now_ns - simulated.lag_ns(now_ns)
