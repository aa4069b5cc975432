"""Selects the k peers that a NIC probes. The choice depends only on the fleet, and changes little with it.

All NICs are placed on a ring by their hash, and each NIC probes its successor, so the graph of all pairs is
connected. The other k - 1 peers are the NICs with the highest hashes of (NIC, peer). This is rendezvous
hashing (Thaler and Ravishankar, 1998): when a NIC joins or leaves, few NICs change one peer each.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Uint64s: TypeAlias = NDArray[np.uint64]


def hashes_of(nics: Sequence[str], seed: int) -> _Uint64s:
    """Return a 64-bit hash of each NIC name, which depends on the fleet's `seed`."""
    key = seed.to_bytes(8, "big", signed=False)
    digests = b"".join(blake2b(nic.encode(), digest_size=8, key=key).digest() for nic in nics)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


def choose_peers(
    nic: str, nics: Sequence[str], count: int, seed: int = 0, hashes: _Uint64s | None = None
) -> list[str]:
    """Return `count` distinct peers of `nic`, or all other NICs if there are fewer. `nics` may contain `nic`.

    `hashes` is `hashes_of(nics, seed)` if the caller has computed it. The order of `nics` has no effect.
    """
    if hashes is None:
        hashes = hashes_of(nics, seed)
    own = hashes_of([nic], seed)[0]
    itself = [index for index in np.flatnonzero(hashes == own).tolist() if nics[index] == nic]
    others = np.delete(np.arange(len(nics)), itself)
    hashes = hashes[others]
    if len(others) == 0 or count < 1:
        return []
    ahead = np.argmin(hashes - own)  # unsigned wrap: the forward distance on the ring
    if len(others) <= count:
        order = np.argsort(hashes, kind="stable")
        return [nics[index] for index in others[order].tolist()]
    score = _mix(hashes ^ _mix(np.array([own], np.uint64)))
    score[ahead] = np.iinfo(np.uint64).max
    best = np.argpartition(score, len(score) - count)[-count:]
    best = best[np.argsort(score[best])[::-1]]
    return [nics[index] for index in others[best].tolist()]


def _mix(values: _Uint64s) -> _Uint64s:
    """Mix the bits of 64-bit values one to one: multiply by odd constants and fold the high bits down."""
    mixed = values.copy()
    for factor in (0xD6E8FEB86659FD93, 0xA3B195354A39B70D):
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(factor)
    result: _Uint64s = mixed ^ (mixed >> np.uint64(29))
    return result
