"""Turns: even looks at every link, even turns for every way, and no crash for fleets of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core.turns import plan_turns
from producers.sim.topology import Fleet

PEERS, PATHS = 10, 4


def ways_of(fleet: Fleet, seed: int) -> tuple[Any, Any, Any]:
    """(way_start, hop_start, hop_link) of a mesh: each link but the first of each direction."""
    rng = np.random.default_rng(seed)
    hop_start, hop_link = [0], []
    for nic in range(fleet.nics):
        peers = rng.permutation(np.delete(np.arange(fleet.nics), nic))[:PEERS]
        for peer in peers:
            there, back = fleet.round_trips(
                np.full(PATHS, nic), np.full(PATHS, peer), 9320 + np.arange(PATHS)
            )
            for path in range(PATHS):
                hop_link += [*list(there.of(path))[1:], *list(back.of(path))[1:]]
                hop_start.append(len(hop_link))
    return np.arange(fleet.nics + 1) * PEERS * PATHS, hop_start, hop_link


def gaps(way: Any, way_start: Any, hop_start: Any, hop_link: Any, phase: Any) -> dict[int, Any]:
    """Link to the times between looks at it, in turns, over two rounds."""
    seen: dict[int, list[float]] = {}
    nics, turns, _ = way.shape
    for nic in range(nics):
        for turn in range(2 * turns):
            for chosen in way[nic, turn % turns]:
                at = way_start[nic] + chosen
                for link in hop_link[hop_start[at] : hop_start[at + 1]]:
                    seen.setdefault(link, []).append(turn + phase[nic])
    return {link: np.diff(np.sort(times)) for link, times in seen.items()}


def test_links_are_looked_at_evenly_and_no_way_starves():
    fleet = Fleet.of(64, seed=3)
    way_start, hop_start, hop_link = ways_of(fleet, 3)
    rng = np.random.default_rng(3)
    phase = rng.permutation(64) / 64
    turns = 2 * PEERS * PATHS
    way = plan_turns(way_start, hop_start, hop_link, len(fleet.rate_bps), phase, turns=turns, shots=1, seed=1)
    assert way.shape == (64, turns, 1)
    drawn = rng.integers(0, PEERS * PATHS, way.shape)

    def unevenness(chosen: Any) -> float:
        """Mean square of the gaps over their squared mean: 2 where looks come at random, 1 where evenly."""
        each = [
            float(np.mean(g**2) / np.mean(g) ** 2)
            for g in gaps(chosen, way_start, hop_start, hop_link, phase).values()
        ]
        return float(np.mean(each))

    assert unevenness(drawn) > 1.6
    assert unevenness(way) < 1.4
    assert max(float(g.max()) for g in gaps(way, way_start, hop_start, hop_link, phase).values()) < 4
    of_pair = np.stack([np.bincount(each.ravel() // PATHS, minlength=PEERS) for each in way])
    assert of_pair.min() >= 0.4 * turns / PEERS
    of_way = np.stack([np.bincount(each.ravel(), minlength=PEERS * PATHS) for each in way])
    assert (of_way == 0).mean() < 0.02
    again = plan_turns(
        way_start, hop_start, hop_link, len(fleet.rate_bps), phase, turns=turns, shots=1, seed=1
    )
    assert np.array_equal(way, again)


def test_shots_of_a_turn_go_different_ways():
    fleet = Fleet.of(64, seed=4)
    way_start, hop_start, hop_link = ways_of(fleet, 4)
    way = plan_turns(
        way_start, hop_start, hop_link, len(fleet.rate_bps), np.zeros(64), turns=20, shots=4, seed=1
    )
    assert all(len(set(turn)) == 4 for nic in way for turn in nic)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=4), max_size=5),
    st.integers(1, 9),
    st.integers(1, 4),
)
@settings(max_examples=80, deadline=None)
def test_any_fleet_has_turns(fleet: list[list[list[int]]], turns: int, shots: int):
    hops = [way for nic in fleet for way in nic]
    way = plan_turns(
        np.cumsum([0, *(len(nic) for nic in fleet)]), np.cumsum([0, *(len(way) for way in hops)]),
        [link for way in hops for link in way], 6, np.zeros(len(fleet)), turns=turns, shots=shots,
    )  # fmt: skip
    assert way.shape == (len(fleet), turns, shots)
    for nic, chosen in zip(fleet, way, strict=True):
        assert ((chosen >= 0) & (chosen < len(nic))).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"way_start": [0, 1]}, "way_start: ends at 1, expected 2"),
        ({"way_start": [0, 2, 2], "phase": [0, 1]}, "NIC 1 has no way"),
        ({"hop_start": [0, 2, 1]}, "hop_start: expected ascending"),
        ({"hop_link": [0, 7]}, "hop_link: 0 to 7, expected 0 to 2"),
        ({"phase": [0.0, 0.0]}, "phase: expected 1 numbers"),
        ({"phase": [float("nan")]}, "phase: expected 1 numbers"),
        ({"turns": 0}, "0 turns of 1 shots"),
        ({"shots": 1 << 20, "turns": 1 << 20}, "2\\^30 shots"),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], said: str):
    given = {"way_start": [0, 2], "hop_start": [0, 1, 2], "hop_link": [0, 1], "links": 3, "phase": [0.0],
             "turns": 4, "shots": 1} | change  # fmt: skip
    with pytest.raises(ValueError, match=said):
        plan_turns(**given)
