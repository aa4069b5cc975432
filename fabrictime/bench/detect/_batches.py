"""Groups timestamps of probes into the batches that probers publish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core import ProbeColumns

EPOCH_NS: Final = 1_800_000_000 * 1_000_000_000
FLUSH_NS: Final = 50_000_000
FETCH_NS: Final = 20_000_000
"""Time until a batch's last stamps are fetched."""


def batches_of(
    names: Sequence[str],
    ends: tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]],
    times_ns: tuple[NDArray[np.floating], NDArray[np.floating]],
    stamps: Sequence[NDArray[np.int64]],
) -> list[tuple[int, ProbeColumns]]:
    """Return (flush time, batch) of all NICs, by time.

    `names`: of the NICs. `ends`: [N] number of each probe's NIC and peer, and its path. `times_ns`: [N] true
    times at which it left and its answer came, since EPOCH_NS. `stamps`: t1 to t4 as read, [N] each.
    """
    nic, peer, path = ends
    flush = ((times_ns[1] + FETCH_NS) // FLUSH_NS).astype(np.int64) + 1
    order = np.lexsort((times_ns[0], path, peer, nic, flush))
    batches = []
    for at in np.split(order, _cuts(flush[order], nic[order])):
        begin = np.concatenate([[0], _cuts(peer[at], path[at])])
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
            start=np.append(begin, len(at)).astype(np.int64),
            sent=stamps[0][at],
            forward=stamps[1][at] - stamps[0][at],
            turnaround=stamps[2][at] - stamps[1][at],
            reverse=stamps[3][at] - stamps[2][at],
        )
        batches.append((when, batch))
    return sorted(batches, key=lambda timed_batch: timed_batch[0])


def _cuts(*keys: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return where any of the sorted keys changes."""
    return np.flatnonzero(np.any(np.diff(np.stack(keys), axis=1) != 0, axis=0)) + 1
