"""Policy stage: publishes decisions, fallbacks and cycles of an owner's shards.

The worker that owns a shard's partition of `fabric.policy-cycles` owns the shard's policy, in an epoch of its
own. Actuators refuse decisions of older epochs. `PolicyCycles` are the steps from which an epoch replays.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas import codec
from schemas.kafka.start import Start, since
from schemas.topics import DECISIONS, FALLBACKS, POLICY_CYCLES, Topic
from schemas.validation import EPOCH_AHEAD_MS
from streams.policy.inputs import DECISION_LOOKBACK_NS, INPUTS, PolicyInputs, read_from
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Input, Order, Owner, Past, Restore, Stage, records_of
from streams.runtime.units import NS_PER_MS


def _input(topic: Topic) -> Input:
    def start(log_ns: int, tables: FabricTables) -> Start:
        return since(read_from(log_ns // NS_PER_MS)[topic.name])

    return Input(topic, start)


class PolicyStage(Stage):
    """The stage that runs the policy of each shard: the reaction of flows to link failures and contention."""

    name = "policy"
    owner = POLICY_CYCLES
    inputs = tuple(_input(topic) for topic in INPUTS)
    outputs = (DECISIONS, FALLBACKS, POLICY_CYCLES)
    order = Order.AS_READ
    per_partition = False
    uses_append_time = True

    def __init__(self, shard: str | None = None) -> None:
        """Set the shards to run: all, or for a replay only `shard`."""
        self._shard = shard

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the reads with which a new owner starts: of the recent decisions."""
        return (Restore(DECISIONS, lambda log_ns: since(log_ns - DECISION_LOOKBACK_NS)),)

    def epoch(self, log_ns: int, past: Past, registry: codec.Registry | None = None) -> int:
        """Return an epoch later than the epochs of all recent decisions; ignore those too far ahead."""
        began_ms = log_ns // NS_PER_MS
        epochs = (decision["epoch"] for decision in records_of(past, DECISIONS, registry))
        return max((began_ms, *(epoch + 1 for epoch in epochs if epoch <= began_ms + EPOCH_AHEAD_MS)))

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> PolicyInputs:
        """Return the policy operator of all partitions of an owner."""
        return PolicyInputs(
            owner.epoch,
            owner.places,
            owner.owns if self._shard is None else self._shard.__eq__,
            default_shard=owner.settings.default_shard,
            topology=tables.topology,
            registry=owner.registry,
        )
