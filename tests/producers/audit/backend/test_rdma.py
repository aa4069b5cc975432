"""RDMA ports in sysfs: rates, GIDs and their interfaces."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.backend.rdma import Gid, gids
from producers.audit.backend.rdma_ports import Port, backend_interfaces, interfaces, port_rate, ports
from producers.audit.host.base import Missing


def test_a_rate_is_in_gigabits() -> None:
    assert port_rate("400 Gb/sec (4X NDR)") == (400, 4)
    assert port_rate("2.5 Gb/sec") == (2.5, 0)
    with pytest.raises(ValueError, match="expected Gb/sec"):
        port_rate("fast")


@given(st.text(max_size=40))
def test_odd_rates_raise_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert port_rate(text).gbps >= 0


def test_ports_have_gids_and_interfaces() -> None:
    found = list(gids(HEALTHY, Port("mlx5_0", "1")))
    assert [(gid.number, gid.kind, gid.is_routable) for gid in found] == [
        (0, "IB/RoCE v1", False),
        (1, "RoCE v2", False),
        (2, "IB/RoCE v1", True),
        (3, "RoCE v2", True),
    ]
    assert len(ports(HEALTHY)) == 5
    assert [(str(port), name) for port, name in interfaces(HEALTHY)] == [
        ("mlx5_0/1", "eth0"),
        ("mlx5_1/1", "eth1"),
    ]


def test_the_agents_nics_are_back_end_interfaces_too() -> None:
    host = HEALTHY.copy()
    host.nics = ("ft0",)
    assert backend_interfaces(host) == ["eth0", "eth1", "ft0"]
    host.files = {}
    assert backend_interfaces(host) == ["ft0"]
    host.nics = ()
    with pytest.raises(Missing, match="infiniband"):
        backend_interfaces(host)


def test_a_gid_of_ipv4_is_routable() -> None:
    assert Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2").is_routable
