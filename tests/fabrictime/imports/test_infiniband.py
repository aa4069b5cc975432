"""The output of ibnetdiscover."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints, merged
from fabrictime.imports.infiniband import read
from schemas.topology import Topology
from tests.fabrictime.imports.samples import INFINIBAND


def test_switches_and_adapters_keep_their_names() -> None:
    topology = Topology(merged([read(INFINIBAND, Hints())]))
    assert topology.cable_ids() == {
        "[MF0;sw1:MQM9700/U1]:1<>gpu01:mlx5_0",
        "[MF0;sw1:MQM9700/U1]:33<>[MF0;sw2:MQM9700/U1]:2",
        "[MF0;sw2:MQM9700/U1]:3<>gpu02:mlx5_0",
    }
    assert topology.rate_bps("gpu01:mlx5_0>[MF0;sw1:MQM9700/U1]:1") == 4 * 106_250_000_000
    assert topology.rate_bps("gpu02:mlx5_0>[MF0;sw2:MQM9700/U1]:3") == 4 * 53_125_000_000
    assert topology.tier("gpu01") == 0
    assert topology.tier("MF0;sw1:MQM9700/U1") == 1


def test_switches_of_one_name_stay_apart() -> None:
    topology = Topology(merged([read(INFINIBAND.replace("sw2", "sw1"), Hints())]))
    names = {name for name in topology.nodes if name.startswith("MF0")}
    assert names == {"MF0;sw1:MQM9700/U1 fc6a1c0300aaaa00", "MF0;sw1:MQM9700/U1 fc6a1c0300bbbb00"}


def test_adapters_inside_switches_are_no_hosts_and_unnamed_ones_are_their_guid() -> None:
    inside = """
Ca\t1 "H-fc6a1c0300aaaa08"\t\t# "Mellanox Technologies Aggregation Node"
[1](fc6a1c0300aaaa08) \t"S-fc6a1c0300aaaa00"[65]\t\t# lid 9 lmc 0 "MF0;sw1:MQM9700/U1" lid 1 4xNDR
"""
    text = INFINIBAND.replace("gpu02 mlx5_0", "MT4129 ConnectX7   Mellanox Technologies") + inside
    topology = Topology(merged([read(text, Hints())]))
    assert {name for name, node in topology.nodes.items() if node.kind == "host"} == {
        "gpu01",
        "ca-946dae0300000002",
    }
    assert len(topology.cable_ids()) == 3


def test_hosts_of_one_name_stay_apart() -> None:
    topology = Topology(merged([read(INFINIBAND.replace("gpu02", "gpu01"), Hints())]))
    hosts = {name for name, node in topology.nodes.items() if node.kind == "host"}
    assert hosts == {"gpu01-946dae0300000001", "gpu01-946dae0300000002"}


def test_a_neighbour_that_is_not_listed_is_named() -> None:
    with pytest.raises(BadImport, match="leads to H-946dae0300000001, which the file does not list"):
        read(INFINIBAND.replace('Ca\t1 "H-946dae0300000001"', "Ca"), Hints())
