"""The simulated fabric: swapped cables move the routes, and nothing else."""

from __future__ import annotations

import numpy as np

from fabrictime.testbed.audit.simulated import Simulated, drawn_swaps, railed


def test_a_swap_moves_the_first_link_of_both_nics() -> None:
    fleet = railed(16, 4)
    [(a, b)] = drawn_swaps(fleet, 1, np.random.default_rng(1))
    plain, swapped = Simulated(fleet), Simulated(fleet, swaps=[(a, b)])

    def leaf_of(simulated: Simulated, nic: str) -> str:
        row = int(np.flatnonzero(simulated.src == fleet.nic_index[nic])[0])
        return simulated.links(row, answer=False)[0].split(">")[1].split(":")[0]

    assert leaf_of(plain, a) == leaf_of(swapped, b)
    assert leaf_of(plain, b) == leaf_of(swapped, a)
    assert leaf_of(plain, a) != leaf_of(plain, b)
