"""Finds in the log the record that an alert's evidence names.

In: topic, key and time. Out: the record as text. A consumer of its own for each look, closed after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from fabrictime.web.history_client import HistoryDown, HistoryError, QueryFailed
from fabrictime.web.tabs.alerts.frames import Shown, fields_of, nearest, time_text
from schemas import codec
from schemas.kafka.reader import LogUnavailable, TopicMissing, TopicReader, since
from schemas.topics import (
    ALERTS,
    CLOCK_OFFSETS,
    CONTENTION,
    DELAYS,
    FLOWS,
    LINK_HEALTH,
    LINKS,
    PATHS,
    QUEUES,
    TOPICS,
)

OPENED: Final = (LINKS, LINK_HEALTH, QUEUES, CONTENTION, FLOWS, PATHS, DELAYS, CLOCK_OFFSETS, ALERTS)
"""Topics whose records are opened."""
AROUND_NS: Final = 3_000_000_000
MOST: Final = 4_000
PATIENCE_S: Final = 4.0
CONNECT_TIMEOUT_S: Final = 2.0

Evidence = Callable[[str, str, int, str], Shown]


def reader(bootstrap: str, registry: codec.Registry | None) -> Evidence:
    """Return the function that finds a record; it blocks, and raises HistoryError."""

    def find(topic: str, key: str, at_ns: int, said: str) -> Shown:
        if topic not in {each.name for each in OPENED}:
            raise QueryFailed(f"{topic}: not a topic whose records are opened here")
        try:
            found = _around(bootstrap, topic, key, at_ns, registry)
        except TopicMissing as error:
            raise QueryFailed(str(error)) from error
        except LogUnavailable as error:
            raise HistoryDown(str(error)) from error
        best = nearest([(append_ns, record) for append_ns, _, record in found], at_ns, said)
        if best is None:
            raise HistoryError(f"{topic} has no record of {key} around {time_text(at_ns)} any more")
        place = next(place for append_ns, place, record in found if record is best[1])
        return Shown(f"{place}, taken by the log at {time_text(best[0])}", fields_of(best[1]))

    return find


def _around(
    bootstrap: str, topic: str, key: str, at_ns: int, registry: codec.Registry | None
) -> list[tuple[int, str, Any]]:
    """Return (append time, place, record) of a key's records within `AROUND_NS`, or its newest one before."""
    found: list[tuple[int, str, Any]] = []
    end_s = time.monotonic() + PATIENCE_S
    with TopicReader(bootstrap, {TOPICS[topic]: since(at_ns - AROUND_NS)}, key=key) as reader:
        reader.connect(CONNECT_TIMEOUT_S)
        read = 0
        while reader.behind and read < MOST and time.monotonic() < end_s:
            messages = reader.poll(0.2)
            read += len(messages)
            for message, record in reader.decoded(messages, registry):
                if message.append_ns > at_ns + AROUND_NS:
                    return found
                if record is not None:
                    place = f"{topic}/{message.partition} offset {message.offset}"
                    found.append((message.append_ns, place, record))
    return found
