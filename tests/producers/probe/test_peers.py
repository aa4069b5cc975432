"""Whom a NIC probes: properties of the whole graph, from two NICs to ten thousand."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.probe.peers import choose_peers, hashes_of
from tests.examples import examples


def graph(nics: list[str], count: int, seed: int) -> dict[str, list[str]]:
    hashes = hashes_of(nics, seed)
    return {nic: choose_peers(nic, nics, count, seed, hashes) for nic in nics}


def connected(edges: dict[str, list[str]]) -> bool:
    both: dict[str, set[str]] = {nic: set(peers) for nic, peers in edges.items()}
    for nic, peers in edges.items():
        for peer in peers:
            both[peer].add(nic)
    seen, left = set(), [next(iter(both))]
    while left:
        nic = left.pop()
        if nic not in seen:
            seen.add(nic)
            left.extend(both[nic] - seen)
    return len(seen) == len(both)


names = st.sets(st.from_regex(r"[a-z]{1,6}[0-9]{0,4}/eth[0-9]", fullmatch=True), min_size=1, max_size=60)


@settings(max_examples=examples(60))
@given(names, st.integers(1, 12), st.integers(0, 2**63 - 1))
def test_every_fleet_is_connected_and_every_choice_valid(found: set[str], count: int, seed: int) -> None:
    nics = sorted(found)
    edges = graph(nics, count, seed)
    assert connected(edges)
    for nic, peers in edges.items():
        assert nic not in peers
        assert len(peers) == len(set(peers)) == min(count, len(nics) - 1)
        assert set(peers) <= found


def test_the_order_of_names_and_the_presence_of_oneself_do_not_matter() -> None:
    nics = [f"h{i}/eth0" for i in range(100)]
    shuffled = random.Random(1).sample(nics, len(nics))
    assert choose_peers("h7/eth0", nics, 10, 3) == choose_peers("h7/eth0", shuffled, 10, 3)
    others = [nic for nic in nics if nic != "h7/eth0"]
    assert choose_peers("h7/eth0", nics, 10, 3) == choose_peers("h7/eth0", others, 10, 3)
    assert choose_peers("h7/eth0", nics, 10, 3) != choose_peers("h7/eth0", nics, 10, 4)


@pytest.mark.parametrize("fleet", [1000, 10_000])
def test_a_large_fleet_is_connected_evenly_and_nobody_is_asked_by_many(fleet: int) -> None:
    nics = [f"host{i:05d}/eth{i % 8}" for i in range(fleet)]
    edges = graph(nics, 10, 42)
    assert connected(edges)
    assert {len(peers) for peers in edges.values()} == {10}
    index = {nic: i for i, nic in enumerate(nics)}
    asked = np.bincount([index[peer] for peers in edges.values() for peer in peers], minlength=fleet)
    assert asked.max() < 40  # binomial: mean 10, standard deviation 3.2
    assert asked.min() >= 1


def test_a_single_peer_each_is_a_ring() -> None:
    nics = [f"h{i}/eth0" for i in range(50)]
    edges = graph(nics, 1, 0)
    seen = ["h0/eth0"]
    while edges[seen[-1]][0] not in seen:
        seen.append(edges[seen[-1]][0])
    assert len(seen) == 50


def test_a_nic_that_goes_changes_little() -> None:
    nics = [f"h{i}/eth0" for i in range(400)]
    before = graph(nics, 10, 0)
    after = graph(nics[:200] + nics[201:], 10, 0)
    changed = sum(len(set(peers) - set(before[nic])) for nic, peers in after.items())
    assert changed <= sum("h200/eth0" in peers for peers in before.values()) + 2


def test_alone_there_is_nobody_to_probe() -> None:
    assert choose_peers("h/e", ["h/e"], 10) == []
    assert choose_peers("h/e", [], 10) == []
