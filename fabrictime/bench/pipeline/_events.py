"""Reads the records that the product published since a moment, for latencies from a planted fault.

The log is read after the faults, so its reader takes no processor time from the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic

import numpy as np

from fabrictime.bench import Figure, Missing, Value
from schemas import codec
from schemas.kafka.reader import TopicReader, since
from schemas.topics import R, Topic

PERCENTS: Final = (50, 99)


@dataclass(frozen=True, slots=True)
class Event(Generic[R]):
    """A record and its append time, s since the Unix epoch."""

    at_s: float
    record: R


def events_of(bootstrap: str, topic: Topic[R], begin_s: float) -> list[Event[R]]:
    """Return the records of a topic appended since `begin_s`, in the order of their append times."""
    events = []
    with TopicReader.open(bootstrap, {topic: since(int(begin_s * 1e9))}) as reader:
        for message in reader.read_to_end():
            if message.value is not None:
                record: Any = codec.decode(message.value, topic.type)
                events.append(Event(message.append_ns / 1e9, record))
    return sorted(events, key=lambda event: event.at_s)


def latency_figures(name: str, took_ms: list[float], trials: int) -> dict[str, Value]:
    """Return `NAME_ms_p50` and `NAME_ms_p99` over trials with an effect, and the share of trials without."""
    keys = [f"{name}_ms_p{percent}" for percent in PERCENTS]
    missed = Figure((trials - len(took_ms)) / trials, "1", f"of {trials}") if trials else Missing("no trial")
    figures: dict[str, Value] = {f"{name}_missed": missed}
    if not took_ms:
        return dict.fromkeys(keys, Missing(f"none of {trials} trials had an effect")) | figures
    note = f"{len(took_ms)} of {trials}, {min(took_ms):.0f} to {max(took_ms):.0f} ms"
    values = {
        key: Figure(float(np.percentile(took_ms, percent)), "ms", note)
        for key, percent in zip(keys, PERCENTS, strict=True)
    }
    return values | figures
