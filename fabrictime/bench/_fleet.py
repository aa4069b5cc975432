"""Generates probe batches of many NICs whose clocks are known, quickly and without a network.

The inputs are the number of NICs, their clocks, peers, paths and rates; the results are `ProbeBatch` messages
for any interval of time. Only for benches and tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from native.core import ProbeColumns, encode_probe_batch
from schemas import codec
from schemas.topics import PROBES

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class SyntheticClock:
    """A clock that reads t + offset_ns + drift_ppb * 1e-9 * (t - epoch_ns) at t (ns since the Unix epoch)."""

    offset_ns: int = 0
    drift_ppb: float = 0.0
    epoch_ns: int = 0

    def reading(self, time_ns: Int64s) -> Int64s:
        """Return the clock's readings, ns, at the times `time_ns`."""
        drifted: Int64s = (self.drift_ppb * 1e-9 * (time_ns - self.epoch_ns)).astype(np.int64)
        return time_ns + self.offset_ns + drifted

    def reading_at(self, time_ns: int) -> int:
        """Return the clock's reading, ns, at a single time."""
        return int(self.reading(np.array([time_ns], np.int64))[0])


@dataclass
class SyntheticNic:
    """A simulated NIC that sends probes."""

    name: str
    clock: SyntheticClock
    peers: list[str]
    run: int
    batch: int = 0


@dataclass
class SyntheticFleet:
    """`nics` probers with random clocks, each probing `peers` others on `paths` paths."""

    nics: int
    peers: int = 10
    paths: int = 4
    delay_ns: float = 5_000.0
    jitter_ns: float = 400.0
    spacing_ns: int = 20_000
    offset_ns: float = 3e6
    drift_ppb: float = 12_000.0
    epoch_ns: int = 0
    seed: int = 1
    members: dict[str, SyntheticNic] = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.Generator(np.random.SFC64(self.seed))
        names = [f"host{number:04d}/eth0" for number in range(self.nics)]
        self.members = {}
        for number, name in enumerate(names):
            others = self._rng.permutation(self.nics - 1)[: self.peers]
            clock = SyntheticClock(
                int(self._rng.uniform(-self.offset_ns, self.offset_ns)),
                float(self._rng.uniform(-self.drift_ppb, self.drift_ppb)),
                self.epoch_ns,
            )
            peers = [names[other if other < number else other + 1] for other in others]
            self.members[name] = SyntheticNic(name, clock, peers, int(self._rng.integers(1, 2**62)))
        self._header = codec.header(PROBES.record)

    def columns(self, name: str, start_ns: int, end_ns: int, pairs_per_path: int) -> ProbeColumns:
        """Return a NIC's next batch: `pairs_per_path` coded pairs per peer and path within [start, end)."""
        nic = self.members[name]
        rng = self._rng
        per_group = 2 * pairs_per_path
        groups = len(nic.peers) * self.paths
        first = np.sort(rng.integers(start_ns, end_ns, (groups, pairs_per_path)), axis=1)
        sent = np.stack([first, first + self.spacing_ns], axis=2).reshape(groups, per_group)
        minimum = np.full((groups, per_group), self.delay_ns)
        out = (minimum + rng.exponential(self.jitter_ns, sent.shape)).astype(np.int64)
        back = (minimum + rng.exponential(self.jitter_ns, sent.shape)).astype(np.int64)
        turnaround = rng.integers(1_000, 3_000, sent.shape)
        t1 = nic.clock.reading(sent)
        t4 = nic.clock.reading(sent + out + turnaround + back)
        t2, t3 = np.empty_like(t1), np.empty_like(t1)
        for number, peer in enumerate(nic.peers):
            rows = slice(number * self.paths, (number + 1) * self.paths)
            clock = self.members[peer].clock
            t2[rows] = clock.reading(sent[rows] + out[rows])
            t3[rows] = clock.reading(sent[rows] + out[rows] + turnaround[rows])
        nic.batch += 1
        return ProbeColumns(
            nic=nic.name,
            run=nic.run,
            batch=nic.batch - 1,
            clock_ns=nic.clock.reading_at(end_ns),
            system_ns=end_ns,
            peers=[peer for peer in nic.peers for _ in range(self.paths)],
            path=np.tile(np.arange(50_000, 50_000 + self.paths, dtype=np.int32), len(nic.peers)),
            spacing_ns=np.full(groups, self.spacing_ns, np.int32),
            lost=np.zeros(groups, np.int32),
            no_t3=np.zeros(groups, np.int32),
            start=np.arange(groups + 1, dtype=np.int64) * per_group,
            sent=t1.reshape(-1),
            forward=(t2 - t1).reshape(-1),
            turnaround=(t3 - t2).reshape(-1),
            reverse=(t4 - t3).reshape(-1),
        )

    def message(self, name: str, start_ns: int, end_ns: int, pairs_per_path: int) -> bytes:
        """Return the next batch of a NIC like `columns`, encoded as a message for the log."""
        return self._header + encode_probe_batch(self.columns(name, start_ns, end_ns, pairs_per_path))
