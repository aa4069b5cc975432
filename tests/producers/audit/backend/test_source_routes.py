"""Routing by source: hosts with several NICs in one network and in several, with and without policy rules."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_network import UP
from producers.audit.backend.source_routes import devices_of
from producers.audit.base import Result, run_check
from producers.audit.checks import CHECKS
from producers.audit.host.network import Interface, Route, Rule
from schemas.records import AuditStatus

LOCAL, MAIN = Rule(0, 255), Rule(32766, 254)


def nic(name: str, address: str, **other: Any) -> Interface:
    return Interface(name, 1, 9000, "up", UP, addresses=(address,) if address else (), **other)


def check(
    interfaces: list[Interface], routes: list[Route], rules: list[Rule], strict: bool = False
) -> Result:
    """Check a host whose agent measures all of these interfaces that are no VRF."""
    host = HEALTHY.copy()
    host.network |= {"interfaces": interfaces, "routes": routes, "rules": [LOCAL, *rules, MAIN]}
    host.nics = tuple(each.name for each in interfaces if each.kind != "vrf")
    for each in interfaces:
        host.files[f"/proc/sys/net/ipv4/conf/{each.name}/rp_filter"] = "1" if strict else "0"
    host.files["/proc/sys/net/ipv4/conf/all/rp_filter"] = "0"
    return run_check(CHECKS["backend.source-routes"], host)


def texts(result: Result) -> dict[str, str]:
    return {each.subject: each.text for each in result.findings if each.status is AuditStatus.FAILED}


ONE_SUBNET = [nic("eth0", "10.9.0.20/24"), nic("eth1", "10.9.0.21/24")]
BOTH_CONNECTED = [Route("10.9.0.0/24", "", "eth0"), Route("10.9.0.0/24", "", "eth1", metric=101)]


def test_of_two_nics_in_one_subnet_the_second_sends_by_the_first() -> None:
    found = check(ONE_SUBNET, BOTH_CONNECTED, [])
    assert found.status is AuditStatus.FAILED
    assert texts(found) == {"eth1": "packets from 10.9.0.21 to 10.9.0.0/24 leave by eth0"}


def test_a_rule_and_table_for_each_address_mend_it() -> None:
    routes = [
        *BOTH_CONNECTED,
        *(Route("10.9.0.0/24", "", f"eth{n}", table=100 + n) for n in range(2)),
    ]
    rules = [Rule(1000 + n, 100 + n, source=f"10.9.0.2{n}/32") for n in range(2)]
    assert check(ONE_SUBNET, routes, rules).status is AuditStatus.PASSED


def routed_rails(table_of: tuple[int, int]) -> list[Route]:
    """Return the routes of two rails behind routers, with the rails' common network in these tables."""
    return [
        *(Route(f"10.{n}.0.0/31", "", f"eth{n}") for n in (1, 2)),
        *(Route("10.0.0.0/8", f"10.{n}.0.1", f"eth{n}", table=table_of[n - 1]) for n in (1, 2)),
        Route("0.0.0.0/0", "192.168.0.1", "eno1"),
    ]


RAILS = [nic("eth1", "10.1.0.0/31"), nic("eth2", "10.2.0.0/31")]
RAIL_RULES = [Rule(1000 + n, 100 + n, source=f"10.{n}.0.0/32") for n in (1, 2)]


def test_rails_behind_routers_with_tables_of_their_own_pass() -> None:
    assert check(RAILS, routed_rails((101, 102)), RAIL_RULES).status is AuditStatus.PASSED


def test_routes_of_all_rails_in_one_table_lead_out_by_the_first() -> None:
    found = check(RAILS, routed_rails((254, 254)), [], strict=True)
    text = "packets from 10.2.0.0 to 10.0.0.0/8 leave by eth1; rp_filter 1 drops what comes from there"
    assert texts(found) == {"eth2": text}


def test_a_route_of_several_hops_names_all_of_them() -> None:
    routes = [
        *(Route(f"10.{n}.0.0/31", "", f"eth{n}") for n in (1, 2)),
        *(Route("10.0.0.0/8", f"10.{n}.0.1", f"eth{n}", paths=2) for n in (1, 2)),
    ]
    found = texts(check(RAILS, routes, []))
    assert found["eth1"] == "packets from 10.1.0.0 to 10.0.0.0/8 leave by eth1 or eth2"
    assert set(found) == {"eth1", "eth2"}


def test_a_route_in_a_table_without_a_rule_is_not_in_use() -> None:
    found = texts(check(RAILS, routed_rails((254, 102)), []))
    assert found == {"eth2": "packets from 10.2.0.0 to 10.0.0.0/8 leave by eth1"}


def test_rails_that_stay_within_their_subnets_need_no_rule() -> None:
    interfaces = [nic("eth1", "10.1.0.5/24"), nic("eth2", "10.2.0.5/24")]
    routes = [
        *(Route(f"10.{n}.0.0/24", "", f"eth{n}") for n in (1, 2)),
        Route("0.0.0.0/0", "9.9.9.9", "eno1"),
    ]
    assert check(interfaces, routes, []).status is AuditStatus.PASSED


def test_a_nic_of_a_vrf_has_the_routes_of_the_vrf() -> None:
    interfaces = [
        nic("blue", "", kind="vrf"),
        nic("eth0", "10.9.0.20/24"),
        nic("eth1", "10.9.0.21/24", master="blue"),
    ]
    interfaces[0] = Interface("blue", 9, 65536, "up", UP, kind="vrf")
    routes = [Route("10.9.0.0/24", "", "eth0"), Route("10.9.0.0/24", "", "eth1", table=10)]
    found = check(interfaces, routes, [Rule(1000, 0, is_selective=True)])
    assert found.status in (AuditStatus.PASSED, AuditStatus.SKIPPED), texts(found)


def test_ipv6_is_checked_by_its_own_rules() -> None:
    interfaces = [nic("eth0", "fd00::20/64"), nic("eth1", "fd00::21/64")]
    routes = [Route("fd00::/64", "", "eth0"), Route("fd00::/64", "", "eth1", table=101)]
    main6 = Rule(32766, 254, family=socket.AF_INET6)
    wrong = check(interfaces, routes, [main6, Rule(100, 101, source="10.9.0.21/32")])
    assert texts(wrong) == {"eth1": "packets from fd00::21 to fd00::/64 leave by eth0"}
    rule = Rule(100, 101, source="fd00::21/128", family=socket.AF_INET6)
    assert check(interfaces, routes, [main6, rule]).status is AuditStatus.PASSED


def test_a_host_with_one_nic_is_skipped() -> None:
    assert check(ONE_SUBNET[:1], BOTH_CONNECTED[:1], []).status is AuditStatus.SKIPPED


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], {"eth0"}),
        ([Rule(5, 101)], {"eth1"}),
        ([Rule(5, 101, mark=7)], {"eth0"}),
        ([Rule(5, 101, is_selective=True)], {"eth0"}),
        ([Rule(5, 101, interface="eth3")], {"eth0"}),
        ([Rule(5, 101, interface="lo")], {"eth1"}),
        ([Rule(5, 101, destination="10.3.0.0/16")], {"eth0"}),
        ([Rule(5, 77)], {"eth0"}),  # an empty table is passed over
        ([Rule(5, 102)], set()),  # blackhole
        ([Rule(5, 103)], {"eth0"}),  # throw
        ([Rule(5, 101, suppress_length=0)], {"eth0"}),  # its default route is left out
        ([Rule(40000, 101)], {"eth0"}),
    ],
)
def test_devices_are_those_that_the_kernel_chooses(rules: list[Rule], expected: set[str]) -> None:
    routes = [
        Route("0.0.0.0/0", "10.0.0.1", "eth9"),
        Route("10.2.0.0/16", "10.0.0.1", "eth0"),
        Route("0.0.0.0/0", "10.1.0.1", "eth1", table=101),
        Route("0.0.0.0/0", "", "", table=102, kind="blackhole"),
        Route("10.2.0.0/24", "", "", table=103, kind="throw"),
    ]
    found = devices_of([MAIN, LOCAL, *rules], routes, ip_address("10.1.0.5"), ip_address("10.2.0.7"))
    assert found == expected
