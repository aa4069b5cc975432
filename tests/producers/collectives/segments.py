"""Segments as a profiler would write them, by Python: with any content, and at any simulated rate."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from typing import Any

import numpy as np

from native.collectives.reader import BEGIN, COMMUNICATORS, END, EVENT, FUNCTIONS, Reader
from producers.collectives.process import Origin, TracedProcess
from producers.collectives.settings import CollectiveSettings
from producers.collectives.timeline import ClockReading, Timeline
from schemas import codec
from schemas.records import ClockSync

_HEAD = struct.Struct("<8sIIQIIQII128s128s64sQQQQQQ")
_COMMUNICATOR = struct.Struct("<IIIIQ128s32sI68x")
_DEVICE = struct.Struct("<I60s")
DEVICES_AT = 4096 + COMMUNICATORS * 256
_COMMUNICATORS_AT = 4096
_RINGS_AT = DEVICES_AT + 64 * 64
_RING_HEAD = 256
_TAIL_AT = 64
NCCL, MPI = 1, 3


def raw_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Segment:
    """A segment with one ring. `put` writes events unless the ring is full."""

    def __init__(self, ring_events: int = 65536, source: int = NCCL, job: str = "train") -> None:
        size = _RINGS_AT + _RING_HEAD + ring_events * EVENT.itemsize
        self.fd = os.memfd_create("segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self.memory = mmap.mmap(self.fd, size)
        self.ring_events = ring_events
        head = (b"FTCOLL1\0", 2, source, size, 1, ring_events, 1, os.getpid(), 0)
        _HEAD.pack_into(self.memory, 0, *head, job.encode(), b"ten", b"2.30.7/v6", 1, 0, 0, 0, 0, 0)
        self._ring = np.frombuffer(self.memory, EVENT, ring_events, _RINGS_AT + _RING_HEAD)
        self._heads = np.frombuffer(self.memory, np.uint64, _RING_HEAD // 8, _RINGS_AT)

    def communicator(
        self,
        index: int = 0,
        number: int = 7,
        rank: int = 0,
        ranks: int = 8,
        generation: int = 1,
        ready: int = 1,
    ) -> None:
        at = _COMMUNICATORS_AT + 256 * index
        _COMMUNICATOR.pack_into(self.memory, at, ready, rank, ranks, 1, number, b"world", b"0", generation)
        used, changed = struct.unpack_from("<QQ", self.memory, _HEAD.size - 16)
        struct.pack_into("<QQ", self.memory, _HEAD.size - 16, max(used, index + 1), changed + 1)

    def device(self, name: str, index: int = 0) -> None:
        _DEVICE.pack_into(self.memory, DEVICES_AT + 64 * index, 1, name.encode())

    def ignore(self, calls: int) -> None:
        """Count calls that did not fit earlier ones."""
        self._heads[2] += np.uint64(calls)

    def put(self, events: Any) -> int:
        head, tail = int(self._heads[0]), int(self._heads[_TAIL_AT // 8])
        fits = min(len(events), self.ring_events - (head - tail))
        self._ring[np.arange(head, head + fits) % self.ring_events] = events[:fits]
        self._heads[1] += np.uint64(len(events) - fits)
        self._heads[0] = head + fits
        return fits

    def close_last(self, closed: int = 1) -> None:
        struct.pack_into("<Q", self.memory, _HEAD.size - 32, closed)

    def reader(self) -> Reader:
        return Reader(self.fd)

    def close(self) -> None:
        os.close(self.fd)


def ended(sequences: Any, ns: Any = 100_000, **fields: Any) -> Any:
    """Return ends of operations that ended now."""
    events = np.zeros(len(sequences), EVENT)
    events["kind"], events["sequence"], events["operation"] = END, sequences, np.asarray(sequences) + 1
    events["end_raw_ns"] = raw_ns()
    events["begin_raw_ns"] = events["end_raw_ns"] - ns
    events["function"] = FUNCTIONS.index("ALL_REDUCE")
    events["bytes"], events["peer"] = 65536, -1
    for name, value in fields.items():
        events[name] = value
    return events


def begun(events: Any) -> Any:
    """Return the begins of some ends."""
    events = events.copy()
    events["kind"], events["end_raw_ns"] = BEGIN, 0
    return events


class Traced:
    """A process that reads a segment, in simulated seconds."""

    def __init__(self, segment: Segment, process: str = "1-1", **settings: Any) -> None:
        self.timeline = Timeline()
        given = CollectiveSettings(socket="unused", **settings)
        origin = Origin("h1", "boot", "s0", process)
        self.process = TracedProcess(
            segment.reader(),
            origin,
            given,
            self.timeline,
            ["h1/eth0", "h1/eth1"],
            {"mlx5_0": "h1/eth0"}.get,
            0.0,
        )
        self.sizes: list[tuple[float, int]] = []
        self.records: list[dict[str, Any]] = []

    def step(self, now_s: float, acknowledge: bool = True) -> None:
        raw = raw_ns()
        self.timeline.add(ClockReading(raw, raw + 10**18, 500.0, ClockSync.SYNCED))
        self.process.drain()
        if self.process.is_due(now_s) and self.process.make(now_s, ()) is not None:
            _, value = self.process.in_flight
            self.sizes.append((now_s, len(value)))
            self.records.append(codec.decode(value, "CollectiveBatch"))
            if acknowledge:
                self.process.acknowledged()
