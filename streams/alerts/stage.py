"""Publishes the `Alert` records of an owner's shards.

Some topics are read from their beginning, others from as far back as an alert may wait. The links stage
passes decoded evidence on. The worker that owns a shard's partition of `fabric.links` owns its alerts. A new
owner restores the published alerts and reads the past hour again, which raises no alert twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from schemas.kafka.start import BEGINNING, Start, since
from schemas.topics import ALERTS, CLOCK_OFFSETS, CONFIG, DELAYS, INVENTORY, LINK_HEALTH, LINKS, Topic
from streams.alerts.ordered_inputs import MAIN, AlertInputs, read_from
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Input, Operator, Order, Owner, Restore, Stage
from streams.runtime.units import NS_PER_MS


def _starts_ns(log_ns: int, tables: FabricTables) -> dict[str, int]:
    """Return, by topic, the log time from which an owner that begins at `log_ns` reads it."""
    longest_s = max((rule["for_s"] for rule in tables.config.latency_rules()), default=0.0)
    return read_from(log_ns, tables.config.thresholds(), longest_s)


def _input(topic: Topic, **more: Any) -> Input:
    def start(log_ns: int, tables: FabricTables) -> Start:
        return since(_starts_ns(log_ns, tables)[topic.name])

    return Input(topic, start, **more)


def _has_rules(operator: Operator, tables: FabricTables) -> bool:
    return bool(tables.config.latency_rules())


_MAIN: Final = tuple(_input(topic) for topic in MAIN if topic is not LINKS)


class AlertsStage(Stage):
    """Raises, updates and clears alerts, one per cause."""

    name = "alerts"
    owner = LINKS
    inputs = (
        *_MAIN,
        _input(LINKS, is_owned=True, is_tapped=True),
        _input(DELAYS, is_needed=_has_rules),
    )
    outputs = (ALERTS,)
    order = Order.TIMED
    per_partition = False
    tables = (CONFIG, INVENTORY, CLOCK_OFFSETS)

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the published records from which a new owner continues."""
        return (
            Restore(ALERTS, BEGINNING, last_per_key=True),
            Restore(LINK_HEALTH, BEGINNING, last_per_key=True),
        )

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> AlertInputs:
        """Return the operator of all partitions of an owner."""
        return AlertInputs(
            owned=owner.owns,
            default_shard=owner.settings.default_shard,
            topology=tables.topology,
            registry=owner.registry,
            window_ns=owner.settings.window_ms * NS_PER_MS,
            starts_ns=_starts_ns(owner.epoch * NS_PER_MS, tables),
            log_offset_ns=tables.clocks.log_offset_ns,
        )
