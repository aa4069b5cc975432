"""Computes bus bandwidth as nccl-tests define it: comparable with a link's rate for any number of ranks.

An operation's `bytes`, S, are the rank's own message: its contribution, or its part of the root's data. For
reduce-scatter and all-to-all, the profilers of NCCL and RCCL count the part of one rank instead, P = S / n.
With n ranks and the duration t, nccl-tests define:

    all-reduce                      2 S (n - 1) / n / t
    reduce-scatter, all-to-all        S (n - 1) / n / t = P (n - 1) / t
    all-gather, gather, scatter       S (n - 1) / t
    broadcast, reduce, messages       S / t
"""

from __future__ import annotations

from typing import Final

from schemas.records import CollectiveFunction, CollectiveSource

_BITS: Final = 8
_NS_PER_S: Final = 1e9
_F = CollectiveFunction
_WHOLE: Final = (_F.BROADCAST, _F.REDUCE, _F.SEND, _F.RECEIVE, _F.SEND_RECEIVE)
_FROM_EACH: Final = (_F.ALL_GATHER, _F.GATHER, _F.GATHERV, _F.SCATTER, _F.SCATTERV)
_TO_EACH: Final = (_F.REDUCE_SCATTER, _F.ALL_TO_ALL)
_COUNT_PARTS: Final = (CollectiveSource.NCCL, CollectiveSource.RCCL)


def bus_bps(
    function: CollectiveFunction, source: CollectiveSource, ranks: int, size_bytes: int, busy_ns: int
) -> float | None:
    """Return the bus bandwidth, bit/s; None for functions without data, or an unknown number of ranks."""
    factor = _factor(function, source, ranks)
    if factor is None or busy_ns <= 0 or size_bytes <= 0:
        return None
    return size_bytes * _BITS * _NS_PER_S / busy_ns * factor


def _factor(function: CollectiveFunction, source: CollectiveSource, ranks: int) -> float | None:
    if function in _WHOLE:
        return 1.0
    if ranks < 1:
        return None
    if function is _F.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if function in _FROM_EACH or (function in _TO_EACH and source in _COUNT_PARTS):
        return ranks - 1
    return (ranks - 1) / ranks if function in _TO_EACH else None
