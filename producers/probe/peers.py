"""Whom a NIC probes: k peers of the fleet, the same for the same fleet, few changes where the fleet changes.

In: NIC names and a seed. Out: names. All NICs stand on a ring by their hash and each probes its successor, so
that the graph of all pairs is connected; the others are the k - 1 with the highest hash of (NIC, peer):
rendezvous hashing (Thaler and Ravishankar, 1998): a NIC that comes or goes changes one peer of a few NICs.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["choose_peers", "hashes_of"]

_Words: TypeAlias = NDArray[np.uint64]


def hashes_of(nics: Sequence[str], seed: int) -> _Words:
    """Return a 64-bit hash of each name under the fleet's seed."""
    key = seed.to_bytes(8, "big", signed=False)
    digests = b"".join(blake2b(nic.encode(), digest_size=8, key=key).digest() for nic in nics)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


def choose_peers(
    nic: str, nics: Sequence[str], count: int, seed: int = 0, hashes: _Words | None = None
) -> list[str]:
    """Return the peers of `nic` among `nics` (which may hold it): min(count, others) different names.

    `hashes`: `hashes_of(nics, seed)`, where the caller has it. The order of `nics` does not matter.
    """
    if hashes is None:
        hashes = hashes_of(nics, seed)
    own = hashes_of([nic], seed)[0]
    itself = [index for index in np.flatnonzero(hashes == own).tolist() if nics[index] == nic]
    others = np.delete(np.arange(len(nics)), itself)
    hashes = hashes[others]
    if len(others) == 0 or count < 1:
        return []
    ahead = np.argmin(hashes - own)  # wraps: the distance forward on the ring
    if len(others) <= count:
        order = np.argsort(hashes, kind="stable")
        return [nics[index] for index in others[order].tolist()]
    score = _mix(hashes ^ _mix(np.array([own], np.uint64)))
    score[ahead] = np.iinfo(np.uint64).max
    best = np.argpartition(score, len(score) - count)[-count:]
    best = best[np.argsort(score[best])[::-1]]
    return [nics[index] for index in others[best].tolist()]


def _mix(words: _Words) -> _Words:
    """Scramble 64-bit words, one to one: multiply by odd constants, fold the high bits down."""
    mixed = words.copy()
    for factor in (0xD6E8FEB86659FD93, 0xA3B195354A39B70D):
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(factor)
    result: _Words = mixed ^ (mixed >> np.uint64(29))
    return result
