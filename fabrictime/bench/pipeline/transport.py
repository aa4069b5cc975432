"""Measures the cost of a small message before any operator sees it: from the log through Faust to a counter.

The log is filled beforehand with messages of 400 bytes. The product's worker has a stage that only counts.
The figure counts its processor time only, from the assignment of partitions to the last message. Each message
has a record batch of its own, as agents write; a second figure is for messages in large batches.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._pipeline import Service, embedded_log
from fabrictime.bench.pipeline._counter import COUNT_EVERY
from schemas.kafka.producer import load_producer
from schemas.topics import PROBES

BATCHES: Final[Mapping[str, int]] = {"small_messages_per_core_s": 1, "batched_messages_per_core_s": 1_000}
"""Largest number of messages in a record batch, by the key of the figure."""
MESSAGE_BYTES: Final = 400
MESSAGES, QUICK_MESSAGES = 200_000, 40_000
LIMIT_S, QUICK_LIMIT_S = 90.0, 20.0
"""Maximum time of a measurement; a slow worker is measured over the messages it counts within it."""
KEYS: Final = 64
"""Number of different keys, which stand for NICs, over all partitions."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or half a minute with `quick`."""
    return {key: _measured(key, batch, progress, quick=quick) for key, batch in BATCHES.items()}


def _measured(key: str, batch: int, progress: Progress, *, quick: bool) -> Value:
    messages, limit_s = (QUICK_MESSAGES, QUICK_LIMIT_S) if quick else (MESSAGES, LIMIT_S)
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as name:
        folder = Path(name)
        with embedded_log(folder) as bootstrap:
            progress(f"{key}: {messages:,} messages of {MESSAGE_BYTES} bytes to the log")
            _fill(bootstrap, messages, batch)
            progress(f"{key}: a worker counts them")
            with _counting_worker(bootstrap, folder) as (worker, file):
                first, last = _counted(file, worker, messages // COUNT_EVERY * COUNT_EVERY, limit_s)
    count, cpu_s = last["messages"] - first["messages"], last["cpu_s"] - first["cpu_s"]
    if count <= 0 or cpu_s <= 0:
        return Missing(f"fewer than {COUNT_EVERY:,} messages counted in {limit_s:g} s")
    cores = cpu_s / (last["at_s"] - first["at_s"])
    note = f"{count:,} messages, {1e6 * cpu_s / count:.1f} us each, at {cores:.2f} cores"
    return Figure(count / cpu_s, "1/s", note)


def _fill(bootstrap: str, messages: int, batch: int) -> None:
    producer = load_producer(
        bootstrap,
        {
            "linger.ms": 0 if batch == 1 else 20,
            "batch.num.messages": batch,
            "queue.buffering.max.messages": messages,
        },
    )
    value = os.urandom(MESSAGE_BYTES)
    for number in range(messages):
        producer.produce(PROBES.name, value, f"host{number % KEYS:04d}/eth0")
        if number % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(60):
        raise RuntimeError(f"the log did not take {left} of {messages} messages in 60 s")


@contextmanager
def _counting_worker(bootstrap: str, folder: Path) -> Iterator[tuple[Service, Path]]:
    file = folder / "counted.json"
    settings = {"kafka": {"bootstrap": bootstrap}, "stages": ["map"]}
    worker = Service("fabrictime.bench.pipeline._counter", settings, folder, [str(file)])
    try:
        yield worker, file
    finally:
        worker.stop()


def _counted(
    file: Path, worker: Service, expected: int, limit_s: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the worker's reports at its assignment and at its last message, or at `limit_s`."""
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and last.get("messages", 0) < expected:
        if worker.process.poll() is not None:
            raise RuntimeError(f"the worker ended: {worker.tail()}")
        if file.exists():
            first, last = json.loads(file.read_text(encoding="utf-8"))
        time.sleep(0.02)
    empty = {"messages": 0, "cpu_s": 0.0, "at_s": 0.0}
    return first or empty, last or empty
