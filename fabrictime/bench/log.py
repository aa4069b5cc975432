"""Measures the embedded broker with a confluent producer and a confluent consumer, each in a process.

The figures are MB/s of 32 kB random messages, small messages per second, latency and the broker's memory.
Where Apache Kafka is installed, its throughput is measured too. MB are 10**6 bytes. A rate counts from the
first message produced to the last one consumed.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Missing, Target, Value, _apache_kafka
from fabrictime.bench._pipeline import embedded_log_service
from schemas.kafka.admin import create_topic
from schemas.kafka.producer import load_producer, produce
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import Nic
from schemas.topics import Partitions, Topic

NAME: Final = "log"
TARGETS: Final[Mapping[str, Target]] = {
    "mb_per_second_32kb": Target("MB/s", ">=", 200),
    "resident_mb": Target("MB", "<=", 300),
}
PARTITIONS: Final = 8
MESSAGE_BYTES: Final = 32 * 1024
SMALL_BYTES: Final = 200
_TIMEOUT_S: Final = 180.0
_spawn = multiprocessing.get_context("spawn")


def run(progress: Callable[[str], None], quick: bool = False) -> dict[str, Value]:
    """Return the figures by key; `quick` sends a tenth of the messages.

    The broker's data are in a temporary directory.
    """
    large, small, pings = (8_000, 100_000, 200) if quick else (80_000, 1_000_000, 1_000)
    figures: dict[str, Value] = {}
    with (
        tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as folder,
        embedded_log_service(Path(folder), create_topics=False) as (address, broker),
    ):
        progress(f"embedded log: {large} messages of {MESSAGE_BYTES} B")
        rate = throughput(address, "large", large, MESSAGE_BYTES)
        figures["mb_per_second_32kb"] = Figure(
            rate * MESSAGE_BYTES / 1e6, note=f"{large} messages, {PARTITIONS} partitions, acks=all"
        )
        figures["resident_mb"] = broker.peak_mb()
        progress(f"embedded log: {small} messages of {SMALL_BYTES} B")
        figures["messages_per_second_200b"] = Figure(
            throughput(address, "small", small, SMALL_BYTES), unit="messages/s"
        )
        progress(f"embedded log: latency of {pings} messages")
        p50, p99 = latency_ms(address, "pings", pings)
        figures["latency_ms_p50"] = Figure(p50, unit="ms", note=f"{MESSAGE_BYTES} B, one at a time")
        figures["latency_ms_p99"] = Figure(p99, unit="ms", note=f"{MESSAGE_BYTES} B, one at a time")
    try:
        with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as folder:
            progress(f"Apache Kafka {_apache_kafka.VERSION}: starting")
            with _apache_kafka.running(Path(folder)) as address:
                progress(f"Apache Kafka: {large} messages of {MESSAGE_BYTES} B")
                rate = throughput(address, "large", large, MESSAGE_BYTES)
                note = f"Apache Kafka {_apache_kafka.VERSION} in the same run, heap 384 MB"
                figures["apache_kafka_mb_per_second_32kb"] = Figure(
                    rate * MESSAGE_BYTES / 1e6, unit="MB/s", note=note
                )
                p50, p99 = latency_ms(address, "pings", pings)
                figures["apache_kafka_latency_ms_p50"] = Figure(p50, unit="ms", note=note)
                figures["apache_kafka_latency_ms_p99"] = Figure(p99, unit="ms", note=note)
    except _apache_kafka.NotAvailable as error:
        figures["apache_kafka_mb_per_second_32kb"] = Missing(str(error))
    return figures


def throughput(address: str, topic: str, messages: int, size: int) -> float:
    """Return the messages a second from one producer process to one consumer process."""
    create_topic(address, topic, PARTITIONS)
    results: multiprocessing.queues.Queue[Any] = _spawn.Queue()
    ready = _spawn.Event()
    consumer = _spawn.Process(target=_consume, args=(address, topic, messages, ready, results), daemon=True)
    producer = _spawn.Process(target=_produce, args=(address, topic, messages, size, results), daemon=True)
    try:
        consumer.start()
        if not ready.wait(_TIMEOUT_S):
            raise RuntimeError("the consumer did not start")
        producer.start()
        times = dict(results.get(timeout=_TIMEOUT_S) for _ in range(2))
    finally:
        for process in (producer, consumer):
            if process.pid is not None:
                process.join(10)
                process.kill()
    return messages / float(times["last consumed"] - times["first produced"])


def _produce(address: str, topic: str, messages: int, size: int, results: Any) -> None:
    producer = load_producer(
        address,
        {
            "linger.ms": 5,
            "queue.buffering.max.kbytes": 64 * 1024,
            "queue.buffering.max.messages": 100_000,
        },
    )
    random = np.random.Generator(np.random.SFC64())
    failed: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    producer.list_topics(topic, timeout=30)
    results.put(("first produced", time.monotonic()))
    for _ in range(messages):
        payload = random.bytes(size)
        produce(producer, topic, payload, on_delivery=delivered)
        producer.poll(0)
    producer.flush(_TIMEOUT_S)
    if failed:
        raise RuntimeError(f"{len(failed)} messages were refused: {failed[0]}")


def _reader(address: str, topic: str) -> TopicReader:
    """Return a connected reader of a topic that the contract does not contain."""
    bench = Topic(topic, "none", Nic, "bench", Partitions.DATA, None)
    options = {"queued.max.messages.kbytes": 64 * 1024}
    return TopicReader.open(address, {bench: BEGINNING}, fetch_wait_ms=500, options=options)


def _consume(address: str, topic: str, messages: int, ready: Any, results: Any) -> None:
    with _reader(address, topic) as reader:
        reader.poll(0.2, 1)
        ready.set()
        left, deadline_s = messages, time.monotonic() + _TIMEOUT_S
        while left > 0:
            left -= len(reader.poll(1.0, min(left, 1000)))
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{left} messages did not come")
        results.put(("last consumed", time.monotonic()))


def latency_ms(address: str, topic: str, messages: int) -> tuple[float, float]:
    """Return the 50th and 99th percentile, ms, of the time from producing to consuming single messages.

    The producer does not wait to fill a batch (linger 0).
    """
    create_topic(address, topic, 1)
    producer = load_producer(address, {"linger.ms": 0})
    reader = _reader(address, topic)
    random = np.random.Generator(np.random.SFC64())
    took = []
    for number in range(messages + 20):
        payload = random.bytes(MESSAGE_BYTES)
        begin = time.perf_counter()
        producer.produce(topic, payload)
        producer.poll(0)
        end_s = time.monotonic() + 30
        while not (messages_read := reader.poll(30, at_once=True)) and time.monotonic() < end_s:
            pass
        if [message.value for message in messages_read] != [payload]:
            raise RuntimeError(f"message {number} did not come as it was sent")
        if number >= 20:
            took.append((time.perf_counter() - begin) * 1e3)
    reader.close()
    producer.flush(_TIMEOUT_S)
    return float(np.percentile(took, 50)), float(np.percentile(took, 99))
