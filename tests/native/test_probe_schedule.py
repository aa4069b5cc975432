"""Turns: even looks at every link, even slots for every path, and no crash for fleets of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core.probe_schedule import plan_schedule
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from tests.examples import examples

PEERS, PATHS = 10, 4


def paths_of(fleet: Fleet, seed: int) -> tuple[Any, Any, Any]:
    """(path_start, link_start, path_link) of a mesh: each link but the first of each direction."""
    rng = np.random.default_rng(seed)
    link_start, path_link = [0], []
    for nic in range(fleet.nics):
        peers = rng.permutation(np.delete(np.arange(fleet.nics), nic))[:PEERS]
        for peer in peers:
            there, back = fleet.round_trips(
                np.full(PATHS, nic), np.full(PATHS, peer), 9320 + np.arange(PATHS)
            )
            for path in range(PATHS):
                path_link += [*list(there.of(path))[1:], *list(back.of(path))[1:]]
                link_start.append(len(path_link))
    return np.arange(fleet.nics + 1) * PEERS * PATHS, link_start, path_link


def gaps(path: Any, path_start: Any, link_start: Any, path_link: Any, phase: Any) -> dict[int, Any]:
    """Link to the times between looks at it, in slots, over two rounds."""
    seen: dict[int, list[float]] = {}
    nics, slots, _ = path.shape
    for nic in range(nics):
        for slot in range(2 * slots):
            for chosen in path[nic, slot % slots]:
                at = path_start[nic] + chosen
                for link in path_link[link_start[at] : link_start[at + 1]]:
                    seen.setdefault(link, []).append(slot + phase[nic])
    return {link: np.diff(np.sort(times)) for link, times in seen.items()}


def test_links_are_probed_evenly_and_every_path_is_probed():
    fleet = Fleet(Shape.of(64), 3)
    path_start, link_start, path_link = paths_of(fleet, 3)
    rng = np.random.default_rng(3)
    phase = rng.permutation(64) / 64
    slots = 2 * PEERS * PATHS
    path = plan_schedule(
        path_start, link_start, path_link, len(fleet.rate_bps), phase, slots=slots, probes_per_slot=1, seed=1
    )
    assert path.shape == (64, slots, 1)
    drawn = rng.integers(0, PEERS * PATHS, path.shape)

    def unevenness(chosen: Any) -> float:
        """Mean square of the gaps over their squared mean: 2 where looks come at random, 1 where evenly."""
        each = [
            float(np.mean(g**2) / np.mean(g) ** 2)
            for g in gaps(chosen, path_start, link_start, path_link, phase).values()
        ]
        return float(np.mean(each))

    assert unevenness(drawn) > 1.6
    assert unevenness(path) < 1.4
    assert max(float(g.max()) for g in gaps(path, path_start, link_start, path_link, phase).values()) < 4
    of_pair = np.stack([np.bincount(each.ravel() // PATHS, minlength=PEERS) for each in path])
    assert of_pair.min() >= 0.4 * slots / PEERS
    per_path = np.stack([np.bincount(each.ravel(), minlength=PEERS * PATHS) for each in path])
    assert (per_path == 0).mean() < 0.02
    again = plan_schedule(
        path_start, link_start, path_link, len(fleet.rate_bps), phase, slots=slots, probes_per_slot=1, seed=1
    )
    assert np.array_equal(path, again)


def test_probes_of_a_slot_take_different_paths():
    fleet = Fleet(Shape.of(64), 4)
    path_start, link_start, path_link = paths_of(fleet, 4)
    path = plan_schedule(
        path_start,
        link_start,
        path_link,
        len(fleet.rate_bps),
        np.zeros(64),
        slots=20,
        probes_per_slot=4,
        seed=1,
    )
    assert all(len(set(slot)) == 4 for nic in path for slot in nic)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=4), max_size=5),
    st.integers(1, 9),
    st.integers(1, 4),
)
@settings(max_examples=examples(80))
def test_any_fleet_has_a_schedule(fleet: list[list[list[int]]], slots: int, probes: int):
    crossed = [path for nic in fleet for path in nic]
    path = plan_schedule(
        np.cumsum([0, *(len(nic) for nic in fleet)]),
        np.cumsum([0, *(len(path) for path in crossed)]),
        [link for path in crossed for link in path],
        6,
        np.zeros(len(fleet)),
        slots=slots,
        probes_per_slot=probes,
    )
    assert path.shape == (len(fleet), slots, probes)
    for nic, chosen in zip(fleet, path, strict=True):
        assert ((chosen >= 0) & (chosen < len(nic))).all()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"path_start": [0, 1]}, "path_start: ends at 1, expected 2"),
        ({"path_start": [0, 2, 2], "phase": [0, 1]}, "NIC 1 has no path"),
        ({"link_start": [0, 2, 1]}, "link_start: expected ascending"),
        ({"path_link": [0, 7]}, "path_link: 0 to 7, expected 0 to 2"),
        ({"phase": [0.0, 0.0]}, "phase: expected 1 numbers"),
        ({"phase": [float("nan")]}, "phase: expected 1 numbers"),
        ({"slots": 0}, "0 slots of 1 probes"),
        ({"probes_per_slot": 1 << 20, "slots": 1 << 20}, "2\\^30 probes"),
    ],
)
def test_invalid_input_is_named(change: dict[str, Any], expected: str):
    given = {
        "path_start": [0, 2],
        "link_start": [0, 1, 2],
        "path_link": [0, 1],
        "links": 3,
        "phase": [0.0],
        "slots": 4,
        "probes_per_slot": 1,
    } | change
    with pytest.raises(ValueError, match=expected):
        plan_schedule(**given)
