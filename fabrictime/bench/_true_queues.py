"""Publishes the true queues of the simulated fleet as `LinkQueues`, in place of inferred queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.simulation import TICK_NS, Simulation
from schemas.records import LinkQueue, LinkQueues

WINDOW_TICKS: Final = 5


class TrueQueues:
    """The true queues of a simulated fleet, in windows with one slot per tick.

    Every window contains `links`, or, if None, only those links that have a queue in the window. `noise` is
    the relative standard deviation of the noise added to the depths.
    """

    def __init__(
        self, sim: Simulation, *, links: Sequence[int] | None = None, noise: float = 0.0, seed: int = 7
    ) -> None:
        self._sim, self._links, self._noise = sim, links, noise
        self._rng = np.random.default_rng(seed)
        self._sums = sim.kernel.link_sums()[0]
        self._slots: list[NDArray[np.float64]] = []
        self.depth_bytes = np.zeros(sim.fleet.links)
        """Mean queue of each link in the last tick, in bytes."""

    def tick(self) -> LinkQueues | None:
        """Read the queues after a tick; return the window that this tick completes, or None."""
        sums = self._sim.kernel.link_sums()[0].copy()
        self.depth_bytes, self._sums = (sums - self._sums) / (TICK_NS / self._sim.step_ns), sums
        self._slots.append(self.depth_bytes)
        if len(self._slots) < WINDOW_TICKS:
            return None
        depths, self._slots = np.array(self._slots), []
        if self._noise:
            depths = np.maximum(0, depths * (1 + self._noise * self._rng.normal(size=depths.shape)))
        return self._window(depths)

    def _window(self, depths: NDArray[np.float64]) -> LinkQueues:
        links = np.flatnonzero(depths.any(axis=0)).tolist() if self._links is None else self._links
        now_ns = self._sim.now_ns
        start_ns = now_ns - WINDOW_TICKS * TICK_NS
        return {
            "shard": self._sim.settings.shard,
            "window": start_ns // (WINDOW_TICKS * TICK_NS),
            "fold": 1,
            "synced": True,
            "paths": 0,
            "solved_ns": now_ns,
            "window_start_ns": start_ns,
            "slot_ns": TICK_NS,
            "slots": WINDOW_TICKS,
            "part": 0,
            "parts": 1,
            "links": [self._queue(link, depths[:, link]) for link in links],
        }

    def _queue(self, link: int, depth_bytes: NDArray[np.float64]) -> LinkQueue:
        fleet = self._sim.fleet
        return {
            "link": fleet.link_ids[link],
            "rate_bps": int(fleet.rate_bps[link]),
            "bound_bytes": 0.0,
            "group": 0,
            "depth_mean_bytes": float(depth_bytes.mean()),
            "depth_max_bytes": float(depth_bytes.max()),
            "utilisation": None,
            "utilisation_bound": None,
            "from_flows": False,
            "samples": 0,
            "slot": np.flatnonzero(depth_bytes).tolist(),
            "depth_bytes": depth_bytes[depth_bytes > 0].tolist(),
            "dscp": 0,
            "ce_share": 0.0,
            "ce_slot": [],
            "ce": [],
        }
