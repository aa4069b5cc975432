"""Measures one stream worker, from probe batches in the embedded log to clock offsets and path delays there.

The first figures are samples a second of a worker that reads a log filled beforehand, until all windows are
closed and published, and its resident memory, with large messages and with users' messages of 0.4 kB. The
other is the time from a window's end until its offsets are in the log while a small fleet flushes every 100
ms. The fleet is synthetic (known clocks, made batches). The product supplies embedded log, Faust worker,
native decoder, fits, delays and solve.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Missing, Target, Value
from fabrictime.bench._fleet import SyntheticFleet
from fabrictime.bench._pipeline import Service, embedded_log, stream_worker
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.producer import load_producer, produce
from schemas.kafka.reader import BEGINNING, TopicReader, tail
from schemas.topics import CLOCK_OFFSETS, DELAYS, PROBES, Topic

NAME: Final = "stream"
TARGETS: Final[Mapping[str, Target]] = {
    "samples_per_second_per_worker": Target("samples/s", ">=", 4_000_000),
    "worker_resident_mb": Target("MB", "<=", 600),
    "offset_topic_ms_p99": Target("ms", "<=", 300),
}
WINDOW_MS: Final = 1000
MS: Final = 1_000_000
TIMEOUT_S: Final = 120.0


@dataclass(frozen=True)
class Load:
    """The load of a throughput figure: over `windows` windows, each of `nics` NICs sends a batch every
    `flush_ms`."""

    nics: int
    flush_ms: int
    pairs_per_path: int
    windows: int
    peers: int = 10
    paths: int = 4

    @property
    def samples_per_batch(self) -> int:
        """The number of samples in one message."""
        return 2 * self.pairs_per_path * self.peers * self.paths


@dataclass(frozen=True)
class Throughput:
    """The throughput of one worker, and its cost."""

    samples_per_second: float
    message_kb: float
    resident_mb: float
    windows: int
    cpu_s: float
    """CPU seconds of the worker per million samples."""


def run(progress: Callable[[str], None], quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key; `quick` uses fewer windows."""
    figures: dict[str, Value] = {}
    windows = 3 if quick else 8
    for key, load in (
        ("", Load(nics=800, flush_ms=1000, pairs_per_path=75, windows=windows)),
        ("_10kb", Load(nics=400, flush_ms=100, pairs_per_path=9, windows=windows)),
        ("_small", Load(nics=64, flush_ms=50, pairs_per_path=1, windows=windows, peers=5, paths=1)),
    ):
        progress(
            f"throughput: {load.windows} windows of {load.nics} NICs with {load.samples_per_batch} samples "
            f"every {load.flush_ms} ms"
        )
        with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as folder:
            done = throughput(load, Path(folder), progress)
        note = (
            f"messages of {done.message_kb:.2g} kB with {load.samples_per_batch} samples, {load.nics} NICs, "
            f"{load.peers} peers, {load.paths} paths, {done.windows} windows, from the worker's readiness to "
            "its last record"
        )
        figures[f"samples_per_second_per_worker{key}"] = Figure(
            done.samples_per_second, unit="samples/s", note=note
        )
        figures[f"worker_cpu_s_per_million_samples{key}"] = Figure(done.cpu_s, unit="s", note=note)
        figures[f"worker_us_per_message{key}"] = Figure(
            done.cpu_s * load.samples_per_batch, unit="us", note=f"processor time of the worker; {note}"
        )
        figures[f"worker_resident_mb{key}"] = Figure(done.resident_mb, unit="MB", note=f"peak; {note}")
    progress("latency: 64 NICs, a flush every 100 ms")
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as folder:
        latencies_ms = offset_latency_ms(Path(folder), windows=8 if quick else 64)
    note = f"64 NICs, flush every 100 ms, {len(latencies_ms)} windows, embedded log"
    if latencies_ms:
        figures["offset_topic_ms_p99"] = Figure(float(np.percentile(latencies_ms, 99)), note=note)
        figures["offset_topic_ms_p50"] = Figure(float(np.percentile(latencies_ms, 50)), unit="ms", note=note)
    else:
        figures["offset_topic_ms_p99"] = Missing("no offsets were published")
    return figures


def throughput(load: Load, folder: Path, progress: Callable[[str], None]) -> Throughput:
    """Fill a log at the pace of the load, then measure one worker that reads this log."""
    fleet = SyntheticFleet(load.nics, peers=load.peers, paths=load.paths, epoch_ns=time.time_ns())
    flushes = WINDOW_MS // load.flush_ms
    with embedded_log(folder) as bootstrap:
        producer = _producer(bootstrap)
        size = samples = 0
        for window in range(load.windows):
            batches = _one_window(fleet, load, flushes)
            _wait_for_window()
            start = time.monotonic()
            for number, (name, value) in enumerate(batches):
                produce(producer, PROBES.name, value, name)
                producer.poll(0)
                size += len(value)
                late = start + 0.9 * number / len(batches) - time.monotonic()
                if late > 0.002:
                    producer.poll(late)
            samples += len(batches) * load.samples_per_batch
            progress(f"throughput: window {window + 1} of {load.windows} is in the log")
        _wait_for_window()
        for partition in range(8):
            producer.produce(PROBES.name, None, partition=partition)  # a tombstone: ends the last window
        producer.flush(30)
        last = _last_window(bootstrap)
        with stream_worker(bootstrap, folder, stages=["map", "solve"]) as worker:
            ready_ms, ready_cpu_s = time.time() * 1000, worker.cpu_s()
            finished_ms = _finished_ms(bootstrap, last, load.nics, worker)
            resident, cpu_s = worker.peak_mb(), worker.cpu_s() - ready_cpu_s
    batches_sent = load.windows * load.nics * flushes
    return Throughput(
        samples / ((finished_ms - ready_ms) / 1000),
        size / batches_sent / 1000,
        resident,
        load.windows,
        cpu_s / samples * 1e6,
    )


def _one_window(fleet: SyntheticFleet, load: Load, flushes: int) -> list[tuple[str, bytes]]:
    now_ns = time.time_ns()
    step_ns = load.flush_ms * 1_000_000
    return [
        (
            name,
            fleet.message(
                name, now_ns + flush * step_ns, now_ns + (flush + 1) * step_ns, load.pairs_per_path
            ),
        )
        for flush in range(flushes)
        for name in fleet.members
    ]


def _wait_for_window() -> None:
    """Wait for the next whole second of the machine's clock, which is also the log's clock."""
    now = time.time()
    time.sleep(1.005 - now % 1.0)


def _producer(bootstrap: str) -> Any:
    return load_producer(
        bootstrap,
        {
            "linger.ms": 2,
            "queue.buffering.max.kbytes": 256 * 1024,
            "queue.buffering.max.messages": 200_000,
            "message.max.bytes": 2 * 1024 * 1024,
        },
    )


def _last_window(bootstrap: str) -> int:
    """Return the number of the last window that holds a batch, from the append times of the last messages."""
    with TopicReader.open(bootstrap, {PROBES: tail(2)}) as reader:
        firsts: dict[int, Message] = {}
        for message in reader.read_to_end():
            firsts.setdefault(message.partition, message)
    return max((first.append_ns // MS // WINDOW_MS for first in firsts.values()), default=0)


def _messages(bootstrap: str, topics: Sequence[Topic], deadline: float) -> Iterator[Message | None]:
    """Yield all messages of the topics from their beginning until the deadline; None when none waits."""
    options = {"queued.max.messages.kbytes": 16 * 1024}
    with TopicReader.open(bootstrap, dict.fromkeys(topics, BEGINNING), options=options) as reader:
        while time.monotonic() < deadline:
            messages = reader.poll(0.1, at_once=True)
            if messages:
                yield from messages
            else:
                yield None


def _finished_ms(bootstrap: str, last: int, nics: int, worker: Service) -> int:
    """Return the append time, ms, of window `last`'s last record: all NICs' delays and clock offsets."""
    delays: set[str] = set()
    newest = offsets = 0
    for message in _messages(bootstrap, [DELAYS, CLOCK_OFFSETS], time.monotonic() + TIMEOUT_S):
        if message is None:
            if worker.process.poll() is not None:
                raise RuntimeError(f"the worker ended: {worker.tail()}")
            continue
        if message.topic == DELAYS.name:
            record = codec.decode(message.value or b"", DELAYS.record)
            if record["window"] == last:
                delays.add(record["nic"])
                newest = max(newest, message.append_ns // MS)
        elif codec.decode(message.value or b"", CLOCK_OFFSETS.record)["window"] == last:
            offsets = message.append_ns // MS
        if offsets and len(delays) == nics:
            return max(newest, offsets)
    raise RuntimeError(
        f"window {last}: delays of {len(delays)} of {nics} NICs, offsets {bool(offsets)}"
        f" after {TIMEOUT_S:g} s"
    )


def offset_latency_ms(folder: Path, windows: int, nics: int = 64) -> list[float]:
    """Return, for each window of a live fleet, the ms from its end to the append of its clock offsets."""
    fleet = SyntheticFleet(nics, peers=10, paths=1, epoch_ns=time.time_ns())
    names = list(fleet.members)
    latency_by_window: dict[int, float] = {}
    with embedded_log(folder) as bootstrap, stream_worker(bootstrap, folder, stages=["map", "solve"]):
        producer = _producer(bootstrap)
        warm_ns = 3_000_000_000
        start_ns = time.time_ns()
        end_ns = start_ns + warm_ns + windows * 1_000_000_000
        due_ns = start_ns
        number = 0
        while due_ns < end_ns:
            wait = (due_ns - time.time_ns()) / 1e9
            if wait > 0:
                producer.poll(wait)
            now_ns = time.time_ns()
            name = names[number % nics]
            produce(producer, PROBES.name, fleet.message(name, now_ns - 100_000_000, now_ns, 2), name)
            producer.poll(0)
            number += 1
            due_ns = start_ns + number * 100_000_000 // nics
        producer.flush(10)
        first, last = (start_ns + warm_ns) // 1_000_000_000, end_ns // 1_000_000_000 - 1
        for message in _messages(bootstrap, [CLOCK_OFFSETS], time.monotonic() + 10):
            if message is None:
                if last in latency_by_window:
                    break
                continue
            window = codec.decode(message.value or b"", CLOCK_OFFSETS.record)["window"]
            if first <= window <= last:
                latency_ms = float(message.append_ns // MS - (window + 1) * WINDOW_MS)
                latency_by_window[window] = max(latency_ms, latency_by_window.get(window, 0.0))
    return list(latency_by_window.values())
