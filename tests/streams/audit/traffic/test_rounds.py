"""Rounds: every pair once, each host at most once in a round, leaves kept apart."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from streams.audit.traffic.rounds import (
    across_leaves,
    batched,
    fans,
    order_of,
    pairs_of,
    rings,
    tournament,
    within_leaves,
)

COUNTS = st.integers(2, 40)
LEAVES = st.lists(st.integers(0, 5), min_size=2, max_size=40)


def named(count: int) -> list[str]:
    return [f"h{number:02}" for number in range(count)]


@given(COUNTS)
def test_every_pair_meets_once_and_nobody_is_twice_in_a_round(count: int) -> None:
    hosts, met = named(count), []
    for pairs in tournament(hosts):
        assert len(set(order_of(pairs))) == 2 * len(pairs) == count - count % 2
        met += [frozenset(pair) for pair in pairs]
    assert len(met) == len(set(met))
    assert set(met) == {frozenset(pair) for pair in combinations(hosts, 2)}


@given(COUNTS)
def test_an_order_stands_for_its_pairs(count: int) -> None:
    for pairs in tournament(named(count)):
        assert pairs_of(order_of(pairs)) == pairs
    assert pairs_of(["a", "b", "c"]) == [("a", "b")]


@given(COUNTS, st.integers(1, 50))
def test_every_host_is_the_sender_of_a_fan(count: int, receivers: int) -> None:
    hosts = named(count)
    orders = fans(hosts, receivers)
    assert [order[0] for order in orders] == hosts
    for order in orders:
        assert len(order) == len(set(order)) == min(receivers, count - 1) + 1


@given(LEAVES)
def test_a_bisection_has_pairs_within_and_across_leaves(leaves: list[int]) -> None:
    hosts = named(len(leaves))
    leaf_of = {host: f"leaf{leaf}" for host, leaf in zip(hosts, leaves, strict=True)}
    within, across = within_leaves(hosts, leaf_of), across_leaves(hosts, leaf_of)
    for pairs, same in ((within, True), (across, False)):
        assert len(set(order_of(pairs))) == 2 * len(pairs)
        assert all((leaf_of[a] == leaf_of[b]) is same for a, b in pairs)
    largest = max(leaves.count(leaf) for leaf in leaves)
    assert len(across) == min(len(hosts) // 2, len(hosts) - largest)
    assert within_leaves(hosts, {}) == across_leaves(hosts, {}) == []


@given(LEAVES, st.integers(1, 8))
def test_batches_hold_every_pair_once(leaves: list[int], size: int) -> None:
    hosts = named(len(leaves))
    leaf_of = {host: str(leaf) for host, leaf in zip(hosts, leaves, strict=True)}
    for pairs in tournament(hosts):
        batches = batched(pairs, size, leaf_of)
        assert sorted(pair for batch in batches for pair in batch) == sorted(pairs)
        assert all(0 < len(batch) <= size for batch in batches)


def test_a_batch_prefers_pairs_on_different_leaves() -> None:
    leaf_of = {"a": "1", "b": "1", "c": "1", "d": "1", "e": "2", "f": "2"}
    assert batched([("a", "b"), ("c", "d"), ("e", "f")], 2, leaf_of) == [
        [("a", "b"), ("e", "f")],
        [("c", "d")],
    ]


@given(st.integers(5, 64), st.integers(1, 2))
def test_rings_have_every_host_once_and_other_neighbours(count: int, passes: int) -> None:
    hosts, seen = named(count), set()
    for order in rings(hosts, passes):
        assert sorted(order) == hosts
        edges = {frozenset(pair) for pair in pairwise([*order, order[0]])}
        assert not edges & seen
        seen |= edges


def test_small_rings_end_too() -> None:
    assert rings(["a", "b", "c"], 2)[0] == ["a", "b", "c"]
    assert sorted(rings(["a", "b"], 3)[2]) == ["a", "b"]
