"""Publishes the `Diagnosis` records of an owner's jobs.

The worker that owns a partition of `fabric.queues` owns the jobs in the partition of the same number of
`fabric.collectives`: both topics have equally many partitions. While no job publishes, nothing else is read;
from a job's first record on, the network's topics are read too. A new owner reads the past minutes again.
Identities follow from log time, so it repeats no record under another identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from schemas.kafka.start import Start, since
from schemas.topics import CLOCK_OFFSETS, COLLECTIVES, DIAGNOSES, PATHS, QUEUES, Topic
from streams.diagnosis.inputs import NETWORK, TAKEOVER_NS, DiagnosisInputs, read_from
from streams.diagnosis.rules import DiagnosisRules
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Input, Operator, Order, Owner, Restore, Stage
from streams.runtime.units import NS_PER_MS, NS_PER_S

PAST_NS: Final = 120 * NS_PER_S
"""Age of published diagnoses from which a new owner learns the jobs' baselines."""


def _input(topic: Topic, **more: Any) -> Input:
    def start(log_ns: int, tables: FabricTables) -> Start:
        return since(read_from(log_ns)[topic.name])

    return Input(topic, start, **more)


def _has_jobs(operator: Operator, tables: FabricTables) -> bool:
    return isinstance(operator, DiagnosisInputs) and operator.needs_network


_NETWORK: Final = tuple(_input(topic, is_needed=_has_jobs) for topic in NETWORK if topic is not PATHS)
"""The network's inputs, except the routes of probes, which are a table."""


class DiagnosisStage(Stage):
    """Diagnoses jobs at every full second of log time."""

    name = "diagnosis"
    owner = QUEUES
    inputs = (_input(COLLECTIVES, is_owned=True), *_NETWORK)
    outputs = (DIAGNOSES,)
    order = Order.TIMED
    per_partition = False
    tables = (PATHS, CLOCK_OFFSETS)
    reads_to_ends = True

    def __init__(self, rules: DiagnosisRules | None = None) -> None:
        self._rules = rules

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the published records from which a new owner continues."""
        return (Restore(DIAGNOSES, lambda log_ns: since(log_ns - PAST_NS)),)

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> DiagnosisInputs:
        """Return the operator of all partitions of an owner."""
        return DiagnosisInputs(
            owner.epoch * NS_PER_MS - TAKEOVER_NS,
            registry=owner.registry,
            rules=self._rules,
            probes=tables.routes,
            log_offset_ns=tables.clocks.log_offset_ns,
        )
