"""What the agents of one worker share: views, the log's clock, sending with acknowledgement, giving up.

In: the Faust app and its settings. Out: `WorkerContext`. An error that would lose or double anything ends the worker;
the supervisor starts a new one, which goes on at the committed offsets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import faust
from aiokafka import ConsumerRecord, TopicPartition
from faust.types import TP

from schemas import codec
from schemas.topology import Topology, TopologyError, TopologySource
from streams.delays.windows import LogClock
from streams.runtime.flow_table import FlowTable
from streams.runtime.global_tables import OFFSETS_TAIL, ClockTable, GlobalTable, GlobalTableReader, Inventory
from streams.runtime.live_config import LiveConfig
from streams.runtime.route_table import RouteTable, link_rate_bps
from streams.settings import StreamSettings

__all__ = ["WorkerContext"]

log = logging.getLogger(__name__)

LAST_WORDS_S: Final = 5.0
TOPOLOGY_CHECK_S: Final = 5.0
FLOWS_TAIL_S: Final = 30.0
"""s of flow reports that are read at the start: longer than a dead worker's partitions wait for a new one."""


class WorkerContext:
    """One worker's shared state."""

    def __init__(
        self, app: faust.App, settings: StreamSettings, registry: codec.Registry | None, *, flows: bool = True
    ) -> None:
        """`flows`: whether anybody here asks what flows report."""
        self.app = app
        self.settings = settings
        self.registry = registry
        self.inventory = Inventory(settings.default_shard)
        self.clocks = ClockTable(self.inventory, settings.solve.holdover_s, settings.window_ms * 1_000_000)
        self.routes = RouteTable()
        self._topology = TopologySource(settings.topology_file)
        self.config = LiveConfig()
        self.flows = FlowTable(self.routes, self.inventory.members.__contains__)
        self.log_clock = LogClock(time.time_ns(), time.monotonic_ns())
        self.failed: str | None = None
        self._reads_flows = flows
        self.rejected = 0
        self.reject: Callable[[ConsumerRecord, codec.BadRecord], None] = lambda message, error: None
        self.evidence_tap: Callable[[int, int, int, codec.Record], None] = lambda *message: None
        """Told of the evidence that the links stage takes: partition, offset, append time, `LinkEvent`."""
        self._views: list[GlobalTableReader] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[Any] | None = None

    @property
    def topology(self) -> Topology:
        """What the topology file says now; empty where there is none."""
        return self._topology.topology

    def link_rate_bps(self, link: str) -> int:
        """Return bit/s of a directed link, 0 where neither the topology file nor a NIC says."""
        return link_rate_bps(link, self.topology, self.inventory.speeds_bps)

    def fastest_bps(self) -> int:
        """Return the rate of the fastest link of the topology file, else of the fastest NIC; 0: not known."""
        rates = [self.topology.rate_bps(link) for link in self.topology.links()]
        return max(rates, default=0) or max(self.inventory.speeds_bps.values(), default=0)

    async def _follow_topology(self) -> None:
        while True:
            await asyncio.sleep(TOPOLOGY_CHECK_S)
            try:
                if self._topology.refresh():
                    log.info("topology file read anew")
            except TopologyError as error:
                log.error("%s; what it said before stays", error)

    def start_tables(self) -> None:
        """Begin to fill the lookups; may be called more than once."""
        if self._views:
            return
        views: tuple[tuple[GlobalTable, int | None, float | None], ...] = (
            (self.inventory, None, None),
            (self.clocks, OFFSETS_TAIL, None),
            (self.routes, None, None),
            (self.config, None, None),
            (self.flows, None, FLOWS_TAIL_S),
        )
        for view, tail, since_s in views:
            if view is self.flows and not self._reads_flows:
                continue
            filling = GlobalTableReader(
                view,
                self.settings.bootstrap,
                lambda m, e: self.reject(m, e),
                tail=tail,
                since_s=since_s,
                registry=self.registry,
            )
            self._views.append(filling)
            self.task(f"lookup of {view.topic}", filling.run())
        if self.settings.topology_file is not None:
            self.task("topology file", self._follow_topology())

    async def tables_caught_up(self) -> None:
        """Wait until all lookups reached the end offsets seen at their start."""
        self.start_tables()
        for view in self._views:
            await view.caught_up.wait()

    def task(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the agents; its end by an error ends the worker."""
        task = asyncio.get_running_loop().create_task(work, name=what)
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
        """Cancel what runs beside the agents."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self, reason: str, error: BaseException | None = None) -> None:
        """End this worker with an error; what it holds is unacknowledged and read again by its successor."""
        if self.failed is not None:
            return
        self.failed = reason
        log.critical("stream worker gives up: %s", reason, exc_info=error)
        loop = asyncio.get_running_loop()
        self._ending = loop.create_task(self.app.stop(), name="stop after failure")
        loop.call_later(LAST_WORDS_S, os._exit, 70)

    async def send(self, topic: str, key: str, name: str, record: codec.Record) -> Awaitable[Any]:
        """Hand a record to the producer; awaiting the result waits for the log's acknowledgement."""
        value = codec.encode(name, record, self.registry)
        return await self.send_bytes(topic, key, value)

    async def send_bytes(self, topic: str, key: str, value: bytes | None) -> Awaitable[Any]:
        """Hand an encoded record to the producer; None takes the key back."""
        future = await self.app.producer.send(topic, key.encode(), value, None, None, None)
        return self._acknowledged(future)

    async def _acknowledged(self, future: Awaitable[Any]) -> None:
        sent = await future
        if sent.timestamp is not None and sent.timestamp > 0 and sent.timestamp_type == 1:
            self.log_clock.observe(sent.timestamp * 1_000_000, time.monotonic_ns())

    def highwater(self, tp: TP) -> int | None:
        """Return one past the last offset of a partition as far as the consumer knows."""
        consumer = self.app.consumer
        try:
            highwater = consumer.highwater(tp)
        except (AssertionError, KeyError, ValueError):
            return None
        return highwater if isinstance(highwater, int) else None

    def _consumer(self) -> Any:
        """Return Faust's consumer with its parts that have no public name (0.15.3)."""
        return self.app.consumer

    async def committed(self, tp: TP) -> int | None:
        """Return the offset where this worker begins to read a partition, None where its group never
        committed."""
        thread = self._consumer()._thread
        found = await thread.call_thread(thread._consumer.committed, TopicPartition(tp.topic, tp.partition))
        return found if isinstance(found, int) and found >= 0 else None

    def position(self, tp: TP) -> int | None:
        """Return one past the last offset that the client library has handed to Faust."""
        consumer = self._consumer()._thread._consumer
        assignment = consumer._subscription.subscription.assignment
        if assignment is None or TopicPartition(tp.topic, tp.partition) not in assignment.tps:
            return None
        state = assignment.state_value(TopicPartition(tp.topic, tp.partition))
        return state.position if state is not None and state.has_valid_position else None
