"""Draws the candidate source ports to which flows may be moved. This module is pure."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

LAST_PORT: Final = 65_535
BYTES_PER_PORT_DRAW: Final = 4
MAX_CACHED: Final = 8192


@lru_cache(maxsize=MAX_CACHED)
def flow_candidate_ports(source: str, peer: str, peer_port: int, count: int, first: int) -> tuple[int, ...]:
    """Return `count` candidate source ports, from `first` on, for flows from `source` to a port of `peer`.

    The ports are drawn by a hash of addresses and port, so a restarted reporter and any other program get the
    same candidates. With `count` above the number of available ports, all available ports are returned.

    `first` is 61,000 by default: the kernel assigns 32,768 to 60,999 to sockets (ip_local_port_range), so a
    port in that range may be in use when a flow should move. All ports are within RoCEv2's 49,152 to 65,535.

    Why 32 candidates: ECMP assigns each port to one of n routes as if at random. k ports miss one of n routes
    with probability below n (1 - 1/n)^k. They hit some route less than twice with probability below n (1 -
    1/n)^(k-1) (1 + (k-1)/n). So 32 ports reach all of 4 spines with 99.96%, and each at least twice with
    99.5%. Then the best route still offers a choice of ports. 8 spines need 64 ports (see `source_ports.py`).
    """
    span = LAST_PORT + 1 - first
    if count >= span:
        return tuple(range(first, LAST_PORT + 1))
    ports: dict[int, None] = {}
    number = 0
    while len(ports) < count:
        drawn = hashlib.blake2b(f"{source}>{peer}:{peer_port}/{number}".encode(), digest_size=32).digest()
        for at in range(0, len(drawn), BYTES_PER_PORT_DRAW):
            ports.setdefault(first + int.from_bytes(drawn[at : at + BYTES_PER_PORT_DRAW], "big") % span)
            if len(ports) == count:
                break
        number += 1
    return tuple(sorted(ports))
