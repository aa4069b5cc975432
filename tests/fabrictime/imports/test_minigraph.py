"""SONiC's minigraph."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints, merged
from fabrictime.imports.minigraph import read
from schemas.topology import Topology
from tests.fabrictime.imports.samples import MINIGRAPH


def test_links_of_interfaces_with_rates_and_kinds() -> None:
    topology = Topology(merged([read(MINIGRAPH, Hints())]))
    assert topology.cable_ids() == {"h1:eth0<>leaf1:Ethernet0", "leaf1:Ethernet4<>spine1:Ethernet8"}
    assert topology.rate_bps("h1:eth0>leaf1:Ethernet0") == 100_000_000_000
    assert [topology.tier(name) for name in ("h1", "leaf1", "spine1")] == [0, 1, 2]


def test_a_link_without_port_is_refused() -> None:
    with pytest.raises(BadImport, match="link from 'h1' to 'leaf1': device or port missing"):
        read(MINIGRAPH.replace("<StartPort>eth0</StartPort>", ""), Hints())


def test_links_to_asics_of_the_same_chassis_are_left_out() -> None:
    inside = """<DeviceLinkBase><ElementType>DeviceInterfaceLink</ElementType>
        <EndDevice>ASIC0</EndDevice><EndPort>Eth0</EndPort>
        <StartDevice>leaf1</StartDevice><StartPort>Ethernet0</StartPort></DeviceLinkBase></DeviceInterfaceLinks>"""
    text = MINIGRAPH.replace("</DeviceInterfaceLinks>", inside)
    text = text.replace("</Devices>", '<Device i:type="Asic"><Hostname>ASIC0</Hostname></Device></Devices>')
    topology = Topology(merged([read(text, Hints())]))
    assert topology.cable_ids() == {"h1:eth0<>leaf1:Ethernet0", "leaf1:Ethernet4<>spine1:Ethernet8"}
