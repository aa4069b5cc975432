"""SONiC's config_db.json."""

from __future__ import annotations

import json

from fabrictime.imports.base import Hints, merged
from fabrictime.imports.formats import format_of
from fabrictime.imports.sonic import read
from schemas.topology import Topology
from tests.fabrictime.imports.samples import SONIC


def test_neighbours_rates_and_addresses() -> None:
    topology = Topology(merged([read(SONIC, Hints())]))
    assert topology.rate_bps("leaf1:Ethernet0>h1:eth0") == 100_000_000_000
    assert topology.rate_bps("spine1:Ethernet8>leaf1:Ethernet4") == 400_000_000_000
    assert topology.at("10.255.0.1") == ("leaf1", None)
    assert topology.at("10.0.0.0") == ("leaf1", "Ethernet4")
    assert topology.at("10.9.0.0") is None
    assert [topology.tier(name) for name in ("h1", "leaf1", "spine1")] == [0, 1, 2]


def test_a_switch_with_several_asics_and_features_named_like_other_formats() -> None:
    table = {"AUTO_TECHSUPPORT_FEATURE": {"lldp": {}}, **json.loads(SONIC)}
    asic = {
        "DEVICE_METADATA": {"localhost": {"hostname": "leaf1", "asic_name": "asic0"}},
        "DEVICE_NEIGHBOR": {
            "Ethernet8": {"name": "ASIC4", "port": "Eth1"},
            "Ethernet12": {"name": "h2", "port": "e"},
        },
        "DEVICE_NEIGHBOR_METADATA": {"ASIC4": {"type": "Asic"}, "h2": {"type": "Server"}},
    }
    text = json.dumps({"localhost": table, "asic0": asic})
    assert format_of(text).name == format_of(json.dumps(table)).name == "sonic"
    topology = Topology(merged([read(text, Hints())]))
    assert topology.cable_ids() == {
        "h1:eth0<>leaf1:Ethernet0", "leaf1:Ethernet4<>spine1:Ethernet8", "h2:e<>leaf1:Ethernet12",
    }  # fmt: skip
