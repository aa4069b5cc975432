"""Attributes the CE marks of a block's probes to links.

A queue marks a packet independently of the other queues on its route. So a route's share of marked packets
is 1 - prod(1 - m) over the shares m of its links. Expectation maximisation finds the most likely shares. A
marked packet counts for each link of its route with the probability m / (1 - prod(1 - m)) that this link
marked it. A link's new share is the sum of these probabilities, divided by its packets. So links that
unmarked probes crossed lose share to the other links of the marked routes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from native.core.columns import Float64s, Float64Table
from streams.queues.cells import Cells
from streams.queues.link_columns import LinkColumns

ROUNDS: Final = 60
MIN_SHARE: Final = 0.01
"""A link's share below this is noise of the attribution and is set to 0."""


def marked_shares(cells: Cells, columns: LinkColumns, slot: np.ndarray, slots: int) -> Float64Table | None:
    """Return [slots, links] the share of its probes that each link marked; None if no probe is marked.

    `slot`: [cells] slot of each cell, from 0.
    """
    if not cells.ce.any():
        return None
    count, routes = columns.count, len(columns.lengths)
    # aliased links of a route are one unknown
    pairs = np.unique(np.repeat(np.arange(routes), columns.lengths) * count + columns.column[columns.flat])
    of_route, column = pairs // count, pairs % count
    lengths = np.bincount(of_route, minlength=routes)
    starts = np.cumsum(lengths) - lengths
    packets: Float64s = np.bincount(cells.route, cells.count, routes).astype(np.float64)
    marks: Float64s = np.bincount(cells.route, cells.ce, routes).astype(np.float64)
    weight = _weights(column, of_route, starts, packets, marks, count)
    # the block's attribution, by slot
    wide = lengths[cells.route]
    entry = np.repeat(starts[cells.route] - (np.cumsum(wide) - wide), wide) + np.arange(int(wide.sum()))
    key = np.repeat(slot, wide) * count + column[entry]
    marked = np.bincount(key, np.repeat(cells.ce, wide) * weight[entry], slots * count)
    crossed = np.bincount(key, np.repeat(cells.count, wide), slots * count)
    share = (marked / np.maximum(crossed, 1)).reshape(slots, count)
    share[share < MIN_SHARE] = 0.0
    shares: Float64Table = np.minimum(share, 1.0)[:, columns.column]
    return shares


def _weights(
    column: np.ndarray,
    of_route: np.ndarray,
    starts: np.ndarray,
    packets: Float64s,
    marks: Float64s,
    count: int,
) -> Float64s:
    """Return, for each link of each route, the probability that it made the marks of the route's packets."""
    crossed = np.maximum(np.bincount(column, packets[of_route], count), 1e-9)
    share = np.bincount(column, marks[of_route], count) / crossed
    weight: Float64s = np.zeros(len(column))
    for _ in range(ROUNDS):
        passed = np.multiply.reduceat(1 - np.minimum(share, 1 - 1e-9)[column], starts)
        weight = np.minimum(share[column] / np.maximum(1 - passed, 1e-12)[of_route], 1.0)
        share = np.bincount(column, marks[of_route] * weight, count) / crossed
    return weight
