"""Simulates one worker that infers queues of the shared fabric, at the speed of this machine.

The worker's time follows the log: it handles a message or a block after its arrival and after earlier work.
Work takes the processor time that it takes here, divided by `cores`. So a worker that is too slow falls
behind, and its longer slots and its skipping of old messages become visible.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from fabrictime.bench.detect.shared_fabric import CLOCK_BOUND_NS, EPOCH_NS, SHARD, Scene
from native.core import ClockLine, ProbeColumns
from schemas import codec
from schemas.ids import host_of
from schemas.records import LinkQueues
from schemas.topics import PATH_QUEUEING, QUEUES
from streams.delays.queueing import SourceQueueing
from streams.queues.inference import ShardQueues
from streams.queues.slot_fold import SKIP_LATE_NS
from streams.queues.stage import SKIP_BEHIND_NS
from streams.runtime.columnar import decode_columnar, encode_columnar
from streams.runtime.pipeline_constants import SUB_SLOTS
from streams.runtime.tables import Member

Lines = Callable[[int], Mapping[str, ClockLine]]
"""A function that returns the clock models by NIC as of a time of the log."""


@dataclass(slots=True)
class Work:
    """The results of a worker: the batches it skipped, the slots it published, and its lag."""

    spent_s: float = 0.0
    skipped: int = 0
    """Number of batches that were skipped as too old."""
    slots: Counter[int] = field(default_factory=Counter)
    """Published time, ns, by the number of slots combined into one."""
    behind_ns: int = 0
    """Largest age of a block at its publication, measured from the end of the block."""


class Worker:
    """A worker that takes batches, reduces them to slots and solves blocks, including all coding."""

    def __init__(
        self,
        scene: Scene,
        cores: float = 1.0,
        lines: Lines | None = None,
        clock_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        """Set up the worker; `clock_ns` returns the processor time that work has taken."""
        names = scene.fabric.nic_names()
        line_by_nic = dict.fromkeys(names, ClockLine(EPOCH_NS, 0, 0.0, CLOCK_BOUND_NS))
        rate_bps = round(scene.fabric.rate_bps)
        self.work = Work()
        self.now_ns = 0
        """The worker's present time, on the log's clock."""
        self._scene, self._cores, self._clock_ns = scene, cores, clock_ns
        self.lines: Lines = lines or (lambda _: line_by_nic)
        self.members = {nic: Member(nic, host_of(nic), SHARD, nic) for nic in names}
        self._source = SourceQueueing("bench/0", scene.slot_ns // SUB_SLOTS)
        self._queues = ShardQueues(SHARD, lambda link: rate_bps)
        self._waited_ns = 0

    def run(self) -> Iterator[tuple[int, LinkQueues]]:
        """Yield (the worker's time, record), in order."""
        flushes = [
            (when, [batch for _, batch in group])
            for when, group in groupby(self._scene.batches(), key=lambda timed_batch: timed_batch[0])
        ]
        next_flush = 0
        while True:
            if next_flush < len(flushes) and flushes[next_flush][0] <= self.now_ns:
                self._take(*flushes[next_flush], next_flush, is_newest=next_flush + 1 == len(flushes))
                next_flush += 1
            with self._timed():
                ready = self._queues.ready()
            if ready:  # messages and blocks alternate
                yield from self._solve()
            elif next_flush < len(flushes):
                self.now_ns = max(self.now_ns, flushes[next_flush][0])
            else:
                return

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Advance the worker's time by the processor time of the block's work."""
        began_ns = self._clock_ns()
        yield
        took_ns = self._clock_ns() - began_ns
        self.work.spent_s += took_ns / 1e9
        self.now_ns += round(took_ns / self._cores)

    def _take(self, when: int, batches: list[ProbeColumns], offset: int, *, is_newest: bool) -> None:
        self._waited_ns = 0 if is_newest else max(0, self.now_ns - when)
        if self._waited_ns > SKIP_BEHIND_NS:
            self.work.skipped += 1
            return
        lines = self.lines(when)
        with self._timed():
            for number, batch in enumerate(batches):
                self._source.add(batch, when, offset * len(batches) + number, lines)
            for record in self._source.take(self.members):
                value = encode_columnar(PATH_QUEUEING.type, record)
                self._queues.take(decode_columnar(value, PATH_QUEUEING.type), self._scene.routes)

    def _solve(self) -> Iterator[tuple[int, LinkQueues]]:
        began_ns, began_s = self.now_ns, self.work.spent_s
        with self._timed():
            self._queues.skip_late(SKIP_LATE_NS)
            records = self._queues.solve(began_ns)
            for record in records:
                codec.encode(QUEUES.type, record)
        spent_ns = round(1e9 * (self.work.spent_s - began_s) / self._cores)
        self._queues.keep_up(spent_ns, self._waited_ns)
        for record in records:
            length_ns = record["slot_ns"] * record["slots"]
            if record["slots"] > 1 and not record["part"]:
                self.work.slots[record["fold"]] += length_ns
                late_ns = self.now_ns - record["window_start_ns"] - length_ns
                self.work.behind_ns = max(self.work.behind_ns, late_ns)
            yield self.now_ns, record
