"""Slurm's topology.conf."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints, merged
from fabrictime.imports.slurm import read
from schemas.topology import Topology
from tests.fabrictime.imports.samples import SLURM


def test_nodes_and_switches() -> None:
    topology = Topology(merged([read(SLURM, Hints(device="mlx5_0"))]))
    assert topology.cable_ids() == {
        "h1:mlx5_0<>leaf1:h1", "h2:mlx5_0<>leaf1:h2", "g07:mlx5_0<>leaf1:g07", "h03:mlx5_0<>leaf2:h03",
        "h04:mlx5_0<>leaf2:h04", "leaf1:spine1<>spine1:leaf1", "leaf2:spine1<>spine1:leaf2",
    }  # fmt: skip
    assert topology.rate_bps("h1:mlx5_0>leaf1:h1") == 100_000_000_000
    assert [topology.tier(name) for name in ("h1", "leaf1", "spine1")] == [0, 1, 2]


def test_blocks_are_refused() -> None:
    with pytest.raises(BadImport, match="expected topology/tree"):
        read("BlockName=b1 Nodes=h[1-4]", Hints())


TREE = """
- topology: other
  block: {block_sizes: [4], blocks: [{block: b1, nodes: "h[1-4]"}]}
- topology: main
  cluster_default: true
  tree:
    switches:
      - {switch: root, children: "s[1-2]"}
      - {switch: s1, nodes: "h[1-2]"}
      - {switch: s2, nodes: h3}
"""


def test_the_default_tree_of_topology_yaml() -> None:
    topology = Topology(merged([read(TREE, Hints())]))
    assert topology.cable_ids() == {
        "h1:eth0<>s1:h1", "h2:eth0<>s1:h2", "h3:eth0<>s2:h3", "root:s1<>s1:root", "root:s2<>s2:root",
    }  # fmt: skip
    with pytest.raises(BadImport, match="expected topology/tree"):
        read(TREE.partition("- topology: main")[0], Hints())
    with pytest.raises(BadImport, match="flat: expected a tree"):
        read("- topology: all\n  flat: true\n", Hints())
