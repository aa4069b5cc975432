"""SONiC's config_db.json."""

from __future__ import annotations

from fabrictime.imports.base import Hints, merged
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
