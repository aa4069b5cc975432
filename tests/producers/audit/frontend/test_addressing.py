"""Addresses, routes and rules of hosts with one and with several interfaces."""

from __future__ import annotations

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_network import UP
from producers.audit.backend.rdma_ports import global_networks
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.frontend.addressing import gateways, shared_networks
from producers.audit.host.base import Missing
from producers.audit.host.network import Interface, Neighbour, Route
from schemas.records import AuditStatus


def interface(name: str, *addresses: str) -> Interface:
    return Interface(name, 1, 1500, "up", UP, addresses=addresses)


def test_addresses_that_another_host_reaches() -> None:
    found = global_networks(interface("eth0", "127.0.0.1/8", "fe80::1/64", "10.0.0.1/24", "fd00::1/64"))
    assert [str(each) for each in found] == ["10.0.0.1/24", "fd00::1/64"]


def test_networks_of_several_interfaces() -> None:
    interfaces = [
        interface("a", "10.0.0.1/24", "10.0.0.9/24"),
        interface("b", "10.0.1.1/24"),
        interface("c", "10.0.1.2/24"),
        Interface("d", 9, 1500, "down", frozenset({"UP"}), addresses=("10.0.0.3/24",)),
    ]
    assert shared_networks(interfaces) == {"10.0.1.0/24": ["b", "c"]}


def test_gateways_of_both_families() -> None:
    host = HEALTHY.copy()
    host.network["routes"].append(Route("::/0", "fd00::1", "eno1"))
    assert [each.gateway for each in gateways(host)] == ["192.168.4.1", "fd00::1"]
    host.network["routes"] = []
    with pytest.raises(Missing, match="no default route"):
        gateways(host)


def test_a_default_route_of_ipv6_suffices() -> None:
    host = HEALTHY.copy()
    host.network["routes"] = [Route("::/0", "fd00::1", "eno1")]
    assert run_check(CHECKS["frontend.default-route"], host).status is AuditStatus.PASSED


def test_a_default_route_by_an_interface_that_is_down_fails() -> None:
    host = HEALTHY.copy()
    host.network["routes"] = [Route("0.0.0.0/0", "10.0.0.9", "gone0")]
    result = run_check(CHECKS["frontend.default-route"], host)
    assert (result.status, result.text.rpartition("; ")[2]) == (AuditStatus.FAILED, "the interface is down")


@pytest.mark.parametrize("check", ["frontend.reverse-path", "frontend.arp"])
def test_a_host_with_one_interface_in_each_network_is_skipped(check: str) -> None:
    host = HEALTHY.copy()
    host.network["interfaces"] = [each for each in host.network["interfaces"] if each.name != "eno2"]
    assert run_check(CHECKS[check], host).status is AuditStatus.SKIPPED


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "error", "warning"),
    [
        ("REACHABLE", "REACHABLE", "PASSED", "PASSED"),
        ("REACHABLE", "FAILED", "PASSED", "FAILED"),
        ("FAILED", "STALE", "PASSED", "FAILED"),
        ("", "FAILED", "PASSED", "FAILED"),
        ("FAILED", "INCOMPLETE", "FAILED", "PASSED"),
    ],
)
def test_one_gateway_that_answers_is_no_fault_of_the_cable(
    ipv4: str, ipv6: str, error: str, warning: str
) -> None:
    host = HEALTHY.copy()
    host.network["routes"] = [Route("0.0.0.0/0", "10.0.0.1", "eno1"), Route("::/0", "fe80::1", "eno1")]
    host.network["neighbours"] = [
        Neighbour(address, "", "eno1", state)
        for address, state in (("10.0.0.1", ipv4), ("fe80::1", ipv6))
        if state
    ]
    states = [run_check(CHECKS[f"frontend.{name}"], host).status for name in ("gateway", "gateways")]
    assert states == [error, warning]
