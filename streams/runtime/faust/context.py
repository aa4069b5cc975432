"""The state that all stages of one worker share.

`WorkerContext` holds the global tables and the log's clock, sends records with acknowledgement, and aborts
the worker. A worker aborts on every error that would lose or duplicate a record; the supervisor then starts a
new one, which continues at the committed offsets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import faust
from faust.types import TP

from schemas import codec
from schemas.kafka import BEGINNING, Start, back, tail
from schemas.kafka.message import Message, Place
from schemas.log_time import append_ns_of
from schemas.service_notifier import ServiceNotifier
from schemas.topics import CLOCK_OFFSETS, CONFIG, FLOWS, INVENTORY, MAX_MESSAGE_BYTES, PATHS, R, Topic
from schemas.topology import Topology, TopologyError, TopologySource
from schemas.unexpected import DATA_ERRORS
from streams.runtime.digests import topology_digest
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust import compat
from streams.runtime.faust.global_tables import CLOCK_TAIL, GlobalTableReader
from streams.runtime.faust.output_counters import OutputCounters
from streams.runtime.faust.rejects import RejectBudget, send_reject
from streams.runtime.log_time import LogClock
from streams.runtime.rejects import failed_evaluation
from streams.runtime.settings import StreamSettings
from streams.runtime.units import NS_PER_MS

log = logging.getLogger(__name__)

ABORT_S: Final = 5.0
"""Time that an aborting worker has to stop before the process exits, s."""
EXIT_CODE: Final = 70
TOPOLOGY_CHECK_S: Final = 5.0
FLOWS_TAIL_S: Final = 30.0
"""Time span of flow reports that are read at the start, s: longer than a dead worker's partitions wait."""
TABLE_STARTS: Final[Mapping[Topic, Start]] = {
    INVENTORY: BEGINNING,
    CLOCK_OFFSETS: tail(CLOCK_TAIL),
    PATHS: BEGINNING,
    CONFIG: BEGINNING,
    FLOWS: back(FLOWS_TAIL_S),
}
"""Topics of the global tables, each with the place from which it is read."""
Tap = Callable[[Iterable[Message], Place, int], None]
"""Takes the messages of a partition that another stage has read and decoded, up to an offset."""


class WorkerContext:
    """The state that all stages of one worker share: tables, log clock, producer and background tasks."""

    def __init__(
        self,
        app: faust.App,
        settings: StreamSettings,
        registry: codec.Registry | None,
        table_topics: Iterable[Topic],
    ) -> None:
        """Create the state. `table_topics`: the topics of the tables that this worker's stages use."""
        self.app = app
        self.settings = settings
        self.registry = registry
        self.signer, self._verifier = settings.control.signer(), settings.control.verifier()
        self.tables = FabricTables(
            settings.default_shard,
            registry=registry,
            holdover_s=settings.solve.holdover_s,
            window_ns=settings.window_ms * NS_PER_MS,
        )
        self.inventory, self.clocks = self.tables.inventory, self.tables.clocks
        self.routes, self.config = self.tables.routes, self.tables.config
        self.log_clock = LogClock(time.time_ns(), time.monotonic_ns())
        self.outputs = OutputCounters(self.log_clock)
        self.acknowledged, self.append_s = 0, 0.0
        """Number of acknowledged messages, and the sum of their times until then, s."""
        self.end_offsets: Mapping[TP, int] = {}
        """End offsets of the owned partitions, as the watchdog last read them."""
        self.failed: str | None = None
        """The reason of the abort."""
        self.rejected = 0
        self.reject_budget = RejectBudget()
        self.failed_evaluations = 0
        """Number of evaluations that ended with an unexpected error; see `survive`."""
        self.reject: Callable[[Message, codec.BadRecord], None] = lambda message, error: None
        """Publishes the reject of a global table's message."""
        self.note: Callable[[str, str], None] = lambda subject, text: None
        """Shows a line about a subject in the worker's status; an empty line removes it."""
        self.taps: dict[str, Tap] = {}
        """Maps topic to the stage that takes the messages which another stage of this worker reads."""
        starts = {topic: TABLE_STARTS[topic] for topic in table_topics}
        self._topology_file = settings.topology_file if starts else None  # the history sink needs none
        self._topology = TopologySource(self._topology_file)
        self._set_topology()
        self._tables = GlobalTableReader(
            self.tables,
            starts,
            settings.kafka,
            lambda message, error: self.reject(message, error),
            self._check,
        )
        self._tables_started = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[Any] | None = None

    @property
    def topology(self) -> Topology:
        """The current content of the topology file; an empty topology if there is no file."""
        return self.tables.topology

    def _check(self, message: Message) -> None:
        """Raise BadRecord if a message of a global table lacks a required signature."""
        if self._verifier is not None:
            self._verifier.check(message, self.registry)

    def _set_topology(self) -> None:
        self.tables.topology = self._topology.topology
        self.topology_digest = topology_digest(self._topology.topology)

    async def _follow_topology(self) -> None:
        while True:
            await asyncio.sleep(TOPOLOGY_CHECK_S)
            try:
                if self._topology.refresh():
                    self._set_topology()
                    log.info("topology file reloaded")
            except TopologyError as error:
                log.error("%s; the previous topology stays in use", error)

    def start_tables(self) -> None:
        """Start to fill the global tables; do nothing if filling has already started."""
        if self._tables_started:
            return
        self._tables_started = True
        self.task("tables", self._tables.run())
        if self._topology_file is not None:
            self.task("topology file", self._follow_topology())

    async def tables_caught_up(self) -> None:
        """Wait until all global tables have reached the end offsets that the log had when filling started."""
        self.start_tables()
        await self._tables.caught_up.wait()

    def task(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in the background; an exception aborts the worker."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        self._tasks.add(task)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.abort(f"{task.get_name()}: {type(error).__name__}: {error}", error)

    async def stop(self) -> None:
        """Cancel the background tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def survive(self, stage: str, topic: Topic[Any], key: str) -> Iterator[None]:
        """Convert an unexpected error of an evaluation to a reject; other keys are still evaluated."""
        try:
            yield
        except DATA_ERRORS as error:
            self.failed_evaluations += 1
            self.task("reject", send_reject(self, failed_evaluation(topic.name, key), stage, error))

    def abort(self, reason: str, error: BaseException | None = None) -> None:
        """Stop this worker with an error; its successor reads all unacknowledged messages again."""
        if self.failed is not None:
            return
        self.failed = reason
        log.critical("stream worker aborts: %s", reason, exc_info=error)
        line = " ".join(reason.split())  # stated apart: lines of the client libraries follow in the log
        ServiceNotifier().notify(f"X_END={line}")
        loop = asyncio.get_running_loop()
        self._ending = loop.create_task(self.app.stop(), name="stop after failure")
        loop.call_later(ABORT_S, os._exit, EXIT_CODE)

    async def send(self, topic: Topic[R], key: str, record: R) -> Awaitable[Any]:
        """Encode a record and pass it to the producer; return an awaitable of its acknowledgement."""
        return await self.send_bytes(topic.name, key, codec.encode(topic.type, record, self.registry))

    async def send_bytes(self, topic: str, key: str, value: bytes | None) -> Awaitable[Any]:
        """Pass an encoded record, or None, to the producer; return an awaitable of its acknowledgement.

        Raises ValueError for a record that is too large for the log.
        """
        if value is not None and len(value) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{topic}: {len(value)} bytes, expected at most {MAX_MESSAGE_BYTES}")
        future = await self.app.producer.send(topic, key.encode(), value, None, None, None)
        return self._acknowledged(future, time.monotonic())

    async def _acknowledged(self, future: Awaitable[Any], sent_s: float) -> None:
        sent = await future
        self.acknowledged += 1
        self.append_s += time.monotonic() - sent_s
        place = (sent.topic_partition.topic, sent.topic_partition.partition)
        append_ns = append_ns_of(place[0], sent.timestamp_type, sent.timestamp)
        self.log_clock.observe(append_ns, time.monotonic_ns(), place, sent.offset)

    def highwater(self, tp: TP) -> int | None:
        """Return a partition's end offset; None if the consumer does not know it yet."""
        return compat.highwater(self.app, tp)

    async def committed(self, tp: TP) -> int | None:
        """Return the offset at which this worker begins; None if its group has never committed one."""
        return await compat.committed_offset(self.app, tp)

    def position(self, tp: TP) -> int | None:
        """Return one past the last offset that the client library delivered to Faust."""
        return compat.position(self.app, tp)
