"""Probe-schedule stage: publishes the schedules of the shards whose clocks this worker solves.

A shard is planned again when its routes change. A schedule is published again when the NIC's clock has
drifted from the published model. Schedules of a dead worker stay valid until its successor publishes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from native.core import ClockLine
from schemas.kafka.message import Message
from schemas.records import ProbeSchedule
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, INVENTORY, PATHS, PROBE_SCHEDULES
from streams.links.schedule.probe_schedule import Plan, plan_shard, records_of
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Moment, Operator, Output, Owner, Stage, Work
from streams.runtime.units import NS_PER_S

log = logging.getLogger(__name__)

CHECK_NS: Final = 1 * NS_PER_S
"""Period of the checks for changed routes and clocks."""
CALM_NS: Final = 2 * NS_PER_S
"""Time without a change of routes before a plan is made."""
MAX_WAIT_NS: Final = 10 * NS_PER_S
"""Longest time from a change to its plan."""
REPUBLISH_NS: Final = 900 * NS_PER_S
"""Period at which each schedule is republished, so that the log keeps one of each NIC."""
MAX_DRIFT_NS: Final = 20_000.0
"""Deviation of a clock from its published model that republishes a schedule: a small part of a slot."""


class ScheduleOperator(Operator):
    """Plans the probe schedules of one owner's shards. Its times are fabric time, which does not step."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self._due_ns = 0
        self._plans: dict[str, dict[str, Plan]] = {}
        """Plan of each NIC, by shard."""
        self._versions = (-1, -1)
        """Versions of routes and inventory at the last check."""
        self._changed_ns = 0
        self._since_ns: int | None = None
        """Time of the first change that no plan includes yet; None if there is none."""
        self._published: dict[str, tuple[ProbeSchedule, int]] = {}

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Ignore messages: this operator reads all its input from tables."""

    def due_ns(self) -> int:
        """Return the log time of the next check, ns."""
        return self._due_ns

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output] | Work:
        """Plan the shards whose routes changed, and return the schedules to publish."""
        self._due_ns, now_ns = moment.log_ns + CHECK_NS, moment.log_ns + moment.offset_ns
        shards = {shard for shard in tables.inventory.shards() if self._owner.owns(shard)}
        self._plans = {shard: plans for shard, plans in self._plans.items() if shard in shards}
        models = tables.clocks.models()
        plan_is_due = self._plan_is_due(now_ns, tables)
        to_plan = sorted(shard for shard in shards if plan_is_due or shard not in self._plans)
        if not to_plan:
            return self._schedules(models, now_ns)
        inventory, routes = tables.inventory, tables.routes.snapshot()
        slots_of: dict[str, dict[str, tuple[int, int]]] = {shard: {} for shard in to_plan}
        for nic, slots in inventory.probe_slots.items():
            shard = inventory.member(nic).shard
            if shard in slots_of:
                slots_of[shard][nic] = slots

        def work() -> Sequence[Output]:
            for shard, probe_slots in slots_of.items():
                self._set_plans(shard, plan_shard(probe_slots, routes))
            return self._schedules(models, now_ns)

        return work

    def _plan_is_due(self, now_ns: int, tables: FabricTables) -> bool:
        """Return whether a change of routes or inventory is due: settled, or pending for `MAX_WAIT_NS`."""
        versions = (tables.routes.version, tables.inventory.version)
        if versions != self._versions:
            self._versions, self._changed_ns = versions, now_ns
            self._since_ns = now_ns if self._since_ns is None else self._since_ns
        if self._since_ns is None:
            return False
        if now_ns - self._changed_ns < CALM_NS and now_ns - self._since_ns < MAX_WAIT_NS:
            return False
        self._since_ns = None
        return True

    def _set_plans(self, shard: str, plans: dict[str, Plan]) -> None:
        if plans != self._plans.get(shard):
            for nic in plans:
                self._published.pop(nic, None)
            log.info("probe schedule of %s: %d NICs", shard, len(plans))
        self._plans[shard] = plans

    def _schedules(self, models: Mapping[str, ClockLine], now_ns: int) -> list[Output]:
        """Return the schedules to publish: new, due again, or with a clock that has drifted."""
        outputs: list[Output] = []
        for shard, plans in self._plans.items():
            due = {nic: plan for nic, plan in plans.items() if self._is_due(nic, models.get(nic), now_ns)}
            for nic, record in records_of(due, shard, models, now_ns).items():
                self._published[nic] = (record, now_ns)
                outputs.append(Output(PROBE_SCHEDULES, nic, record))
        return outputs

    def _is_due(self, nic: str, model: ClockLine | None, now_ns: int) -> bool:
        if model is None:
            return False
        published = self._published.get(nic)
        if published is None or now_ns - published[1] >= REPUBLISH_NS:
            return True
        record = published[0]
        since_ns = model.at_ns - record["clock_at_ns"]
        moved_ns = model.offset_ns - record["offset_ns"]
        return bool(abs(moved_ns - 1e-9 * record["drift_ppb"] * since_ns) > MAX_DRIFT_NS)


class ScheduleStage(Stage):
    """The probe schedules of the shards whose clocks a worker solves."""

    name = "probe schedules"
    owner = CLOCK_FITS
    inputs = ()
    outputs = (PROBE_SCHEDULES,)
    tables = (INVENTORY, PATHS, CLOCK_OFFSETS)
    per_partition = False

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> ScheduleOperator:
        """Return the operator of all partitions of an owner."""
        return ScheduleOperator(owner)
