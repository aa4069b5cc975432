"""One Faust app and its consumer group in a worker, with the stages that it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import faust
from faust.types import TP

from schemas import codec
from schemas.kafka.message import Message
from schemas.service_notifier import ServiceNotifier
from schemas.topics import FLOWS
from streams.runtime.faust.context import TABLE_STARTS, WorkerContext
from streams.runtime.faust.faust_app import fetch_at_once, gather_fetches
from streams.runtime.faust.groupless_stage import GrouplessStage
from streams.runtime.faust.metrics import ServiceMetrics
from streams.runtime.faust.operator_stage import OperatorStage
from streams.runtime.faust.ownership import Ownership
from streams.runtime.faust.readiness import Readiness
from streams.runtime.faust.rejects import send_reject
from streams.runtime.faust.sink_stage import SinkStage
from streams.runtime.faust.watchdog import watch
from streams.runtime.operator import Stage
from streams.runtime.settings import StreamSettings


class Service:
    """One app with its consumer group, and the stages that it runs."""

    def __init__(
        self,
        app: faust.App,
        stages: Sequence[Stage],
        settings: StreamSettings,
        registry: codec.Registry | None,
        readiness: Readiness,
        gather_ms: int,
    ) -> None:
        """Connect the stages to the app. `gather_ms`: time for which fetches gather messages; 0: none."""
        self.app = app
        uses_tables = any(stage.store is None for stage in stages)
        uses_flows = any(FLOWS in stage.tables for stage in stages)
        tables = [topic for topic in TABLE_STARTS if (uses_flows if topic is FLOWS else uses_tables)]
        self.context = WorkerContext(app, settings, registry, tables)
        self.context.reject = self._reject_soon
        self.context.note = readiness.note
        self.owned = [self._ownership(stage) for stage in stages]
        self._metrics = ServiceMetrics(self.context, self.owned)
        for owned in self.owned:
            owned.register()
        self._gather_ms, self._ready = gather_ms, readiness.part()
        self._watching = False
        signals: Any = self.app
        signals.on_partitions_assigned.connect(self._assigned)
        signals.on_partitions_revoked.connect(self._revoked)
        signals.on_before_shutdown.connect(self._stopping)

    def _ownership(self, stage: Stage) -> Ownership:
        """Return the object that runs a stage on this service's partitions."""
        if stage.store is not None:
            return SinkStage(self.context, stage, stage.store)
        if stage.per_partition:
            return OperatorStage(self.context, stage)
        return GrouplessStage(self.context, stage)

    async def _assigned(self, app: Any, assigned: set[TP], *_: Any, **__: Any) -> None:
        if self._gather_ms:
            gather_fetches(app, self._gather_ms)
        else:
            fetch_at_once(app)
        for owned in self.owned:
            owned.assign(tp for tp in sorted(assigned) if tp.topic == owned.topic.name)
        self.context.task("readiness", self._report_ready(len(assigned)))
        if not self._watching:
            self._watching = True
            self.context.task("watchdog", watch(self.context, self.owned))

    async def _revoked(self, app: Any, *_: Any, **__: Any) -> None:
        await asyncio.gather(*(owned.revoke() for owned in self.owned))

    async def _report_ready(self, partitions: int) -> None:
        await self.context.tables_caught_up()
        for owned in self.owned:
            await owned.ready()
        self._ready(partitions)

    async def _stopping(self, app: Any, *_: Any, **__: Any) -> None:
        ServiceNotifier().notify("STOPPING=1")
        await asyncio.gather(*(owned.revoke() for owned in self.owned))
        await self.context.stop()

    def _reject_soon(self, message: Message, error: Exception) -> None:
        self.context.task("reject", send_reject(self.context, message, "lookup", error))
