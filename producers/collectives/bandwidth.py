"""Bus bandwidth as nccl-tests define it: comparable with the rate of a link, whatever the number of ranks.

An operation's `bytes` are those that the rank gives: its send buffer, or the message for broadcast and
receive. nccl-tests take the larger of both buffers instead, which is n times the send buffer of an all-gather
and of a gather. With n ranks and the time t:

    all-reduce      S / t * 2 (n - 1) / n
    all-gather      n S / t * (n - 1) / n = S / t * (n - 1)
    reduce-scatter  S / t * (n - 1) / n         (S: all of the send buffer)
    all-to-all      S / t * (n - 1) / n
    gather          S / t * (n - 1)
    scatter         S / t * (n - 1) / n
    others          S / t
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from schemas.records import CollectiveFunction

__all__ = ["bus_bps"]

_BITS: Final = 8
_NS_PER_S: Final = 1e9
_F = CollectiveFunction


def _shared(ranks: int) -> float:
    return (ranks - 1) / ranks


def _gathered(ranks: int) -> float:
    return ranks - 1


_FACTORS: Final[dict[CollectiveFunction, Callable[[int], float]]] = {
    _F.ALL_REDUCE: lambda ranks: 2 * _shared(ranks),
    _F.ALL_GATHER: _gathered,
    _F.REDUCE_SCATTER: _shared,
    _F.ALL_TO_ALL: _shared,
    _F.GATHER: _gathered,
    _F.SCATTER: _shared,
    **dict.fromkeys((_F.BROADCAST, _F.REDUCE, _F.SEND, _F.RECEIVE, _F.SEND_RECEIVE), lambda ranks: 1.0),
}
_ALONE: Final = (_F.BROADCAST, _F.REDUCE, _F.SEND, _F.RECEIVE, _F.SEND_RECEIVE)
"""Functions whose factor does not need the number of ranks."""


def bus_bps(function: CollectiveFunction, ranks: int, size_bytes: int, busy_ns: int) -> float | None:
    """Return the bus bandwidth in bit/s; None for functions without data, or an unknown number of ranks."""
    if function not in _FACTORS or busy_ns <= 0 or size_bytes <= 0 or (ranks < 1 and function not in _ALONE):
        return None
    return size_bytes * _BITS * _NS_PER_S / busy_ns * _FACTORS[function](ranks)
