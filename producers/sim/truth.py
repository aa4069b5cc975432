"""Records the truth of the simulated fleet: link state, queues and contention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from producers.sim.topology import LinkKind
from schemas.records import ContentionKind, FabricTruth, TrueContention, TrueJob, TrueLink
from schemas.topics import MAX_ELEMENTS, TRUTH

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation

_SECOND_NS: Final = 1_000_000_000
_OPEN_SHARE: Final = 0.5
_CLOSE_SHARE: Final = 0.125
_OPEN_TICKS: Final = 2
_CLOSE_TICKS: Final = 10
"""Contention begins when a fluid queue averages at least half of Kmin in each of two ticks. It ends when the
queue has been below an eighth of Kmin for this many ticks."""


class TruthRecorder:
    """Follows the queues of one simulation and publishes `FabricTruth`."""

    def __init__(self, sim: Simulation, tick_ns: int) -> None:
        self._sim, self._tick_ns = sim, tick_ns
        links = sim.fleet.links
        self._sums = self._second_sums = sim.kernel.link_sums()
        self._second_step = 0
        self.wait_ns = np.zeros(links)
        """Recent wait of packets at each link, ns."""
        self._hot_ticks: dict[int, int] = {}
        """For each link with a deep queue, the number of consecutive ticks in which it was deep."""
        self._cool_ticks: dict[int, int] = {}
        """By link with contention but a shallow queue, the number of ticks since it was deep."""
        self._contention: dict[int, TrueContention] = {}
        self._contention_past: list[TrueContention] = []

    def watch_queues(self) -> None:
        """Read the mean depth of every fluid queue in the last tick. A persistent queue is contention."""
        sums = self._sim.kernel.link_sums()
        steps = self._tick_ns / self._sim.step_ns
        depth_steps = sums[0] - self._sums[0]
        self._sums = sums
        begin_mark = 0.1 * self._sim.fleet.shape.buffer_bytes * steps
        hot_links = np.flatnonzero(depth_steps >= _OPEN_SHARE * begin_mark).tolist()
        self._hot_ticks = {link: self._hot_ticks.get(link, 0) + 1 for link in hot_links}
        self._cool_ticks = {
            link: self._cool_ticks.get(link, 0) + 1
            for link in self._contention
            if depth_steps[link] < _CLOSE_SHARE * begin_mark
        }
        now_ns = self._sim.now_ns
        for link, ticks in self._hot_ticks.items():
            if ticks == _OPEN_TICKS and link not in self._contention:
                self._contention[link] = {
                    "link": self._sim.fleet.link_ids[link],
                    "kind": self._kind_of(link),
                    "begin_ns": now_ns - _OPEN_TICKS * self._tick_ns,
                    "end_ns": None,
                }
        for link in [link for link, ticks in self._cool_ticks.items() if ticks >= _CLOSE_TICKS]:
            ended = self._contention.pop(link)
            self._contention_past.append({**ended, "end_ns": now_ns - _CLOSE_TICKS * self._tick_ns})

    def _kind_of(self, link: int) -> ContentionKind:
        """Return the kind of contention at a link: that of the link's fault, else by the link's position."""
        kinds = {f.spec.kind for f in self._sim.faults if f.on and link in f.target.links}
        for kind in ("pause-storm", "slow-receiver", "slow-sender"):
            if kind in kinds:
                return ContentionKind(kind.replace("-", "_").upper())
        if self._sim.fleet.kind[link] == LinkKind.LEAF_DOWN:
            return ContentionKind.INCAST
        is_first = self._sim.fleet.kind[link] == LinkKind.HOST_UP
        return ContentionKind.SLOW_SENDER if is_first else ContentionKind.COLLISION

    def publish(self, jobs: list[TrueJob]) -> None:
        """Publish the truth about the last second. `jobs` holds the iterations that ended in it."""
        sums, limit = self._sim.kernel.link_sums(), self._sim.kernel.link_max()
        steps = self._sim.kernel.steps - self._second_step
        means = (sums - self._second_sums) / max(1, steps)
        self._second_sums, self._second_step = sums, self._sim.kernel.steps
        depth, packet, busy = means[0], means[1], means[2]
        self.wait_ns = (depth + packet) * 8e9 / self._sim.fleet.rate_bps
        begin_ns, end_ns = self._sim.now_ns - _SECOND_NS, self._sim.now_ns
        past, self._contention_past = self._contention_past, []
        if TRUTH.name not in self._sim.topic_names:
            return
        s, names = self._sim.states, self._sim.fleet.link_ids
        notable = np.flatnonzero((busy > 0) | (depth > 0) | ~s.up | (s.loss > 0) | (s.share < 1))
        rows: list[TrueLink] = [
            {
                "link": names[link],
                "up": up,
                "loss_rate": loss,
                "depth_mean_bytes": mean,
                "depth_max_bytes": deepest,
                "utilisation": used,
            }
            for link, up, loss, mean, deepest, used in zip(
                notable.tolist(),
                s.up[notable].tolist(),
                s.loss[notable].tolist(),
                (depth + packet)[notable].tolist(),
                (limit + packet)[notable].tolist(),
                busy[notable].tolist(),
                strict=True,
            )
        ]
        faults = [
            fault.record(names)
            for fault in self._sim.faults
            if fault.begin_ns < end_ns and (fault.end_ns is None or fault.end_ns >= begin_ns)
        ]
        parts = max(1, -(-len(rows) // MAX_ELEMENTS))
        for part in range(parts):
            record: FabricTruth = {
                "shard": self._sim.settings.shard,
                "start_ns": begin_ns,
                "end_ns": end_ns,
                "part": part,
                "parts": parts,
                "faults": [] if part else faults,
                "links": rows[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
                "contention": [] if part else [*past, *self._contention.values()],
                "jobs": [] if part else jobs,
            }
            self._sim.publish(TRUTH, self._sim.settings.shard, end_ns, record)

    def contention(self) -> list[TrueContention]:
        """Return the links with contention now, as `TrueContention` rows."""
        return list(self._contention.values())
