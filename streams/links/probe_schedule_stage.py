"""Probe-schedule stage: publishes the schedules of the shards whose clocks this worker solves.

It plans again when routes change, and publishes a schedule again when a clock has drifted from the published
model. Schedules of a dead worker stay valid until its successor publishes new ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from native.core import ClockLine
from schemas.kafka.async_reader import partition_count
from schemas.records import ProbeSchedule
from schemas.topics import CLOCK_FITS, PROBE_SCHEDULES
from streams.links.probe_schedule import Plan, plan_shard, records_of
from streams.runtime.assignment import Generation, Ownership
from streams.runtime.context import WorkerContext

__all__ = ["ScheduleStage"]

log = logging.getLogger(__name__)

CHECK_S: Final = 1.0
"""Period of the checks for changed routes and clocks."""
CALM_S: Final = 2.0
"""Time without a change of routes before a plan is made."""
MAX_WAIT_S: Final = 10.0
"""Longest time from a change to its plan."""
REPUBLISH_S: Final = 900.0
"""A record is published again after this time, so that the log keeps one of each NIC."""
MAX_DRIFT_NS: Final = 20_000.0
"""Deviation of a clock from its published model: a small part of a slot."""


class ScheduleStage:
    """The probe schedules of one worker's shards."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions = Ownership(context, "probe schedules", CLOCK_FITS, self._run)
        self._pool = ThreadPoolExecutor(1, "probe schedules")
        self._plans: dict[str, dict[str, Plan]] = {}
        self._versions = (-1, -1)
        """Versions of routes and inventory at the last check."""
        self._changed_s = 0.0
        self._since_s: float | None = None
        """Time of the first change without a plan; None: there is none."""
        self._published: dict[str, tuple[ProbeSchedule, float]] = {}

    async def _run(self, generation: Generation) -> None:
        """Follow the shards of a generation's partitions."""
        count = await partition_count(self.context.settings.kafka, CLOCK_FITS.name)
        generation.recovered.set()
        while True:
            await asyncio.sleep(CHECK_S)
            shards = self.context.inventory.shards()
            await self._check(
                {shard for shard in shards if self.partitions.owns(shard, count)}, time.monotonic()
            )

    async def _check(self, mine: set[str], now_s: float) -> None:
        """Plan what changed, and publish what is due."""
        plan_is_due = self._plan_is_due(now_s)
        for gone in set(self._plans) - mine:
            del self._plans[gone]
        for shard in sorted(mine):
            if plan_is_due or shard not in self._plans:
                await self._plan(shard)
        if plan_is_due:
            self._since_s = None
        for shard, plans in self._plans.items():
            await self._publish(shard, plans, now_s)

    def _plan_is_due(self, now_s: float) -> bool:
        versions = (self.context.routes.version, self.context.inventory.version)
        if versions != self._versions:
            self._versions, self._changed_s = versions, now_s
            self._since_s = now_s if self._since_s is None else self._since_s
        if self._since_s is None:
            return False
        return now_s - self._changed_s >= CALM_S or now_s - self._since_s >= MAX_WAIT_S

    async def _plan(self, shard: str) -> None:
        inventory = self.context.inventory
        probe_slots = {
            nic: slots for nic, slots in inventory.probe_slots.items() if inventory.member(nic).shard == shard
        }
        began_s = time.monotonic()
        loop = asyncio.get_running_loop()
        plans = await loop.run_in_executor(self._pool, plan_shard, probe_slots, self.context.routes)
        if plans != self._plans.get(shard):
            for nic in plans:
                self._published.pop(nic, None)
            took_s = time.monotonic() - began_s
            log.info("probe schedule of %s: %d NICs, planned in %.2f s", shard, len(plans), took_s)
        self._plans[shard] = plans

    async def _publish(self, shard: str, plans: dict[str, Plan], now_s: float) -> None:
        models = self.context.clocks.models()
        now_ns = self.context.log_clock.now_ns(time.monotonic_ns()) + self.context.clocks.log_offset_ns
        due = {nic: plan for nic, plan in plans.items() if self._is_due(nic, models.get(nic), now_s)}
        sent = []
        for nic, record in records_of(due, shard, models, now_ns).items():
            sent.append(await self.context.send(PROBE_SCHEDULES, nic, record))
            self._published[nic] = (record, now_s)
        await asyncio.gather(*sent)

    def _is_due(self, nic: str, model: ClockLine | None, now_s: float) -> bool:
        if model is None:
            return False
        published = self._published.get(nic)
        if published is None or now_s - published[1] >= REPUBLISH_S:
            return True
        record = published[0]
        since_ns = model.at_ns - record["clock_at_ns"]
        moved_ns = model.offset_ns - record["offset_ns"]
        return bool(abs(moved_ns - 1e-9 * record["drift_ppb"] * since_ns) > MAX_DRIFT_NS)
