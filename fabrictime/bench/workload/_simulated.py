"""Runs the simulated fleet through the stages of the pipeline up to the diagnosis of its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from fabrictime.bench._sim_pipeline import FLEET_TOPICS, SimPipeline
from producers.sim.simulation import TICK_NS, Simulation
from schemas.kafka.message import Message
from schemas.records import Diagnosis
from schemas.topics import DECISIONS, DIAGNOSES
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.diagnosis.stage import DiagnosisStage
from streams.links.stage import LinksStage
from streams.queues.stage import QueuesStage
from streams.runtime.pipeline_constants import HOP_NS
from streams.runtime.units import NS_PER_S

TOPICS: Final = (*FLEET_TOPICS, DECISIONS)
"""Topics of the fleet, and of decisions, by which its jobs learn how they were moved."""


class Pipeline:
    """The pipeline of one fleet with the stages that the diagnosis needs; it yields diagnoses of `job`.

    Without `diagnoses` it only makes the diagnosis's input records.
    """

    def __init__(self, sim: Simulation, job: str, *, diagnoses: bool = True) -> None:
        stages = [DelayStage(), ClockStage(), LinksStage(), QueuesStage(), ContentionStage()]
        stages += [DiagnosisStage()] * diagnoses
        self._job = job
        self._pipeline = SimPipeline(sim, stages, partitions=1, clock=time.process_time_ns)

    @property
    def busy_s(self) -> float:
        """Processor time, s, of the diagnosis, including reading messages."""
        return self._pipeline.runner.busy_ns[DiagnosisStage.name] / NS_PER_S

    def on_message(self, tap: Callable[[Message], None]) -> None:
        """Call a function with each message of the log."""
        self._pipeline.runner.tap = tap

    def advance(self, seconds: float) -> Iterator[tuple[int, Diagnosis]]:
        """Advance simulated time; yield each diagnosis with its publication time, ns."""
        for _ in range(round(seconds * NS_PER_S / TICK_NS)):
            for at_ns, output in self._pipeline.tick():
                if output.topic is DIAGNOSES and output.key == self._job:
                    yield at_ns + HOP_NS, output.record
