"""A closed loop of a job with alternating flows: an all-to-all in steps, millisecond by millisecond.

A report covers more time than a step, as in real flow reports. So reports show all flows to a NIC as active.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from streams.policy.rates.leases import Rates
from streams.runtime.flow_table import LiveFlow

MS = 1_000_000
S = 1_000 * MS
LINK_BPS = 100e6
FULL_MS = 20.0
"""Longest queue at a last link; beyond it, senders get an even part of the link."""
OPEN_MS, CLOSE_MS = 1.0, 500
QUEUES_LAG_MS, APPLIED_MS, CYCLE_MS = 100, 30, 50


class AlternatingLoop:
    """Ranks that each send a chunk to every other rank, pairwise, over `stripes` connections.

    `together`: the connections of a pair send at once, otherwise one after the other. A rank begins a phase
    when it has sent and received all of the previous one; all ranks begin an iteration together. `acts`:
    limits are applied. `ignore_incasts_ms`: time before the first incast is published. `iterations`: end of
    each iteration, ms.
    """

    def __init__(
        self,
        *,
        acts: bool,
        ranks: int = 8,
        stripes: int = 4,
        together: bool = True,
        step_ms: float = 35.0,
        spread: float = 0.2,
        seed: int = 3,
        ignore_incasts_ms: int = 0,
    ) -> None:
        self.acts, self.ranks, self.stripes, self.together = acts, ranks, stripes, together
        self.rng = np.random.default_rng(seed)
        self.chunk, self.spread, self.now = step_ms * LINK_BPS / 1e3 / stripes, spread, 0
        self.ignore_incasts_ms = ignore_incasts_ms
        shape = (ranks, ranks, stripes)
        self.left, self.sent, self.reported = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.pace = np.full(shape, np.inf)
        self.until = np.zeros(shape)
        self.queue = np.zeros(ranks)
        self.queues_bits: list[np.ndarray] = []
        self.phase = [0] * ranks
        self.iterations: list[int] = []
        self.live: dict[tuple[int, int, int], LiveFlow] = {}
        self.due = [100 + 37 * n for n in range(ranks)]
        self.last = [0] * ranks
        self.windows: dict[int, dict[str, Any]] = {}
        self.last_queue_ms: dict[int, int] = {}
        self.later: list[tuple[int, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.rates = Rates(lambda link: round(LINK_BPS))
        self.index = {
            f"h{i}/boot/sock:{j}-{k}": (i, j, k)
            for i in range(ranks)
            for j in range(ranks)
            if i != j
            for k in range(stripes)
        }
        self.wanted = 0
        for rank in range(ranks):
            self.begin(rank)

    def begin(self, rank: int) -> None:
        """Start the transfer of a rank's phase."""
        size = self.chunk * (1 + self.spread * (2 * self.rng.random() - 1))
        self.left[rank, (rank + self.phase[rank] + 1) % self.ranks] = size

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 1000)):
            self.step()

    def step(self) -> None:
        """Simulate a millisecond."""
        self.now += 1
        self.pace[self.until <= self.now] = np.inf
        sends = self.left > 0
        if not self.together:  # one connection of a pair after the other
            sends &= np.cumsum(sends, axis=2) == 1
        out = np.maximum(1, sends.sum(axis=(1, 2)))[:, None, None]
        into = np.maximum(1, sends.sum(axis=(0, 2)))[None, :, None]
        full = (self.queue * 1e3 / LINK_BPS >= FULL_MS)[None, :, None]
        bps = np.minimum(np.minimum(self.pace, LINK_BPS / out), np.where(full, LINK_BPS / into, np.inf))
        bits = np.where(sends, np.minimum(bps / 1e3, self.left), 0.0)
        self.left -= bits
        self.sent += bits
        self.queue = np.maximum(0, self.queue + bits.sum(axis=(0, 2)) - LINK_BPS / 1e3)
        self.queues_bits.append(self.queue.copy())
        self.begin_phases()
        self.publish_reports()
        if self.now % CYCLE_MS == 0:
            self.publish_queues()
        while self.later and self.later[0][0] <= self.now:
            heapq.heappop(self.later)[2]()
        if self.now % CYCLE_MS == 0:
            for wanted in self.rates.decide(self.now * MS, list(self.live.values())):
                self.wanted += 1
                if self.acts:
                    self.at(self.now + APPLIED_MS, lambda w=wanted: self.apply(w))

    def begin_phases(self) -> None:
        """Begin the next phase of ranks that have finished one."""
        n = self.ranks
        begins = []
        for rank in range(n):
            step = self.phase[rank] + 1
            source = (rank - step) % n
            if (
                step < n
                and not self.left[rank].any()
                and (
                    self.phase[source] > self.phase[rank]
                    or (self.phase[source] == self.phase[rank] and not self.left[source, rank].any())
                )
            ):
                begins.append(rank)
        for rank in begins:
            self.phase[rank] += 1
            if self.phase[rank] < n - 1:
                self.begin(rank)
        if min(self.phase) == n - 1:
            self.iterations.append(self.now)
            self.phase = [0] * n
            for rank in range(n):
                self.begin(rank)

    def publish_reports(self) -> None:
        """Publish each host's flow report, every 100 to 400 ms."""
        for rank in range(self.ranks):
            if self.now < self.due[rank]:
                continue
            bps = (self.sent[rank] - self.reported[rank]) * 1e3 / (self.now - self.last[rank])
            self.reported[rank], self.last[rank] = self.sent[rank], self.now
            self.due[rank] = self.now + int(self.rng.integers(100, 400))
            for name, (i, j, k) in self.index.items():
                if i == rank:
                    self.live[i, j, k] = LiveFlow(
                        name,
                        f"h{i}/0",
                        f"h{j}/0",
                        "job",
                        None,
                        float(bps[j, k]),
                        False,
                        False,
                        (_last(j),),
                        50_000 + k,
                        None,
                        0,
                        ("PACE",),
                    )

    def publish_queues(self) -> None:
        """Publish queues and incasts, with delay."""
        bits = np.array(self.queues_bits[-CYCLE_MS:])
        record = {
            "window_start_ns": (self.now - CYCLE_MS) * MS,
            "slot_ns": CYCLE_MS * MS,
            "slots": 1,
            "links": [
                {
                    "link": _last(n),
                    "rate_bps": round(LINK_BPS),
                    "bound_bytes": 2e3,
                    "depth_mean_bytes": float(bits[:, n].mean()) / 8,
                }
                for n in range(self.ranks)
            ],
        }
        self.at(self.now + QUEUES_LAG_MS, lambda: self.rates.take_queues(record))
        for n in range(self.ranks):
            if self.now > self.ignore_incasts_ms and bits[:, n].max() * 1e3 / LINK_BPS >= OPEN_MS:
                self.last_queue_ms[n] = self.now
            known = self.windows.get(n)
            is_open = self.now - self.last_queue_ms.get(n, -CLOSE_MS) < CLOSE_MS
            if not is_open and known is None:
                continue
            opened_ns = known["opened_ns"] if known else self.now * MS
            window = {
                "window_id": f"w/{n}/{opened_ns}",
                "link": _last(n),
                "opened_ns": opened_ns,
                "update": known["update"] + 1 if known else 0,
                "updated_ns": self.now * MS,
                "kind": "INCAST",
                "state": "UPDATED" if known and is_open else "OPENED" if is_open else "CLOSED",
                "delay_ns": float(bits[-1, n]) * 1e9 / LINK_BPS,
                "links": [],
                "candidates": [],
                "flows": [
                    {"flow_id": f.flow_id, "peer": f.peer} for f in self.live.values() if f.peer == f"h{n}/0"
                ],
            }
            self.windows[n] = window
            if not is_open:
                del self.windows[n]
            self.at(self.now + 30, lambda w=window: self.rates.take_contention(w))

    def at(self, at: int, act: Callable[[], None]) -> None:
        heapq.heappush(self.later, (at, next(self.count), act))

    def apply(self, wanted: Any) -> None:
        where = self.index[wanted.flow_id]
        self.pace[where] = wanted.rate_bps or np.inf
        self.until[where] = wanted.expires_at_ns / MS

    def iteration_ms(self, from_ms: int, to_ms: int) -> float:
        """Return the mean duration of the iterations that ended within the interval, ms."""
        ended = [at for at in self.iterations if from_ms <= at <= to_ms]
        return (ended[-1] - ended[0]) / (len(ended) - 1)

    def done(self, from_ms: int, to_ms: int) -> int:
        """Return the number of iterations that ended within the interval."""
        return sum(from_ms < at <= to_ms for at in self.iterations)

    def queue_ms(self, from_ms: int) -> float:
        """Return the mean delay at the last links since `from_ms`, ms."""
        return float(np.array(self.queues_bits[from_ms - self.now :]).mean()) * 1e3 / LINK_BPS


def _last(rank: int) -> str:
    return f"sw:{rank}>h{rank}:0"
