"""Calibrates inferred queues with probes that are withheld from the inference.

The solver explains every delay by queues. So it overestimates queues between few probes, and spreads one
link's queue over others. One cell (a route's probes in one slot) in `EVERY` is withheld from the solver. Its
delay shows how far the depths can be trusted, link by link, without any assumption about the traffic:

E[y_i] = sum over the links of i of m_l + a_l D_l + b_l F_l

y_i is the delay of cell i. For each link, m is the usual queue. D is the deviation of a block's mean from the
usual mean, and F the deviation of a slot from its block's mean. The sum is the best linear estimate of the
true depth from the inferred one; a and b lie between 0 (worthless) and 1 (exact). A link without a queue has
m = 0 and a = b = 0. Deviations far beyond the noise of a block's mean are real, because that noise has no
long tail: the part of D above `FAR` standard errors counts in full. So a new standing queue is published at
its full depth at once.

m follows from the mean delays of all routes by expectation maximisation, which keeps it above 0 (Lucy, 1974).
a and b are least-squares estimates from sums per route, so that no single probe is stored.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s
from native.core.queue_calibration import (
    expected_depths,
    fit_shares,
    fit_slopes,
    learn_cells,
    learn_kept_back,
    learn_pairs,
    limit_depths,
    sum_routes,
)

# Means cannot tell a level of all links into a switch from one of all links out of it. But a link without
# real deviations has no queue. So the iteration for m starts from a var D + b var F of each link. All links
# have about the same noise. So a and b of a link that deviates no more than that are 0, until its own cells
# show otherwise.
#
# The error of a slot's mean is below that of a moment within it. Two probes kept back from one link and slot,
# at independent times, have the expected product of the slot's squared error. The ratio is pooled over the
# links. The bound is as many standard deviations as 95 % of the cells kept back are within. Delays show the
# sum of the variances on a route better than the share of each link. So a link's variance is at least half of
# its own and half of that of links of its level: a level has the pooled coefficient of variation, and more in
# a deep block.

EVERY: Final = 16
"""One cell in this many is kept back from the solver. The choice is fixed, so that a replay repeats it."""
MEMORY_S: Final = 10.0
FAR: Final = 3.0
PRIOR_CELLS: Final = 30.0
"""Weight, in cells, of the a and b by the noise of all links, in the fit of a link's own."""
ENOUGH_CELLS: Final = 50.0
"""Cells that must be kept back per link before depths are calibrated."""
FIRST_LEVEL_NS: Final = 100.0
MIN_VAR_SHARE: Final = 1e-3
"""Variance added to each link's, as a share of the mean one, so that no link's level stays at 0."""
MIN_VAR: Final = 1e-9
STEP: Final = 0.6
"""Share of a full step of the slope fit; below 1, because links that share cells move at the same time."""
WORK: Final = 2e6
MIN_ITERATIONS, MAX_ITERATIONS = 4, 40
"""Limits of the iterations per update; between them, an update takes about `WORK` products."""
FIRST_SIGMAS: Final = 2.0
OUTSIDE: Final = 0.05
"""Share of the cells kept back whose error may exceed the bound's number of standard deviations."""
BOUND_GAIN: Final = 0.2
"""Gain of the loop that adjusts the bound's number of standard deviations to `OUTSIDE`, block by block."""


class Calibration:
    """The calibration of the queue depths that one solver infers. A column is a link, or links that share it.

    Route i crosses the columns `hop[hop_start[i]:hop_start[i + 1]]`. `packet_ns`: [columns] time of a packet.
    """

    def __init__(self, hop_start: Int64s, hop: NDArray[np.int32], packet_ns: Float64s) -> None:
        lengths = np.diff(hop_start)
        self._columns = len(packet_ns)
        self._packet_ns = packet_ns
        routes, hops = len(lengths), int(lengths.max(initial=1))
        self._hop = np.full((routes, hops), self._columns, np.int64)
        self._used = np.arange(hops) < lengths[:, None]
        self._hop[self._used] = hop
        self._flat = self._hop.ravel()
        self._age_s = 0.0
        # sums by route: of all cells, of those kept back, and their moments with D and F
        self._all, self._all_y = np.zeros((2, routes))
        self._n, self._y, self._e2 = np.zeros((3, routes))
        self._x, self._xy = np.zeros((2, 2, routes, hops))
        self._xx = np.zeros((2, routes, hops, hops))
        self._pairs, self._pair_product, self._pair_var = 0.0, 0.0, 0.0
        more = self._columns + 1  # the last stands for no link
        self.level_ns: Float64s = np.full(more, FIRST_LEVEL_NS)
        self._mean_ns: Float64s = np.zeros(more)
        self._seen_s = 0.0
        self.slope: Float64s = np.ones((2, more))
        self._far_ns: Float64s = np.full(more, np.inf)
        self._point_var: Float64s = np.zeros(more)
        self._slot_share = 1.0
        self._bound_sigmas = FIRST_SIGMAS
        self._beside_ns: Float64s = np.full((2, more), -np.inf)
        """Longest delays in the last slot of the previous block, and those known so far of the next slot."""
        self._newest_ns: Float64s = np.full(self._columns, -np.inf)
        """Longest delay in or beside the newest slot with a cell."""
        self.level_ns[-1] = self.slope[0, -1] = self.slope[1, -1] = 0.0
        self.ready = False

    @classmethod
    def none(cls) -> Calibration:
        """Return a calibration without columns."""
        return cls(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0))

    def restore(self, of: Int64s, before: Calibration) -> None:
        """Copy the state of an earlier calibration. `of`: each column's index in `before`, -1 if new."""
        columns = np.flatnonzero(of >= 0)
        for name in ("level_ns", "_mean_ns", "_far_ns", "_point_var"):
            getattr(self, name)[columns] = getattr(before, name)[of[columns]]
        self.slope[:, columns] = before.slope[:, of[columns]]
        for name in ("_slot_share", "_bound_sigmas", "_seen_s", "ready"):
            setattr(self, name, getattr(before, name))

    def depths(self, queue_ns: Float64s, limit_ns: Float64s) -> tuple[Float64s, Float64s]:
        """Return the calibrated depths, [slots, columns], and the bounds of their errors, [columns], both ns.

        `queue_ns`: [slots, columns] inferred depths. `limit_ns`: [slots, columns] largest depth that the
        probes' delays allow.
        """
        depth_ns, mean_ns = self._expected(queue_ns, limit_ns)
        var = self._slot_share * self._var(mean_ns)
        return depth_ns, self._bound_sigmas * np.sqrt(var) + self._packet_ns

    def _var(self, mean_ns: Float64s) -> Float64s:
        """Return [columns] the variance of the depth at one instant, ns^2; `mean_ns`: the block's means."""
        level, var = self.level_ns[:-1] + self._packet_ns, self._point_var[:-1]
        pooled = float(var.sum() / (level**2).sum()) * level * np.maximum(level, mean_ns)
        larger: Float64s = np.maximum(var, (var + pooled) / 2)
        return larger

    def limit_ns(
        self,
        slots: int,
        slot: Int64s,
        route: NDArray[np.int32],
        delay_ns: Float64s,
        *,
        goes_on: bool = False,
    ) -> Float64s:
        """Return [slots, columns] the longest delay of any cell that crossed a column in or next to a slot.

        For a slot without such a cell, the nearest slots with cells count. Slots -1 and `slots` are the
        neighbours of the block. `goes_on`: whether the last call was for the preceding block.
        """
        if not goes_on:
            self._beside_ns[:], self._newest_ns[:] = -np.inf, -np.inf
        return limit_depths(
            self._hop, slot, route, delay_ns, self._beside_ns, self._newest_ns, self._packet_ns, slots
        )

    def _expected(self, queue_ns: Float64s, limit_ns: Float64s | None = None) -> tuple[Float64s, Float64s]:
        """Return the expected depths, [slots, columns], and their means, [columns], in ns."""
        if not self.ready:
            depth_ns = queue_ns if limit_ns is None else np.minimum(queue_ns, limit_ns)
            return depth_ns, depth_ns.mean(axis=0)
        return expected_depths(queue_ns, self.level_ns, self._mean_ns, self._far_ns, self.slope, limit_ns)

    def learn(
        self,
        queue_ns: Float64s,
        seconds: float,
        route: NDArray[np.int32],
        count: Float64s,
        delay_ns: Float64s,
        back: NDArray[np.bool_],
        slot: Int64s,
    ) -> None:
        """Learn from a block of `seconds`: from the depths that the solver found and the delays of all cells.

        `queue_ns`: [slots, columns]. The other arrays have one entry per cell; `back` marks the cells that
        were withheld from the solver.
        """
        mean_ns = queue_ns.mean(axis=0)
        slow = mean_ns - self._mean_ns[:-1]
        near = np.append(np.minimum(slow, self._far_ns[:-1]), 0.0)
        far = np.append(slow, 0.0) - near
        gain = seconds / min(self._seen_s + seconds, MEMORY_S)
        self._seen_s += seconds
        self._mean_ns += gain * near
        typical_ns = learn_cells(
            self._hop, slot, len(queue_ns), route, count, delay_ns, far, self._all, self._all_y
        )
        self._learn_back(queue_ns, mean_ns, near, far, route[back], count[back], typical_ns[back], slot[back])
        self._age_s += seconds
        if self._age_s >= 1.0:
            self._update()

    def _learn_back(
        self,
        queue_ns: Float64s,
        mean_ns: Float64s,
        near: Float64s,
        far: Float64s,
        route: NDArray[np.int32],
        count: Float64s,
        typical_ns: Float64s,
        slot: Int64s,
    ) -> None:
        if not len(route):
            return
        sums = self._n, self._y, self._x, self._xy, self._xx
        learn_kept_back(self._hop, slot, route, count, typical_ns, near, queue_ns, mean_ns, *sums)
        depth_ns, depth_mean_ns = self._expected(queue_ns)
        above = sum_routes(self._hop, route, np.zeros_like(slot), far[None, :-1])
        error = typical_ns + above - sum_routes(self._hop, route, slot, depth_ns)
        self._e2 += np.bincount(route, count * error**2, len(self._n))
        if self.ready:
            pairs, product, var = learn_pairs(self._hop, route, slot, error, self._point_var)
            self._pairs += pairs
            self._pair_product += product
            self._pair_var += var
            moment_var = self._var(depth_mean_ns)[None, :]
            sigma = np.sqrt(sum_routes(self._hop, route, np.zeros_like(slot), moment_var))
            outside = float((np.abs(error) > self._bound_sigmas * sigma).mean())
            self._bound_sigmas *= float(np.exp(BOUND_GAIN * (outside - OUTSIDE)))

    # ------------------------------------------------------------------------------------------ once a second

    def _over_links(self, values: Float64s) -> Float64s:
        """Return [columns] the sum of `values` [routes, hops] over the hops that cross each column."""
        sums = np.bincount(self._flat, (values * self._used).ravel(), self._columns + 1)[:-1]
        return sums.astype(np.float64)

    def _update(self) -> None:
        rounds = int(np.clip(WORK / max(1, self._xx[0].size), MIN_ITERATIONS, MAX_ITERATIONS))
        if not self.ready:
            self._fit_levels(rounds)
        cells = self._over_links(np.repeat(self._n[:, None], self._hop.shape[1], axis=1))
        base_ns = self.level_ns[self._hop].sum(axis=1)
        for part in range(2):
            self._fit(part, base_ns, cells, rounds)
        self._share_levels(cells, rounds / MAX_ITERATIONS)
        self._fit_levels(rounds)
        if not self._point_var.any():
            self._point_var[:-1] = self._packet_ns**2
        fit_shares(self._hop, self._n, self._e2, self._point_var, 3 * rounds)
        if self._pair_var > 0 and self._pairs > ENOUGH_CELLS:
            self._slot_share = float(np.clip(self._pair_product / self._pair_var, 0.05, 1.0))
        self.ready = self.ready or bool(np.median(cells) >= ENOUGH_CELLS)
        decay = np.exp(-self._age_s / MEMORY_S)
        for sums in (self._all, self._all_y, self._n, self._y, self._e2, self._x, self._xy, self._xx):
            sums *= decay
        self._pairs, self._pair_product = decay * self._pairs, decay * self._pair_product
        self._pair_var, self._age_s = decay * self._pair_var, 0.0

    def _fit_levels(self, rounds: int) -> None:
        """Fit the levels m (usual queues) to the mean delays of all routes."""
        fit_shares(self._hop, self._all, self._all_y, self.level_ns, 3 * rounds)

    def _share_levels(self, cells: Float64s, share: float) -> None:
        """Move the levels m, by `share`, towards each link's significant deviations; keep their total."""
        own = [self._over_links(np.einsum("rhh->rh", xx)) / np.maximum(cells, 1.0) for xx in self._xx]
        real_var = self.slope[0, :-1] * own[0] + self.slope[1, :-1] * own[1]
        total, level = float((cells * real_var).sum()), self.level_ns[:-1]
        if total > 0:
            target = (real_var + MIN_VAR_SHARE * real_var.mean()) * (float((cells * level).sum()) / total)
            level += np.where(cells > 0, share * (target - level), 0.0)

    def _fit(self, part: int, base_ns: Float64s, cells: Float64s, rounds: int) -> None:
        """Fit the slopes a of D (`part` 0) or b of F (1), with a prior from the noise of all links."""
        x, xy, xx = self._x[part], self._xy[part], self._xx[part]
        own = self._over_links(np.einsum("rhh->rh", xx))
        var = float(own.sum()) / max(float(cells.sum()), 1.0)
        if var <= 0:
            return
        prior = PRIOR_CELLS * var
        slope = self.slope[part]
        target = xy - base_ns[:, None] * x
        spread = np.maximum(own / np.maximum(cells, 1.0), MIN_VAR)
        fit_slopes(self._hop, xx, target, own, cells, spread, prior, STEP, slope, rounds)
        if part == 0:
            noise_var = (1 - slope[:-1]) * own / np.maximum(cells, 1.0)
            self._far_ns[:-1] = FAR * np.sqrt(noise_var) + self._packet_ns
