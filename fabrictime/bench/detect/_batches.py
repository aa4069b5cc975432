"""Groups timestamps of probes into the batches that probers publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core import ProbeColumns

EPOCH_NS: Final = 1_800_000_000 * 1_000_000_000
FLUSH_NS: Final = 50_000_000
FETCH_NS: Final = 20_000_000
"""Time until the last stamps of a batch are fetched."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The traffic class of each of N probes, and whether its request and its answer arrived with CE marks."""

    dscp: NDArray[np.integer]
    forward_ce: NDArray[np.bool_]
    reverse_ce: NDArray[np.bool_]


def batches_of(
    names: Sequence[str],
    ends: tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]],
    times_ns: tuple[NDArray[np.floating], NDArray[np.floating]],
    stamps: Sequence[NDArray[np.int64]],
    marks: Marks | None = None,
) -> list[tuple[int, ProbeColumns]]:
    """Return (flush time, batch) of all NICs, in the order of time.

    `names` are the names of the NICs. `ends` has the number of the NIC, the number of the peer, and the path
    of each of the N probes. `times_ns` has the true times, since EPOCH_NS, at which each probe left and its
    answer came. `stamps` has t1 to t4 as read, each [N]. Without `marks`, no probe has a class.
    """
    nic, peer, path = ends
    dscp = np.zeros(len(nic), np.int32) if marks is None else marks.dscp
    flush = ((times_ns[1] + FETCH_NS) // FLUSH_NS).astype(np.int64) + 1
    order = np.lexsort((times_ns[0], dscp, path, peer, nic, flush))
    batches = []
    for at in np.split(order, _cuts(flush[order], nic[order])):
        begin = np.concatenate([[0], _cuts(peer[at], path[at], dscp[at])])
        start = np.append(begin, len(at)).astype(np.int64)
        when = EPOCH_NS + int(flush[at[0]]) * FLUSH_NS
        none = np.zeros(len(begin), np.int32)
        batch = ProbeColumns(
            nic=names[nic[at[0]]],
            run=1,
            batch=int(flush[at[0]]),
            clock_ns=when,
            system_ns=when,
            peers=[names[number] for number in peer[at[begin]]],
            path=path[at[begin]].astype(np.int32),
            spacing_ns=none,
            lost=none,
            no_t3=none,
            start=start,
            sent=stamps[0][at],
            forward=stamps[1][at] - stamps[0][at],
            turnaround=stamps[2][at] - stamps[1][at],
            reverse=stamps[3][at] - stamps[2][at],
        )
        if marks is not None:
            batch.dscp, batch.ecn = dscp[at[begin]].astype(np.int32), np.diff(start).astype(np.int32)
            batch.forward_ce = np.flatnonzero(marks.forward_ce[at])
            batch.reverse_ce = np.flatnonzero(marks.reverse_ce[at])
        batches.append((when, batch))
    return sorted(batches, key=lambda timed_batch: timed_batch[0])


def _cuts(*keys: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return the indices at which any of the sorted keys changes."""
    return np.flatnonzero(np.any(np.diff(np.stack(keys), axis=1) != 0, axis=0)) + 1
