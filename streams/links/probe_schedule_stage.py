"""Turns for the probers of the shards whose clocks this worker solves: planned when paths change, told anew
when a clock has strayed from what was told of it.

In: the lookups. Out: `fabric.probe-schedules`. What a dead worker told stands until its successor tells again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from native.core import ClockLine
from schemas import codec
from schemas.topics import PROBE_SCHEDULES
from streams.links.probe_schedule import Plan, plan_shard, records_of
from streams.runtime.context import WorkerContext

__all__ = ["TurnsKeeper"]

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
CALM_S: Final = 2.0
"""s without another path until a plan is made, or `LATE_S` at most."""
LATE_S: Final = 10.0
AGAIN_S: Final = 900.0
"""s until a record is told again, so that the log holds one of each NIC."""
STRAY_NS: Final = 20_000.0
"""ns by which a clock may be elsewhere than was told: a small part of a turn."""


class TurnsKeeper:
    """Plans for `shards()`, the shards of this worker."""

    def __init__(self, context: WorkerContext, shards: Callable[[], Iterable[str]]) -> None:
        self.context = context
        self._shards = shards
        self._pool = ThreadPoolExecutor(1, "turns")
        self._plans: dict[str, dict[str, Plan]] = {}
        self._seen = (-1, -1)
        """Versions of paths and inventory as of the last tick."""
        self._changed_s = 0.0
        self._since_s: float | None = None
        """When the first change came that no plan was made of; None: there is none."""
        self._told: dict[str, tuple[codec.Record, float]] = {}

    def start(self) -> None:
        """Begin; call once within the event loop."""
        self.context.task("turns", self._run())

    async def _run(self) -> None:
        await self.context.tables_caught_up()
        while True:
            await asyncio.sleep(EVERY_S)
            await self._tick(time.monotonic())

    async def _tick(self, now_s: float) -> None:
        seen = (self.context.routes.version, self.context.inventory.version)
        if seen != self._seen:
            self._seen, self._changed_s = seen, now_s
            self._since_s = now_s if self._since_s is None else self._since_s
        due = self._since_s is not None and (
            now_s - self._changed_s >= CALM_S or now_s - self._since_s >= LATE_S
        )
        mine = set(self._shards())
        for gone in set(self._plans) - mine:
            del self._plans[gone]
        for shard in sorted(mine):
            if due or shard not in self._plans:
                await self._plan(shard)
        if due:
            self._since_s = None
        for shard, plans in self._plans.items():
            await self._tell(shard, plans, now_s)

    async def _plan(self, shard: str) -> None:
        inventory = self.context.inventory
        probe_slots = {
            nic: pace for nic, pace in inventory.probe_slots.items() if inventory.member(nic).shard == shard
        }
        began_s = time.monotonic()
        plans = await asyncio.get_running_loop().run_in_executor(
            self._pool, plan_shard, probe_slots, self.context.routes
        )
        if plans != self._plans.get(shard):
            for nic in plans:
                self._told.pop(nic, None)
            log.info("turns: %s, %d NICs, planned in %.2f s", shard, len(plans), time.monotonic() - began_s)
        self._plans[shard] = plans

    async def _tell(self, shard: str, plans: dict[str, Plan], now_s: float) -> None:
        lines = self.context.clocks.models()
        now_ns = self.context.log_clock.now_ns(time.monotonic_ns()) + self.context.clocks.log_offset_ns
        due = {nic: plan for nic, plan in plans.items() if self._is_due(nic, lines.get(nic), now_s)}
        sent = []
        for nic, record in records_of(due, shard, lines, now_ns).items():
            sent.append(await self.context.send(PROBE_SCHEDULES.name, nic, PROBE_SCHEDULES.record, record))
            self._told[nic] = (record, now_s)
        await asyncio.gather(*sent)

    def _is_due(self, nic: str, line: ClockLine | None, now_s: float) -> bool:
        if line is None:
            return False
        told = self._told.get(nic)
        if told is None or now_s - told[1] >= AGAIN_S:
            return True
        record = told[0]
        then_ns = record["offset_ns"] + 1e-9 * record["drift_ppb"] * (line.at_ns - record["clock_at_ns"])
        return bool(abs(line.offset_ns - then_ns) > STRAY_NS)
