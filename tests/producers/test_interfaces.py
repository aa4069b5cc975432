"""Interfaces and routes: parsed answers of this kernel, and pure choices on hosts of all forms."""

from __future__ import annotations

import socket

import pytest

from producers.interfaces import (
    Interface,
    NetworkState,
    Route,
    Rule,
    below,
    egress_device,
    read_network,
    route_devices,
    routed_networks,
)

LO = Interface("lo", 1, addresses=("127.0.0.1", "::1", "10.255.0.7"))
ETH0 = Interface("eth0", 2, addresses=("10.9.0.20",))
ETH1 = Interface("eth1", 3, addresses=("10.9.0.21",))
MEMBERS = (Interface("m0", 4, master=6), Interface("m1", 5, master=6))
BOND = Interface("bond0", 6, "bond", addresses=("10.8.0.1",))
PARENT = Interface("enp129s0f0np0v1", 7)
VLAN = Interface("eth0.100", 8, "vlan", lower=7, addresses=("10.7.0.1",))
VRF = Interface("blue", 9, "vrf")
IN_VRF = Interface("eth9", 10, master=9, addresses=("10.6.0.1",))
ALL = (LO, ETH0, ETH1, *MEMBERS, BOND, PARENT, VLAN, VRF, IN_VRF)
MAIN = (Rule("", 255, False), Rule("", 254, False), Rule("", 253, False))


@pytest.mark.parametrize(
    ("device", "address", "expected"),
    [
        ("eth0", "10.9.0.20", "eth0"),
        ("eth1", "10.9.0.21", "eth1"),
        ("m0", "10.8.0.1", "bond0"),
        ("bond0", "10.8.0.1", "bond0"),
        ("enp129s0f0np0v1", "10.7.0.1", "eth0.100"),
        ("eth0.100", "10.7.0.1", "eth0.100"),
        ("eth9", "10.6.0.1", "eth9"),
        ("eth1", "10.9.0.20", "eth1"),  # another NIC's address: the NIC's name decides, and the check reports
        ("eth1", "10.255.0.7", "eth1"),
        ("lo", "127.0.0.1", None),
        ("mlx5_0", "10.9.0.20", None),
    ],
)
def test_the_device_of_a_nic_is_its_own_or_the_one_on_it(device, address, expected):
    assert egress_device(device, address, ALL) == expected


def test_devices_below_are_members_and_parents_but_not_those_of_a_vrf():
    known = {each.index: each for each in ALL}
    assert below(BOND, known) == {4, 5}
    assert below(VLAN, known) == {7}
    assert below(VRF, known) == set()


def test_networks_are_those_that_the_device_and_the_rules_reach():
    routes = (
        Route("10.9.0.0/24", 254, (2,)),
        Route("10.9.0.0/24", 254, (3,)),
        Route("0.0.0.0/0", 254, (2,)),
        Route("10.20.0.0/16", 101, (3,)),
        Route("10.30.0.0/16", 102, (3,)),
        Route("10.40.0.0/16", 254, (2, 3)),
    )
    rules = (*MAIN, Rule("10.9.0.21/32", 101, False), Rule("10.9.0.99/32", 102, False))
    state = NetworkState(ALL, routes, rules)
    assert routed_networks(state, "10.9.0.20", "eth0") == ["0.0.0.0/0"]
    assert routed_networks(state, "10.9.0.21", "eth1") == ["10.9.0.0/24", "10.20.0.0/16", "10.40.0.0/16"]
    assert routed_networks(state, "10.9.0.21", "away") == []


def test_a_vrf_has_the_routes_of_its_table():
    routes = (Route("10.6.0.0/24", 77, (10,)), Route("10.9.0.0/24", 254, (2,)))
    state = NetworkState(ALL, routes, (Rule("", 0, True), *MAIN))
    assert routed_networks(state, "10.6.0.1", "eth9") == ["10.6.0.0/24"]


def test_many_routes_are_joined_to_64():
    routes = tuple(Route(f"10.{n // 128}.{n % 128 * 2}.0/24", 254, (2,)) for n in range(1000))
    networks = routed_networks(NetworkState(ALL, routes, MAIN), "10.9.0.20", "eth0")
    assert 0 < len(networks) <= 64
    assert all(int(each.split("/")[1]) >= 8 for each in networks)


def test_this_kernel_names_its_interfaces_addresses_and_routes():
    state = read_network(socket.AF_INET)
    lo = state.named("lo")
    assert lo is not None
    assert "127.0.0.1" in lo.addresses
    assert {name for _, name in socket.if_nameindex()} == {each.name for each in state.interfaces}
    assert {254, 255} <= {rule.table for rule in state.rules}
    assert read_network(socket.AF_INET6).interfaces == state.interfaces
    assert route_devices(socket.AF_INET, "127.0.0.1", "127.0.0.1") == ()
