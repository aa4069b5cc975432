"""Estimates the utilisation of links from the share of probes that met no queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s
from native.core.queue_cells import add_idle
from native.core.queue_cells import busy_shares as renew_shares
from schemas.ids import end_parts
from streams.queues.routes import ROUND_TRIP
from streams.runtime.units import NS_PER_S

ITERATIONS: Final = 40
FIRST_SHARE: Final = 0.2
"""Busy share with which the iteration starts if there is no earlier result."""

MAX_SHARE: Final = 0.9999

USE_NS: Final = 10 * NS_PER_S
"""Length of time, ns, whose probes determine a link's utilisation."""


def busy_shares(
    hop_start: Int64s,
    hop_link: NDArray[np.int32],
    singles: Int64s,
    idle: Int64s,
    links: int,
    begin: Float64s | None = None,
    iterations: int = ITERATIONS,
) -> tuple[Float64s, Float64s]:
    """Return [links] the share of time in which each link is busy, and [links] the standard errors.

    Route i has links `hop_link[hop_start[i]:hop_start[i + 1]]`. Its `singles` probes did not follow directly
    behind another probe; `idle` of the single probes met no queue. Links without a probe get 0 and an
    infinite error. `begin`: [links] shares to start from.
    """
    # Probes with exponential gaps see time averages (Wolff, 1982): one finds link l busy with probability
    # rho_l, so all of a route idle with P_i = prod(1 - rho_l), if links are independent. The link that
    # delayed a probe is hidden: expectation maximisation (Dempster, Laird, Rubin, 1977). Of the n_i - k_i
    # delayed probes of route i, rho_l / (1 - P_i) each met l busy, so
    #
    #   rho_l <- sum_i (n_i - k_i) rho_l / (1 - P_i) / sum_i n_i
    #
    # whose fixed point is the likelihood's maximum. The error is that of a route's P, var P = P (1 - P) / n,
    # carried to rho_l by dP / d rho = - P / (1 - rho), with the other links taken as known.
    n = singles.astype(np.float64)
    share = np.full(links, FIRST_SHARE) if begin is None else np.clip(begin, 0.01, 0.98)
    free, observations = renew_shares(hop_start, hop_link, n, n - idle, share, MAX_SHARE, iterations)
    weight = n * free / np.maximum(1 - free, 1 / np.maximum(n, 1))
    information = np.bincount(hop_link, weights=np.repeat(weight, np.diff(hop_start)), minlength=links)
    with np.errstate(divide="ignore"):
        sigma = np.where(information > 0, (1 - share) / np.sqrt(information), np.inf)
    return np.where(observations > 0, share, 0.0), sigma


def end_nodes(names: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Return [links] the number of the node at which each link begins, and [links] of the node at its end."""
    nodes: dict[str, int] = {}
    ends = [name.partition(">") for name in names]
    begin = np.array([nodes.setdefault(end_parts(a).node, len(nodes)) for a, _, _ in ends], np.int64)
    end = np.array([nodes.setdefault(end_parts(b).node, len(nodes)) for _, _, b in ends], np.int64)
    return begin, end


def exchange_errors(
    lengths: Int64s, flat: Int64s, nodes: tuple[Int64s, Int64s], shares: Float64s
) -> Float64s:
    """Return [links] the error of each share, due to confusion of a switch's incoming and outgoing links.

    Probes do not show whether the links into a switch are busy or the links out of it. `flat`: links of all
    routes in sequence; `lengths`: [routes] number of links; `nodes`: `end_nodes` of the links.
    """
    # Where every route into a switch goes on, and every route out of it has come in, a route has one link
    # of each kind. With u = -log(1 - rho), a route's P is exp(-sum u). So u may move from all links in to
    # all links out, or back, and no probe shows it. The lowest u of a side limits it, as none falls below 0:
    #
    #   in:  -(1 - rho) (exp(min_in u) - 1)  to  +(1 - rho) (1 - exp(-min_out u)),  and out alike
    begin, end = nodes
    links, route = len(begin), np.repeat(np.arange(len(lengths)), lengths)
    joined = (route[1:] == route[:-1]) & (end[flat[:-1]] == begin[flat[1:]])
    crossed = np.bincount(flat, minlength=links)
    goes_on = np.bincount(flat[:-1][joined], minlength=links) == crossed
    came_in = np.bincount(flat[1:][joined], minlength=links) == crossed
    switches = int(max(begin.max(), end.max())) + 1
    transit = np.ones(switches, np.bool_)
    transit[end[(crossed > 0) & ~goes_on]] = False
    transit[begin[(crossed > 0) & ~came_in]] = False
    u = -np.log1p(-np.minimum(shares, MAX_SHARE))
    lowest = np.full((2, switches), np.inf)
    for side, node in enumerate((end, begin)):
        np.minimum.at(lowest[side], node[crossed > 0], u[crossed > 0])
    lowest[:, ~transit | ~np.isfinite(lowest).all(axis=0)] = 0.0
    fall = np.maximum(lowest[0][end], lowest[1][begin])
    rise = np.maximum(lowest[1][end], lowest[0][begin])
    error: Float64s = (1 - shares) * np.maximum(np.expm1(fall), -np.expm1(-rise))
    return error


@dataclass(slots=True)
class _Busy:
    """Numbers of single probes, and of idle ones among them, by route, in one second."""

    second: int
    singles: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    idle: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def grow(self, routes: int) -> None:
        """Extend the columns to `routes` routes."""
        more = routes - len(self.singles)
        if more > 0:
            self.singles = np.concatenate([self.singles, np.zeros(more, np.int64)])
            self.idle = np.concatenate([self.idle, np.zeros(more, np.int64)])


class IdleProbes:
    """The single and idle probes of each route over the last `USE_NS`, and the utilisation that they show."""

    def __init__(self) -> None:
        self._seconds: deque[_Busy] = deque()
        self._share: Float64s | None = None

    def clear(self) -> None:
        """Drop the probe counts of all seconds."""
        self._seconds.clear()

    def restart(self) -> None:
        """Discard the last estimate, from which the next would start, because routes have changed."""
        self._share = None

    def add(
        self,
        second: int,
        routes: int,
        route: NDArray[np.int32],
        singles: Int64s,
        idle: Int64s,
        direction: Int64s,
    ) -> None:
        """Add the probe counts of record rows in one second; ignore round trips.

        `routes`: number of all routes. `route`: route of each row, -1 if unknown.
        """
        if not self._seconds or self._seconds[-1].second != second:
            self._seconds.append(_Busy(second))
            while self._seconds[0].second <= second - USE_NS // NS_PER_S:
                self._seconds.popleft()
        busy = self._seconds[-1]
        busy.grow(routes)
        add_idle(route, direction, singles, idle, ROUND_TRIP, busy.singles, busy.idle)

    def shares(self, lengths: Int64s, flat: Int64s, links: int) -> tuple[Float64s, Float64s]:
        """Return the `busy_shares` of the links. `flat`: links of all routes; `lengths`: links per route."""
        singles, idle = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
        for busy in self._seconds:
            singles[: len(busy.singles)] += busy.singles
            idle[: len(busy.idle)] += busy.idle
        used = np.flatnonzero(singles)
        start = np.concatenate([[0], np.cumsum(lengths[used])]).astype(np.int64)
        hop_link = flat[np.repeat(singles > 0, lengths)].astype(np.int32)
        begin = self._share if self._share is not None and len(self._share) == links else None
        self._share, sigma = busy_shares(start, hop_link, singles[used], idle[used], links, begin)
        return self._share, sigma
