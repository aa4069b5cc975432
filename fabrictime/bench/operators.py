"""Measures the operators of the map stage: processor time of a message of `fabric.probes`, by step.

The simulated fleet makes the messages, as `up --fleet sim:64` does. Decoding, windows, path queueing, fits
and path delays process them in one process, without Kafka, at the stage's own pace. All values that the stage
would publish are encoded. `bench compare --against 89f413fc operators` compares two commits: trees of before
`decode_messages` take one message a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fabrictime.bench import Figure, Progress, Target, Value
from native.core import ClockLine
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.ids import host_of
from schemas.kafka import partition_of
from schemas.records import ClockSync
from schemas.topics import CLOCK_FITS, PATH_QUEUEING, PROBES
from streams.delays.counters import JumpLimit
from streams.delays.queueing import SourceQueueing
from streams.delays.records import clock_fits, fit_window, path_delays
from streams.delays.source_partition import Source
from streams.runtime.columnar import encode_columnar
from streams.runtime.pipeline_constants import QUEUEING_NS, SILENCE_NS, SUB_SLOTS, WINDOW_NS, slot_ns_of
from streams.runtime.tables import Member

NAME: Final = "operators"
TARGETS: Final[Mapping[str, Target]] = {
    "us_per_message": Target("us", "<=", 100),
    "us_per_message_19_samples": Target("us", "<=", 100),
    "us_per_message_8_nics": Target("us"),
    "large_samples_per_second": Target("samples/s"),
}
RATIO_TARGETS: Final[Mapping[str, Target]] = {"large_samples_per_second": Target("x", ">=", 1.0)}

PARTITIONS: Final = 4
"""Partitions of the embedded log."""
SHARD: Final = "sim"
READ_NS: Final = 10_000_000
"""Interval between two reads of the log, ns."""
RATE_BPS: Final = 400_000_000_000
LARGE: Final = SimSettings(nics=16, rate_pps=6000, flush_ms=1000)
"""A fleet in which each NIC sends one message per second, with 6,000 samples."""


class Stored(NamedTuple):
    """A message as the log stores it."""

    append_ns: int
    offset: int
    key: bytes
    value: bytes

    @property
    def key_bytes(self) -> bytes:
        """The key of the message: the NIC's name, encoded as this tree does."""
        return self.key


@dataclass
class Fleet:
    """Messages of a fleet by partition, in the log's order, and the fleet's clocks."""

    models: Mapping[str, ClockLine]
    log: list[tuple[int, Stored]] = field(default_factory=list)
    _next: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    def append(self, append_ns: int, nic: str, value: bytes) -> None:
        """Add a message to its partition."""
        partition = partition_of(nic, PARTITIONS)
        self.log.append((partition, Stored(append_ns, self._next[partition], nic.encode(), value)))
        self._next[partition] += 1


@dataclass
class Operators:
    """The operators of all partitions, and the elapsed time of each step."""

    models: Mapping[str, ClockLine]
    steps_s: dict[str, float] = field(default_factory=dict)
    samples: int = 0

    def __post_init__(self) -> None:
        names = [f"{PROBES.name}/{partition}" for partition in range(PARTITIONS)]
        self.sources = [Source(name, WINDOW_NS, SILENCE_NS) for name in names]
        self.queueing = [SourceQueueing(name, slot_ns_of(RATE_BPS) // SUB_SLOTS) for name in names]
        self._members = {nic: Member(nic, host_of(nic), SHARD, nic) for nic in self.models}
        self._limit = JumpLimit(100_000, 1000.0)
        self._add = _add_together if hasattr(Source, "add_messages") else _add_one_by_one

    def add(self, partition: int, messages: Sequence[Stored]) -> None:
        """Process the messages of one read, and publish the windows that they close."""
        for window in self._add(self, partition, messages):
            self.samples += window.samples
            self._publish(partition, window)

    def take_queueing(self) -> None:
        """Encode the path queueing of all partitions."""
        for source in self.queueing:
            if source.waiting:
                for record in self.timed("queueing", source.take, self._members):
                    self.timed("queueing", encode_columnar, PATH_QUEUEING.type, record)

    def timed(self, step: str, work: Callable[..., Any], *given: Any) -> Any:
        """Call `work`, add its elapsed time to `step`, and return its result."""
        begin = time.perf_counter()
        result = work(*given)
        self.steps_s[step] = self.steps_s.get(step, 0.0) + time.perf_counter() - begin
        return result

    def _publish(self, partition: int, window: Any) -> None:
        fitted = self.timed("fits", fit_window, window)
        for record in self.timed("fits", clock_fits, fitted, self._members, [SHARD], WINDOW_NS, self._limit):
            self.timed("fits", codec.encode, CLOCK_FITS.type, record)
        self.queueing[partition].learn(fitted.fits)
        for nic, samples in sorted(window.nics.items()):
            member, number = self._members[nic], window.cut.window
            given = (samples.samples, member, number, WINDOW_NS, self.models, ClockSync.SYNCED, 0)
            self.timed("delays", path_delays, *given)


def _add_together(operators: Operators, partition: int, messages: Sequence[Stored]) -> list[Any]:
    from streams.delays.messages import decode_messages

    source, queueing = operators.sources[partition], operators.queueing[partition]
    batches, rejected = operators.timed("decode", decode_messages, messages)
    if rejected:
        raise RuntimeError(f"bench operators: {rejected[0][1]}")
    closed: list[Any] = operators.timed("windows", source.add_messages, messages, batches)
    operators.timed("queueing", queueing.add_messages, messages, batches, operators.models)
    return closed


def _add_one_by_one(operators: Operators, partition: int, messages: Sequence[Stored]) -> list[Any]:
    source: Any = operators.sources[partition]
    queueing = operators.queueing[partition]
    closed: list[Any] = []
    for append_ns, offset, key, value in messages:
        batch = operators.timed("decode", _decoded, key, value)
        closed += operators.timed("windows", source.add, append_ns, offset, len(value), batch, offset)
        operators.timed("queueing", queueing.add, batch, append_ns, offset, operators.models)
    return closed


def _decoded(key: bytes, value: bytes) -> Any:
    """Decode and check one message, as the stage did up to 89f413fc."""
    from native.core import decode_probe_batch
    from schemas.formats import format_of

    batch = decode_probe_batch(value, codec.body_start(value, PROBES.record))
    if format_of("nic").first_wrong([batch.nic, *batch.peers]) is not None or key != batch.nic.encode():
        raise RuntimeError(f"bench operators: batch of {batch.nic!r} under key {key!r}")
    return batch


def run(progress: Progress, quick: bool = False) -> Mapping[str, Value]:
    """Measure and return the figures by key, in about 15 s, or 2 s with `quick`."""
    seconds = 3 if quick else 12
    figures: dict[str, Value] = {}
    for key, settings in (
        ("us_per_message", SimSettings(nics=64)),
        ("us_per_message_19_samples", SimSettings(nics=64, rate_pps=380)),
        ("us_per_message_8_nics", SimSettings(nics=8, rate_pps=300)),
    ):
        progress(f"{key}: {settings.nics} NICs with {settings.rate_pps:g} probes/s for {seconds} s")
        fleet = simulated(settings, seconds)
        operators, busy_s = measured(fleet)
        messages, size = len(fleet.log), sum(len(stored.value) for _, stored in fleet.log)
        note = f"messages of {size / messages:.0f} bytes, {operators.samples / messages:.0f} samples"
        figures[key] = Figure(busy_s / messages * 1e6, note=note)
        total_s = sum(operators.steps_s.values())
        for step, step_s in operators.steps_s.items():
            share_us = step_s / total_s * busy_s / messages * 1e6
            figures[f"{key}_{step}"] = Figure(share_us, unit="us")
    progress("large messages")
    fleet = simulated(LARGE, 3 if quick else 6)
    operators, busy_s = measured(fleet)
    note = f"messages of {len(fleet.log[-1][1].value) / 1e3:.0f} kB, one core"
    figures["large_samples_per_second"] = Figure(operators.samples / busy_s, note=note)
    return figures


def measured(fleet: Fleet) -> tuple[Operators, float]:
    """Process all messages; return the operators and the processor time, s, that they used."""
    operators = Operators(fleet.models)
    reads = list(_reads(fleet.log))
    begin, taken_ns = time.process_time(), reads[0][0]
    for now_ns, messages_of in reads:
        for partition, messages in messages_of.items():
            operators.add(partition, messages)
        if now_ns - taken_ns >= QUEUEING_NS:
            operators.take_queueing()
            taken_ns = now_ns
    return operators, time.process_time() - begin


def _reads(log: Iterable[tuple[int, Stored]]) -> Iterator[tuple[int, dict[int, list[Stored]]]]:
    """Yield the time of each read and its messages by partition."""
    messages_of: dict[int, list[Stored]] = {}
    due_ns = None
    for partition, stored in log:
        due_ns = stored.append_ns + READ_NS if due_ns is None else due_ns
        if stored.append_ns >= due_ns:
            yield due_ns, messages_of
            messages_of, due_ns = {}, stored.append_ns + READ_NS
        messages_of.setdefault(partition, []).append(stored)
    if due_ns is not None:
        yield due_ns, messages_of


def simulated(settings: SimSettings, seconds: float) -> Fleet:
    """Return the probe batches of a simulated fleet, and the clocks that stamped them."""
    sim = Simulation(settings, topics=[PROBES])
    models = {
        nic: ClockLine(sim.start_ns + clock["offset_ns"], -clock["offset_ns"], -clock["drift_ppb"], 100.0)
        for nic, clock in zip(sim.fleet.nic_ids, sim.clocks, strict=True)
    }
    fleet = Fleet(models)
    for out in sim.advance(seconds):
        fleet.append(out.at_ns, out.key, out.value() or b"")
    return fleet
