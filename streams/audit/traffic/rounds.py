"""Plans the rounds of traffic between hosts. In a round, every host is in at most one pair. Pure.

A round of pairs is given as an order of hosts: the hosts at positions 2k and 2k + 1 are partners. A ring is
such an order too, and in the order of a fan the sender comes first.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

Pair = tuple[str, str]
SHUFFLES: Final = 200
"""Number of rings tried to find one without an earlier ring's neighbours: one of eight has none."""


def order_of(pairs: Sequence[Pair]) -> list[str]:
    """Return the order of hosts that represents a round of pairs."""
    return [host for pair in pairs for host in pair]


def pairs_of(order: Sequence[str]) -> list[Pair]:
    """Return the pairs in an order of hosts. If their number is odd, the last host has no pair."""
    return list(zip(order[::2], order[1::2], strict=False))


def tournament(hosts: Sequence[str]) -> list[list[Pair]]:
    """Return the rounds in which every host meets every other host once (the circle method).

    If only the first rounds are used, each host still has a different partner in each. With an odd number of
    hosts, one host pauses in each round.
    """
    seats: list[str | None] = [*hosts, None] if len(hosts) % 2 else [*hosts]
    half = len(seats) // 2
    rounds: list[list[Pair]] = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(a, b) for a, b in facing if a is not None and b is not None])
        seats.insert(1, seats.pop())
    return rounds


def fans(hosts: Sequence[str], receivers: int) -> list[list[str]]:
    """Return an order for each host: the host itself, then the next `receivers` hosts, to which it sends."""
    count = min(receivers, len(hosts) - 1)
    return [[hosts[(at + step) % len(hosts)] for step in range(count + 1)] for at in range(len(hosts))]


def within_leaves(hosts: Sequence[str], leaf_of: Mapping[str, str]) -> list[Pair]:
    """Return pairs of hosts on the same leaf. A host without a partner on its leaf is in no pair."""
    groups = _by_leaf(hosts, leaf_of)
    return [pair for group in groups for pair in pairs_of(group)]


def across_leaves(hosts: Sequence[str], leaf_of: Mapping[str, str]) -> list[Pair]:
    """Return pairs of hosts on different leaves, always from the two leaves with most hosts left."""
    groups = _by_leaf(hosts, leaf_of)
    pairs: list[Pair] = []
    while True:
        groups.sort(key=len, reverse=True)
        if len(groups) < 2 or not groups[1]:
            return pairs
        pairs.append((groups[0].pop(0), groups[1].pop(0)))


def _by_leaf(hosts: Sequence[str], leaf_of: Mapping[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for host in hosts:
        if host in leaf_of:
            groups.setdefault(leaf_of[host], []).append(host)
    return list(groups.values())


def batched(pairs: Sequence[Pair], size: int, leaf_of: Mapping[str, str]) -> list[list[Pair]]:
    """Return the pairs of a round in batches of at most `size`; pairs of one batch are on different leaves.

    Pairs that share a leaf are in one batch only if no other pair is left.
    """
    left, batches = list(pairs), []
    while left:
        batch: list[Pair] = []
        used: set[str] = set()
        for is_strict in (True, False):
            for pair in list(left):
                leaves = {leaf_of.get(host, host) for host in pair}
                if len(batch) < size and not (is_strict and leaves & used):
                    batch.append(pair)
                    used |= leaves
                    left.remove(pair)
        batches.append(batch)
    return batches


def rings(hosts: Sequence[str], passes: int, seed: int = 0) -> list[list[str]]:
    """Return, per pass, an order of hosts in which each host sends to the next, and the last to the first.

    The first order is the given one. Later orders repeat as few neighbours as possible.
    """
    chance = random.Random(seed)  # noqa: S311
    orders, used = [list(hosts)], _neighbours(hosts)
    while len(orders) < passes:
        drawn = (chance.sample(list(hosts), len(hosts)) for _ in range(SHUFFLES))
        order, best = list(hosts), len(used) + 1
        for candidate in drawn:
            shared = len(_neighbours(candidate) & used)
            if shared < best:
                order, best = candidate, shared
            if not best:
                break
        orders.append(order)
        used |= _neighbours(order)
    return orders


def _neighbours(ring: Sequence[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in pairwise([*ring, ring[0]])}
