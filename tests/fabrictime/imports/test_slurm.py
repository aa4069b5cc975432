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
