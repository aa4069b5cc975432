"""Measures the time in which collectives move data: from the last rank's arrival to the last rank's end.

A rank that waits for data holds up the ranks that wait for it. So each rank's own wait for the network is
only a part of the time that an operation loses, about half of it in a ring. The time of the whole operation
includes all of the loss. It begins with the last arrival, so a rank that computes too long does not lengthen
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from streams.diagnosis.job.arrivals import Bools, Floats, Groups, Ints, distinct, group_medians, order_by
from streams.diagnosis.job.columns import Op, Rows

MAX_ERROR_SHARE: Final = 0.1
"""Largest error of the clocks, as a share of the measured time, for which the time counts as known."""


@dataclass(frozen=True, slots=True)
class Moving:
    """Time of moving data, ns by row, equal for all rows of an operation; NaN if unknown."""

    time: Floats
    error: Floats
    """Error bound, from the clocks of the ranks that arrived last and ended last."""

    def medians(self, kind: Ints, kinds: int, running: Bools) -> Floats:
        """Return the median time, ns, of each kind of operation; NaN if unknown."""
        return group_medians(kind, kinds, np.where(running, np.nan, self.time))


def moving_of(
    rows: Rows,
    rank: Ints,
    arrival: Floats,
    end: Floats,
    tolerance: Floats,
    grouped: Ints,
    groups: Groups,
    group_whole: Bools,
) -> Moving:
    """Return the time of moving data of each row.

    `arrival`, `end`, `tolerance`: ns of each row; `grouped`: rows of collectives, which `groups` indexes;
    `group_whole`: whether all ranks of the operation are seen. An unseen rank may be the last one, so the
    time of its operation is unknown. The time includes no flushing and no waiting for a GPU.
    """
    unknown = np.full(len(rows), np.nan)
    if not len(grouped):
        return Moving(unknown, unknown)
    own, group = rows[grouped], groups.group
    before = _end_before(own, rank[grouped], end[grouped])
    ready = np.fmax(arrival[grouped], before)  # a communicator works on one operation at a time
    is_sure = (own[:, Op.LAUNCH] >= 0) | ~np.isnan(before)

    def greatest(values: Floats) -> Floats:
        return np.asarray(np.maximum.reduceat(values[groups.order], groups.starts), np.float64)

    at_host = np.maximum(own[:, Op.GPU_LATE], 0) + np.maximum(own[:, Op.FLUSH], 0)
    time = np.maximum(greatest(end[grouped]) - greatest(ready) - greatest(at_host.astype(np.float64)), 0.0)
    error = 2 * greatest(tolerance[grouped])
    has_time = (
        group_whole & (greatest((~is_sure).astype(np.float64)) == 0) & (error <= MAX_ERROR_SHARE * time)
    )
    moving = Moving(unknown.copy(), unknown)
    moving.time[grouped] = np.where(has_time, time, np.nan)[group]
    moving.error[grouped] = error[group]
    return moving


def _end_before(rows: Rows, rank: Ints, end: Floats) -> Floats:
    """Return, by row, the end of the rank's preceding operation in the same communicator; NaN if unknown."""
    end_before = np.full(len(rows), np.nan)
    if len(rows) < 2:
        return end_before
    _, code = distinct(rows[:, Op.COMMUNICATOR])
    place = code * (int(rank.max()) + 1) + rank
    seq = rows[:, Op.SEQ]
    order = order_by(place, seq)
    first, second = order[:-1], order[1:]
    follows = (place[first] == place[second]) & (seq[first] + 1 == seq[second])
    end_before[second[follows]] = end[first[follows]]
    return end_before
