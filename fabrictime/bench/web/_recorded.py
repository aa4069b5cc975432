"""Makes records of a simulated fleet by the operators, stores them, and serves the page on them."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from fabrictime.bench._sim_pipeline import FLEET_TOPICS, SimPipeline, all_stages
from fabrictime.bench._stepped_log import SteppedLog
from fabrictime.bench._waiting import wait_until
from fabrictime.bench.history import Server
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from fabrictime.state.fabric_consumer import TOPICS_READ
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.kafka import partition_of
from schemas.kafka.message import Message
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, CONFIG, DELAYS, TOPICS, Partitions
from streams.history import rows
from streams.history.clickhouse import stores_of
from streams.runtime.history_settings import HistorySinkSettings

PARTITIONS: Final = 4
STORED: Final = frozenset(topic.name for topic in (*TOPICS_READ, DELAYS, CLOCK_OFFSETS, CLOCK_FITS))
"""Topics that the page shows, from the log or from the history."""
APPEND_MS: Final = 100
"""Resolution of append times, ms."""
BATCH_BYTES: Final = 512 * 1024
EPOCH_NS: Final = 10**18
"""Integers above it in fields `*_ns` are times, and durations below it."""
READY_S: Final = 60.0


class Record(NamedTuple):
    """A message of the log: its append time, ns, topic, key and value."""

    at_ns: int
    topic: str
    key: str
    value: bytes


def recorded(settings: SimSettings, seconds: float, start_ns: int, **config: Any) -> list[Record]:
    """Return the records that a fleet and the operators publish from `start_ns` on, for the page's topics.

    `config` sets fields of the actuators' configuration.
    """
    sim = Simulation(settings, start_ns=start_ns, topics=FLEET_TOPICS)
    pipeline = SimPipeline(sim, all_stages(), config=config)
    records = []
    pipeline.runner.tap = lambda message: records.append(
        Record(message.append_ns, message.topic, message.key, message.value or b"")
    )
    pipeline.configure()
    for _ in range(round(seconds * 100)):
        pipeline.tick()
    return [record for record in records if record.topic in STORED]


def repeated(records: Sequence[Record], period_ns: int, times: int) -> Iterator[Record]:
    """Yield all records `times` times, each repetition `period_ns` later than the one before."""
    for number in range(times):
        yield from later(records, number * period_ns) if number else records


def later(records: Sequence[Record], shift_ns: int, fixed: Collection[str] = ()) -> Iterator[Record]:
    """Yield records with all times moved later by `shift_ns`, except the fields `fixed`."""
    for record in records:
        kind = TOPICS[record.topic].type
        value = codec.encode(kind.__name__, moved(codec.decode(record.value, kind), shift_ns, fixed))
        yield Record(record.at_ns + shift_ns, record.topic, record.key, value)


def moved(value: Any, shift_ns: int, fixed: Collection[str] = (), name: str = "") -> Any:
    """Return a record with all times moved later by `shift_ns`, except the fields `fixed`."""
    if isinstance(value, Mapping):
        return {key: moved(item, shift_ns, fixed, key) for key, item in value.items()}
    if isinstance(value, list):
        return [moved(item, shift_ns, fixed, name) for item in value]
    is_time = name.endswith("_ns") and isinstance(value, int) and value > EPOCH_NS
    return value + shift_ns if is_time and name not in fixed else value


def write_log(directory: Path, records: Iterable[Record]) -> None:
    """Write records to the embedded log's files, with their append times. `records` is in order of time."""
    now_ms = 0
    settings = LogSettings(directory=directory, port=0, partitions=PARTITIONS, min_free_bytes=0)
    store = Store(settings, lambda: now_ms)
    waiting: dict[tuple[str, int], list[Record]] = defaultdict(list)

    def flush() -> None:
        for (topic, partition), batch in waiting.items():
            for part in _parts(batch):
                store.partition(topic, partition).append(memoryview(_batch(part)))
        waiting.clear()

    with closing(store):
        for record in records:
            at_ms = record.at_ns // 1_000_000 // APPEND_MS * APPEND_MS
            if at_ms != now_ms:
                flush()
                now_ms = at_ms
            count = 1 if TOPICS[record.topic].partitions is Partitions.ONE else PARTITIONS
            waiting[record.topic, partition_of(record.key, count)].append(record)
        flush()


def _parts(batch: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Yield parts of a batch, each small enough for one Kafka batch."""
    begin = size = 0
    for number, record in enumerate(batch):
        size += len(record.value)
        if size > BATCH_BYTES and number > begin:
            yield batch[begin:number]
            begin, size = number, len(record.value)
    yield batch[begin:]


def _batch(batch: Sequence[Record]) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for offset, record in enumerate(batch):
        builder.append(offset, 1_000, record.key.encode(), record.value, [])
    return bytearray(builder.build())


def write_history(server: Server, records: Iterable[Record]) -> None:
    """Store records in the history as the sink does."""
    settings = HistorySinkSettings(url=server.url, password_file=server.directory / "write.token")
    stores = {topic.name: store for topic, store in stores_of(settings)}
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for number, record in enumerate(records):
        message = Message(record.at_ns, record.topic, 0, number, record.key, record.value)
        message.decoded(TOPICS[record.topic])
        by_topic[record.topic].append(message)
    for topic, messages in by_topic.items():
        if topic in stores and topic != CONFIG.name:
            for table, block in rows.rows_of(topic, messages).items():
                stores[topic].insert(table, block, f"{topic} {table} {messages[0].append_ns}")


@contextmanager
def running_page(folder: Path, log: str, history: Server | None) -> Iterator[str]:
    """Run the page's process on a log and a history; yield its address."""
    port_file = folder / "page.port"
    settings: dict[str, Any] = {
        "port": 0,
        "port_file": str(port_file),
        "kafka": {"bootstrap": log},
        "history_url": "http://127.0.0.1:9" if history is None else history.url,
        "history_token_file": None if history is None else str(history.directory / "read.token"),
    }
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(settings,), name="page")
    process.start()
    try:
        wait_until(lambda: port_file.exists() and port_file.read_text().strip(), READY_S, "the page")
        yield f"http://127.0.0.1:{port_file.read_text().strip()}/"
    finally:
        process.terminate()
        process.join(20)


def _serve(settings: dict[str, Any]) -> None:
    from fabrictime.web.server import main
    from fabrictime.web.settings import WebSettings

    raise SystemExit(main(WebSettings.model_validate(settings)))


@contextmanager
def shown(records: Iterable[Record], history: Server | None = None) -> Iterator[str]:
    """Store records in a new log and run the page on this log; yield the page's address."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabrictime-bench-web-")))
        write_log(folder / "log", records)
        log = stack.enter_context(SteppedLog(folder / "log", PARTITIONS))
        url = stack.enter_context(running_page(folder, log.bootstrap, history))
        yield url
