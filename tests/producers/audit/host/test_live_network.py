"""The network of this machine and of a namespace with planted values, and answers of dcbnl."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.host.base import Missing
from producers.audit.host.live import LiveHost
from producers.audit.host.live_network import LiveNetwork, dcb_of
from producers.audit.host.network import Rule
from tests.producers.audit.host.namespaces import named_namespaces


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


PFC = struct.pack("=BBBxH2x8Q8Q", 8, 0b1000, 0, 0, *([0] * 3), 7, *([0] * 4), *([0] * 3), 9, *([0] * 4))
ETS = bytes([0, 8, 0, *([12] * 8), *([0] * 16), *(0, 0, 0, 3, 0, 0, 6, 0)]) + bytes(24)
APPS = attribute(1, struct.pack("=BBH", 5, 3, 26)) + attribute(1, struct.pack("=BBH", 1, 0, 0))


@pytest.fixture
def netns() -> Iterator[str]:
    name = f"ft-audit-{os.getpid()}"
    with named_namespaces(name):
        yield f"/run/netns/{name}"


def test_this_machine_answers() -> None:
    network = LiveNetwork()
    lo = next(each for each in network.interfaces() if each.name == "lo")
    assert "LOOPBACK" in lo.flags
    assert "127.0.0.1/8" in lo.addresses
    assert lo.counters["rx_packets"] >= 0
    assert {rule.table for rule in network.rules()} >= {254, 255}
    assert all(route.table != 255 for route in network.routes())
    assert isinstance(network.neighbours(), list)
    assert network.dcb("lo") is None
    assert network.link_settings("lo") is None
    assert network.ethtool_statistics("lo") == {}
    for read in (network.dcb, network.link_settings, network.ethtool_statistics):
        with pytest.raises(Missing, match="none0: No such device"):
            read("none0")
    with network.open_socket(2, 2) as opened:
        assert opened.gettimeout() is not None


def test_the_network_of_a_namespace(netns: str) -> None:
    from pyroute2 import NetNS

    with NetNS(netns.rpartition("/")[2]) as ip:
        ip.link("add", ifname="ft0", kind="veth", peer={"ifname": "ft1"})
        index = ip.link_lookup(ifname="ft0")[0]
        ip.link("set", index=index, mtu=1400, state="up")
        ip.link("set", index=ip.link_lookup(ifname="ft1")[0], state="up")
        ip.addr("add", index=index, address="10.9.0.1", prefixlen=24)
        ip.route("add", dst="10.10.0.0/16", gateway="10.9.0.2", metrics={"mtu": 1300})
        hops = [{"gateway": "10.9.0.3"}, {"gateway": "10.9.0.4"}]
        ip.route("add", dst="default", multipath=hops, family=2)
        ip.neigh("add", dst="10.9.0.2", lladdr="02:00:00:00:00:02", ifindex=index, state="permanent")
        ip.rule("add", table=100, priority=99, src="10.9.0.1", src_len=32)
    host = LiveHost(netns=netns, nics=("ft0",))
    found = next(each for each in host.interfaces() if each.name == "ft0")
    assert (found.mtu, found.kind, found.addresses[0]) == (1400, "veth", "10.9.0.1/24")
    assert found.is_up
    routes = host.routes()
    assert [r.mtu for r in routes if r.destination == "10.10.0.0/16"] == [1300]
    assert {r.gateway for r in routes if r.destination == "0.0.0.0/0"} == {"10.9.0.3", "10.9.0.4"}
    assert ("10.9.0.2", "ft0", "PERMANENT") in [(n.address, n.interface, n.state) for n in host.neighbours()]
    assert Rule(99, 100, source="10.9.0.1/32") in host.rules()
    link = host.link_settings("ft0")
    assert link is not None
    assert link.duplex == "full"
    assert "ft0" in host.read("/proc/net/dev")
    assert "ft0" in host.names("/proc/sys/net/ipv4/conf")
    assert "ft0" in host.run("cat", "/proc/thread-self/net/dev")
    with pytest.raises(Missing, match="sysfs shows no other network namespace"):
        host.read("/sys/class/net/ft0/mtu")


def test_flow_control_settings() -> None:
    answer = attribute(1, b"eth0\0") + attribute(
        13, attribute(2, PFC) + attribute(1, ETS) + attribute(3, APPS)
    )
    found = dcb_of(answer)
    assert found is not None
    assert found.pfc_priorities == {3}
    assert found.pfc_pauses == (7, 9)
    assert found.dscp_priority == {26: 3}
    assert found.trust == ("dscp",)
    assert found.priority_class == (0, 0, 0, 3, 0, 0, 6, 0)
    assert found.class_percent == (12,) * 8


def test_a_trust_table_is_used_in_its_order() -> None:
    table = attribute(1, b"\xff") + attribute(1, b"\x05")
    found = dcb_of(attribute(13, attribute(11, table)))
    assert found is not None
    assert found.trust == ("pcp", "dscp")
    assert (found.pfc_priorities, found.pfc_pauses, found.priority_class) == (None, None, None)


def test_without_ieee_settings_there_are_none() -> None:
    assert dcb_of(attribute(1, b"eth0\0")) is None


@given(st.binary(max_size=200))
def test_odd_answers_end_no_read(answer: bytes) -> None:
    for data in (answer, attribute(13, answer)):
        with contextlib.suppress(ValueError):
            dcb_of(data)
