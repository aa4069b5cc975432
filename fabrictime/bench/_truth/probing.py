"""Sends probes through the true queues; returns their true times, queues and NIC timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench._truth.clocks import Clocks
from fabrictime.bench._truth.queues import LinkQueueing

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
TURNAROUND_NS: Final = (4_000.0, 20_000.0)
STAMP_NOISE_NS: Final = 4.0
STAMP_STEP_NS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Probes:
    """Probes to send: NIC numbers, [probes], and links of both directions, [probes, hops], -1 for no link."""

    nic: Int64s
    peer: Int64s
    path: Int64s
    sent_ns: Float64s
    there: Int64s
    back: Int64s


@dataclass(frozen=True, slots=True)
class Stamps:
    """The true times of the probes, and the queue that each met at each hop."""

    probes: Probes
    t1: Float64s
    t2: Float64s
    t3: Float64s
    t4: Float64s
    met_at_ns: Float64s
    """Arrival time at each link, [probes, hops there and back]; NaN for no link."""
    met_ns: Float64s
    """Wait at each link, [probes, hops there and back]; NaN for no link."""

    @property
    def links(self) -> Int64s:
        """Numbers of the links, [probes, hops of request and answer]; -1 for no link."""
        return np.concatenate([self.probes.there, self.probes.back], axis=1)

    @classmethod
    def joined(cls, parts: Sequence[Stamps]) -> Stamps:
        """Return one object with the stamps of all parts."""
        probes = Probes(
            *(np.concatenate([getattr(part.probes, name) for part in parts]) for name in Probes.__slots__)
        )
        names = ("t1", "t2", "t3", "t4", "met_at_ns", "met_ns")
        return cls(probes, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def read(self, clocks: Clocks | None, epoch_ns: int, rng: np.random.Generator) -> tuple[Int64s, ...]:
        """Return t1 to t4 as the NICs' clocks stamp the probes, with 4 ns of noise, in steps of 8 ns."""
        stamps = []
        nic, peer = self.probes.nic, self.probes.peer
        for t, of in ((self.t1, nic), (self.t2, peer), (self.t3, peer), (self.t4, nic)):
            ahead = clocks.ahead_ns(of, t) if clocks is not None else 0.0
            noisy = t + ahead + rng.standard_normal(len(t)) * STAMP_NOISE_NS
            stamps.append(epoch_ns + (np.rint(noisy / STAMP_STEP_NS) * STAMP_STEP_NS).astype(np.int64))
        return tuple(stamps)


def probe(
    queues: LinkQueueing,
    probes: Probes,
    rng: np.random.Generator,
    *,
    asymmetry_ns: Float64s | None = None,
    apart_ns: Float64s | None = None,
    sees_first: bool = False,
) -> Stamps:
    """Send the probes and return their stamps.

    `asymmetry_ns`, [probes], is added to the delay of the request and subtracted from that of the answer.
    `apart_ns`, [probes], shifts the time at which each probe reads the queues, which makes probes independent
    of each other. With `sees_first`, send stamps are taken before the sender's own queue.
    """
    hops = probes.there.shape[1]
    met_at, met = np.full((2, len(probes.nic), 2 * hops), np.nan)

    def pass_links(now: Float64s, links: Int64s, column: int) -> Float64s:
        now = now.copy()
        for hop in range(hops):
            crosses = links[:, hop] >= 0
            at = now[crosses]
            if hop or sees_first:
                read_at = at
                if apart_ns is not None:
                    span = queues.end_ns - queues.begin_ns
                    shift = apart_ns[crosses] * (hop + column + 1)
                    read_at = queues.begin_ns + (at + shift - queues.begin_ns) % span
                wait = queues.wait_ns(links[crosses, hop], read_at)
                met_at[crosses, column + hop], met[crosses, column + hop] = at, wait
                at = at + wait
            now[crosses] = at + queues.fabric.delay_ns
        return now

    half = 0.0 if asymmetry_ns is None else asymmetry_ns
    t2 = pass_links(probes.sent_ns, probes.there, 0) + half
    t3 = t2 + rng.uniform(*TURNAROUND_NS, len(t2))
    t4 = pass_links(t3, probes.back, hops) - half
    return Stamps(probes, probes.sent_ns, t2, t3, t4, met_at, met)
