"""Reads the simulated time of a log's fleet from the whole inventory. One real NIC makes the time real."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.simulation_pace import SimulatedTime
from schemas.topics import INVENTORY

FETCH_WAIT_MS: Final = 200
"""Longest wait for the end of the inventory, and for later announcements, ms."""


class SimulatedTimeReader:
    """Reads the inventory. It ignores invalid announcements, as the workers do.

    Only the newest message of a NIC is decoded: a compacted topic can still hold a day of announcements.
    """

    def __init__(self, cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> None:
        """Connect to the log. Raises LogUnavailable."""
        self._registry = registry
        self._simulated = SimulatedTime()
        self._newest: dict[str, Message] = {}
        """NIC to its newest message, not decoded yet, in the log's order."""
        self._reader = TopicReader.open(cluster, {INVENTORY: BEGINNING}, fetch_wait_ms=FETCH_WAIT_MS)

    def close(self) -> None:
        """Close the connection to the log."""
        self._reader.close()

    def read(self) -> SimulatedTime:
        """Return the simulated time according to all announcements so far. Raises LogUnavailable."""
        for message in self._messages():
            self._newest.pop(message.key, None)
            self._newest[message.key] = message
        for message, nic in self._reader.decoded(self._newest.values(), self._registry):
            self._simulated.take(message.key, nic, message.append_ns)
        self._newest.clear()
        return self._simulated

    def _messages(self) -> Iterator[Message]:
        yield from self._reader.read_to_end()
        while messages := self._reader.poll(0.0):
            yield from messages


def fabric_now_ns(cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> int:
    """Return fabric time, ns since the Unix epoch, for commands that compare records with the present.

    It is the system clock's time, unless the log's fleet is simulated and its time is behind. Raises
    ValueError if the log cannot be read.
    """
    with closing(SimulatedTimeReader(cluster, registry)) as reader:
        simulated = reader.read()
    now_ns = time.time_ns()
    return now_ns - simulated.lag_ns(now_ns)
