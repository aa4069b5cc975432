"""Records the diagnosis's input of a simulated incident, and replays it without the simulation.

Nearly all of an incident's processor time is the fleet's. A recorded incident is diagnosed again in a second,
to fit the evidence's weights and to compare two versions.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from fabrictime.bench.workload._drawn import JOB, Incident, draw, simulation
from fabrictime.bench.workload._simulated import TOPICS, Pipeline
from producers.sim.setup import topology_file
from producers.sim.simulation import Simulation
from schemas.kafka.message import Message
from schemas.records import Diagnosis
from schemas.topics import CLOCK_OFFSETS, COLLECTIVES, DIAGNOSES, PATHS
from schemas.topology import Topology, TopologyFile
from streams.diagnosis.inputs import NETWORK
from streams.diagnosis.stage import DiagnosisStage
from streams.runtime.pipeline_constants import HOP_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.sim_runner import SimRunner

INPUTS: Final = frozenset(
    [COLLECTIVES.name, PATHS.name, CLOCK_OFFSETS.name, *(topic.name for topic in NETWORK)]
)
"""Topics that the diagnosis reads, its tables included."""
BEFORE_S, AFTER_S = 2.0, 4.0
"""Periods in which true iterations are counted: before the incident, and at its end."""


class Logged(NamedTuple):
    """One message of the log."""

    append_ns: int
    topic: str
    partition: int
    offset: int
    key: str
    value: bytes | None


@dataclass(slots=True)
class Recording:
    """The log of one incident, reduced to the diagnosis's topics, and the truth about the incident."""

    incident: Incident
    shard: str
    topology: TopologyFile
    messages: list[Logged]
    start_ns: int
    begin_ns: int
    end_ns: int
    slowdown: float
    """Share by which true iterations are less frequent than before the incident."""

    def save(self, path: Path) -> None:
        """Write the recording, compressed."""
        path.write_bytes(zlib.compress(pickle.dumps(self), 1))

    @staticmethod
    def load(path: Path) -> Recording:
        """Read a recording that `save` wrote. The file must be trusted, since loading can run code."""
        recording = pickle.loads(zlib.decompress(path.read_bytes()))  # noqa: S301
        if not isinstance(recording, Recording):
            raise TypeError(f"{path}: {type(recording).__name__}, expected a Recording")
        return recording


def record(kind: str, seed: int, *, ranks: int, warm_s: float, length_s: float) -> Recording:
    """Run an incident and return its log. Raises LookupError if the fleet has no place for it."""
    sim = simulation(kind, seed, TOPICS, ranks=ranks)
    incident = draw(kind, sim, seed)
    pipeline = Pipeline(sim, JOB, diagnoses=False)
    messages: list[Logged] = []
    pipeline.on_message(_keep(messages))
    start_ns = sim.now_ns
    _run(pipeline, warm_s - BEFORE_S)
    before = iterations(sim)
    _run(pipeline, BEFORE_S)
    iterations_per_s = (iterations(sim) - before) / BEFORE_S
    if incident.prepare is not None:
        incident.prepare(sim)
    for line in (*incident.decoys, *incident.lines):
        sim.fault(line)
    begin_ns = sim.now_ns
    _run(pipeline, length_s - AFTER_S)
    now = iterations(sim)
    _run(pipeline, AFTER_S)
    slowdown = 1 - (iterations(sim) - now) / AFTER_S / max(iterations_per_s, 1e-9)
    return Recording(
        replace(incident, prepare=None),
        sim.settings.shard,
        topology_file(sim.fleet),
        messages,
        start_ns,
        begin_ns,
        sim.now_ns,
        slowdown,
    )


def replay(recording: Recording) -> Iterator[tuple[int, Diagnosis]]:
    """Diagnose a recorded incident again; yield each diagnosis of the job with its publication time, ns."""
    runner = SimRunner(
        [DiagnosisStage()],
        recording.start_ns,
        settings=StreamSettings(default_shard=recording.shard),
        topology=Topology(recording.topology),
        hop_ns=None,
    )
    for logged in recording.messages:
        append_ns, topic, partition, offset, key, value = logged
        runner.append(Message(append_ns, topic, partition, offset, key, value))
    for at_ns, output in runner.advance(recording.end_ns):
        if output.topic is DIAGNOSES and output.key == JOB:
            yield at_ns + HOP_NS, output.record


def iterations(sim: Simulation) -> int:
    """Return the number of iterations that the job has done."""
    return next(job.done for job in sim.jobs.jobs if job.name == JOB)


def _run(pipeline: Pipeline, seconds: float) -> None:
    for _ in pipeline.advance(seconds):
        pass


def _keep(messages: list[Logged]) -> Callable[[Message], None]:
    def keep(message: Message) -> None:
        if message.topic in INPUTS:
            messages.append(
                Logged(
                    message.append_ns,
                    message.topic,
                    message.partition,
                    message.offset,
                    message.key,
                    message.value,
                )
            )

    return keep
