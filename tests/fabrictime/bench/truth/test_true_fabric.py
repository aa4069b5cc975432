"""The links of the true fabric's routes."""

from __future__ import annotations

import numpy as np

from fabrictime.bench._truth.fabric import LeafSpine


def test_a_route_between_leaves_has_four_links_and_one_within_a_leaf_two() -> None:
    fabric = LeafSpine(nics=8, leaves=4, spines=2)
    routes = fabric.routes(np.array([0, 0]), np.array([7, 1]), np.array([1, 1]))
    names = fabric.names()
    assert [[names[link] for link in route if link >= 0] for route in routes] == [
        ["host00:eth0>leaf0:h0", "leaf0:s1>spine1:l0", "spine1:l3>leaf3:s1", "leaf3:h7>host07:eth0"],
        ["host00:eth0>leaf0:h0", "leaf0:h1>host01:eth0"],
    ]
    assert len(names) == len(set(names)) == fabric.links == 32
    assert names[fabric.up(3, 1)] == "leaf3:s1>spine1:l3"
    assert all(names[link].endswith(":eth0") for link in fabric.into_hosts())
