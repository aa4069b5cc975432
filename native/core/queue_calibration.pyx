# cython: boundscheck=False, wraparound=False, cdivision=True
"""Loops of the calibration of inferred queues over cells, routes and links.

`hop`: [routes, hops] columns of each route; behind its last one stands the number of columns. An argument by column
has one more element for that number, which stays 0. streams/queues/calibration.py has the method, and checks nothing:
callers pass arrays of the shapes that they keep.
"""

from libc.math cimport INFINITY, sqrt
from libc.stdint cimport int32_t, int64_t

import numpy as np

__all__ = ["expected_depths", "fit_shares", "fit_slopes", "learn_cells", "learn_kept_back", "learn_pairs",
           "limit_depths", "sum_routes"]


cdef int _check(const int32_t[::1] route, int64_t routes, const int64_t[::1] slot, int64_t begin, int64_t end) except -1:
    cdef int64_t i
    if slot.shape[0] != route.shape[0]:
        raise ValueError(f"{slot.shape[0]} slots of {route.shape[0]} cells")
    for i in range(route.shape[0]):
        if not (0 <= route[i] < routes and begin <= slot[i] < end):
            raise ValueError(f"cell {i}: route {route[i]}, slot {slot[i]}, expected 0 to {routes - 1} and {begin} to "
                             f"{end - 1}")
    return 0


cdef inline double _larger(double a, double b) noexcept nogil:
    return a if a > b else b


def limit_depths(const int64_t[:, ::1] hop, const int64_t[::1] slot, const int32_t[::1] route,
                 const double[::1] delay_ns, double[:, ::1] beside_ns, double[::1] newest_ns,
                 const double[::1] packet_ns, int64_t slots):
    """Return [slots, columns] longest delay of a cell in or beside the slot, else in the nearest slots with any.

    `slot`: -1 to `slots`. `beside_ns`: [2, columns] longest delays of the slots -1 and 0 so far, then of the last slot
    and the one behind it. `newest_ns`: [columns] longest delay before the block, then that of its end. A column without
    a delay has no limit.
    """
    cdef int64_t columns = packet_ns.shape[0], hops = hop.shape[1], cells = slot.shape[0], i, j, t, c
    cdef double near
    _check(route, hop.shape[0], slot, -1, slots + 1)
    longest = np.full((slots + 2, columns + 1), -np.inf)
    limit = np.empty((slots, columns))
    behind = np.full(columns, -np.inf)
    cdef double[:, ::1] longest_ = longest, limit_ = limit
    cdef double[::1] behind_ = behind
    with nogil:
        for t in range(2):
            for c in range(columns):
                longest_[t, c] = beside_ns[t, c]
        for i in range(cells):
            for j in range(hops):
                c = hop[route[i], j]
                longest_[slot[i] + 1, c] = _larger(longest_[slot[i] + 1, c], delay_ns[i])
        for t in range(2):
            for c in range(columns):
                beside_ns[t, c] = longest_[slots + t, c]
        for t in range(slots):  # `longest_` becomes the nearest delay up to each slot
            for c in range(columns):
                near = _larger(_larger(longest_[t, c], longest_[t + 1, c]), longest_[t + 2, c])
                newest_ns[c] = near if near > -INFINITY else newest_ns[c]
                limit_[t, c] = near
                longest_[t, c] = newest_ns[c]
        for t in range(slots - 1, -1, -1):
            for c in range(columns):
                near = limit_[t, c]
                behind_[c] = near if near > -INFINITY else behind_[c]
                near = near if near > -INFINITY else _larger(longest_[t, c], behind_[c])
                limit_[t, c] = _larger(near, packet_ns[c]) if near > -INFINITY else INFINITY
    return limit


def expected_depths(const double[:, ::1] queue_ns, const double[::1] level_ns, const double[::1] mean_ns,
                    const double[::1] far_ns, const double[:, ::1] slope, const double[:, ::1] limit_ns):
    """Return [slots, columns] calibrated depths, within 0 and the limit, and [columns] their mean.

    `limit_ns`: [slots, columns], None: no limit.
    """
    cdef int64_t slots = queue_ns.shape[0], columns = queue_ns.shape[1], t, c
    cdef bint limited = limit_ns is not None
    cdef double near, slow, depth
    depths, base, mean = np.empty((slots, columns)), np.zeros(columns), np.zeros(columns)
    cdef double[:, ::1] depths_ = depths
    cdef double[::1] base_ = base, mean_ = mean
    with nogil:
        for t in range(slots):
            for c in range(columns):
                base_[c] += queue_ns[t, c]
        for c in range(columns):
            base_[c] /= slots
            slow = base_[c] - mean_ns[c]
            near = slow if slow < far_ns[c] else far_ns[c]
            base_[c] = level_ns[c] + slope[0, c] * near + (slow - near) - slope[1, c] * base_[c]
        for t in range(slots):
            for c in range(columns):
                depth = _larger(base_[c] + slope[1, c] * queue_ns[t, c], 0)
                if limited:
                    depth = depth if depth < limit_ns[t, c] else limit_ns[t, c]
                depths_[t, c] = depth
                mean_[c] += depth
        for c in range(columns):
            mean_[c] /= slots
    return depths, mean


def learn_cells(const int64_t[:, ::1] hop, const int64_t[::1] slot, int64_t slots, const int32_t[::1] route,
                const double[::1] count, const double[::1] delay_ns, const double[::1] far_ns, double[::1] all_count, double[::1] all_delay):
    """Add cells to the sums of their routes; return [cells] delay without the links' deviations beyond the noise."""
    cdef int64_t cells = route.shape[0], hops = hop.shape[1], i, j
    _check(route, hop.shape[0], slot, 0, slots)
    usual = np.empty(cells)
    cdef double[::1] usual_ = usual
    cdef double above
    with nogil:
        for i in range(cells):
            above = 0
            for j in range(hops):
                above += far_ns[hop[route[i], j]]
            usual_[i] = delay_ns[i] - above
            all_count[route[i]] += count[i]
            all_delay[route[i]] += count[i] * usual_[i]
    return usual


def learn_kept_back(const int64_t[:, ::1] hop, const int64_t[::1] slot, const int32_t[::1] route,
                    const double[::1] count, const double[::1] usual_ns, const double[::1] slow_ns,
                    const double[:, ::1] queue_ns, const double[::1] queue_mean_ns,
                    double[::1] sum_count, double[::1] sum_delay,
                    double[:, :, ::1] sum_x, double[:, :, ::1] sum_xy, double[:, :, :, ::1] sum_xx):
    """Add the cells that the solver did not see to the sums of their routes.

    `slow_ns`: [columns + 1] deviation of the block, within the noise. `sum_x` and `sum_xy`: [2, routes, hops], of that
    deviation, and of a slot's from its block; `sum_xx`: [2, routes, hops, hops].
    """
    cdef int64_t cells = route.shape[0], hops = hop.shape[1], columns = queue_mean_ns.shape[0], i, j, k, r, part
    cdef double x, weighted
    values = np.zeros(hops)
    cdef double[::1] value = values
    with nogil:
        for i in range(cells):
            r = route[i]
            sum_count[r] += count[i]
            sum_delay[r] += count[i] * usual_ns[i]
            for part in range(2):
                for j in range(hops):
                    k = hop[r, j]
                    value[j] = 0
                    if k < columns:
                        value[j] = queue_ns[slot[i], k] - queue_mean_ns[k] if part else slow_ns[k]
                for j in range(hops):
                    x = value[j]
                    weighted = count[i] * x
                    sum_x[part, r, j] += weighted
                    sum_xy[part, r, j] += weighted * usual_ns[i]
                    for k in range(hops):
                        sum_xx[part, r, j, k] += weighted * value[k]


def sum_routes(const int64_t[:, ::1] hop, const int32_t[::1] route, const int64_t[::1] slot,
               const double[:, ::1] values):
    """Return [cells] sum of a table's values, [slots, columns], over the columns of each cell's route in its slot."""
    cdef int64_t cells = route.shape[0], hops = hop.shape[1], columns = values.shape[1], i, j
    sums = np.zeros(cells)
    cdef double[::1] sums_ = sums
    with nogil:
        for i in range(cells):
            for j in range(hops):
                if hop[route[i], j] < columns:
                    sums_[i] += values[slot[i], hop[route[i], j]]
    return sums


def learn_pairs(const int64_t[:, ::1] hop, const int32_t[::1] route, const int64_t[::1] slot,
                const double[::1] error_ns, const double[::1] var):
    """Return the number of pairs of cells in one slot of one column, and the sums over these pairs of the products of
    their errors and of `var`, by column."""
    cdef int64_t cells = route.shape[0], hops = hop.shape[1], columns = var.shape[0] - 1, size = 16, i, j, at, key
    cdef double pairs = 0, product = 0, variance = 0
    while size < 2 * cells * hops:
        size *= 2
    keys, counts, totals = np.full(size, -1, np.int64), np.zeros(size), np.zeros((size, 2))
    cdef int64_t[::1] keys_ = keys
    cdef double[::1] counts_ = counts
    cdef double[:, ::1] totals_ = totals
    with nogil:
        for i in range(cells):
            for j in range(hops):
                if hop[route[i], j] == columns:
                    continue
                key = slot[i] * (columns + 1) + hop[route[i], j]
                at = (key * 40_503) & (size - 1)
                while keys_[at] >= 0 and keys_[at] != key:
                    at = (at + 1) & (size - 1)
                keys_[at] = key
                counts_[at] += 1
                totals_[at, 0] += error_ns[i]
                totals_[at, 1] += error_ns[i] * error_ns[i]
        for at in range(size):
            if counts_[at] > 1:
                pairs += counts_[at] * (counts_[at] - 1)
                product += totals_[at, 0] * totals_[at, 0] - totals_[at, 1]
                variance += counts_[at] * (counts_[at] - 1) * var[keys_[at] % (columns + 1)]
    return pairs, product, variance


def fit_shares(const int64_t[:, ::1] hop, const double[::1] weight, const double[::1] total, double[::1] values,
               int rounds):
    """Fit values above 0, by column, whose sums over routes are `total / weight`, by expectation maximisation."""
    cdef int64_t routes = hop.shape[0], hops = hop.shape[1], columns = values.shape[0] - 1, r, j, c
    cdef double expected, ratio
    weights, shares = np.zeros(columns + 1), np.zeros(columns + 1)
    cdef double[::1] weights_ = weights, shares_ = shares
    cdef int number
    with nogil:
        for r in range(routes):
            for j in range(hops):
                weights_[hop[r, j]] += weight[r]
        for number in range(rounds):
            shares_[:] = 0
            for r in range(routes):
                if total[r] <= 0:
                    continue
                expected = 0
                for j in range(hops):
                    expected += values[hop[r, j]]
                ratio = total[r] / _larger(expected, 1e-9)
                for j in range(hops):
                    shares_[hop[r, j]] += ratio
            for c in range(columns):
                if weights_[c] > 0:
                    values[c] *= shares_[c] / _larger(weights_[c], 1e-9)


def fit_slopes(const int64_t[:, ::1] hop, const double[:, :, ::1] xx, const double[:, ::1] wanted,
               const double[::1] own, const double[::1] cells, const double[::1] spread, double prior, double step_share,
               double[::1] slope, int rounds):
    """Fit slopes from 0 to 1 by column: least squares over routes, each towards that of the pooled noise."""
    cdef int64_t routes = hop.shape[0], hops = hop.shape[1], columns = slope.shape[0] - 1, r, j, k, c
    cdef double rest, noise, weights, pooled, value
    steps = np.zeros(columns + 1)
    cdef double[::1] steps_ = steps
    cdef int number
    with nogil:
        for number in range(rounds):
            noise = weights = 0
            for c in range(columns):
                noise += (1 - slope[c]) * spread[c] * cells[c]
                weights += cells[c]
            noise /= weights
            steps_[:] = 0
            for r in range(routes):
                for j in range(hops):
                    if hop[r, j] == columns:
                        break
                    rest = wanted[r, j]
                    for k in range(hops):
                        rest -= xx[r, j, k] * slope[hop[r, k]]
                    steps_[hop[r, j]] += rest
            for c in range(columns):
                pooled = 1 - noise / spread[c]
                pooled = 0 if pooled < 0 else 1 if pooled > 1 else pooled
                value = slope[c] + step_share * (steps_[c] + prior * (pooled - slope[c])) / (own[c] + prior)
                slope[c] = 0 if value < 0 else 1 if value > 1 else value
