"""Whose addresses answer traces: ports, loopbacks, anycast gateways."""

from __future__ import annotations

from typing import Any

import pytest

from producers.trace.addressing import Addressing, AddressRule, partner_of

LEAF, SPINES = "10.0.0.1", ("10.9.0.1", "10.9.0.3")


@pytest.mark.parametrize(
    ("address", "prefix", "partner"),
    [
        ("10.0.0.0", 31, "10.0.0.1"),
        ("10.0.0.3", 31, "10.0.0.2"),
        ("10.0.0.1", 30, "10.0.0.2"),
        ("10.0.0.4", 30, None),
        ("10.0.0.9", 0, None),
        ("fd00::1", 31, "fd00::"),
        ("10.7.0.1", 24, "10.7.0.254"),
        ("10.7.0.2", 24, None),
    ],
)
def test_the_other_address_of_a_cable(address: str, prefix: Any, partner: str | None) -> None:
    assert partner_of(address, prefix, (1, 254)) == partner


def rule_of(*traces: tuple[str, tuple[str | None, ...], str | None]) -> AddressRule:
    """Return the rule that these (peer, hops, peer's first hop) show."""
    addressing = Addressing()
    for peer, hops, first_hop in traces:
        addressing.observe(peer, hops, True, first_hop)
    return addressing.rule


def test_ports_are_the_first_guess_and_a_configured_prefix_stays() -> None:
    assert rule_of().prefix == 31
    fixed = Addressing(30)
    assert not fixed.observe("b/e", ("l1", "s1", "l2"), True, "l2")
    assert fixed.rule.prefix == 30


def test_ports_of_a_leaf_differ_by_spine_and_from_the_port_of_its_nics() -> None:
    traces = [("b/e", (LEAF, spine, f"10.9.1.{2 * k}"), "10.0.2.0") for k, spine in enumerate(SPINES)]
    assert rule_of(*traces) == AddressRule(31)


def test_a_last_hop_that_is_the_peers_first_is_a_loopback() -> None:
    assert rule_of(("b/e", ("10.255.0.1", "10.255.0.11", "10.255.0.2"), "10.255.0.2")).prefix == 0


def test_a_leaf_with_one_address_for_all_spines_answers_from_a_loopback() -> None:
    traces = [("b/e", (LEAF, spine, "10.255.0.2"), "10.0.2.0") for spine in SPINES]
    assert rule_of(*traces).prefix == 0
    assert rule_of(traces[0]).prefix == 31


def test_a_gateway_at_both_ends_of_a_path_over_switches_is_anycast() -> None:
    gateway = "10.99.0.1"
    traces = [("b/e", (gateway, spine, f"10.9.1.{2 * k}"), gateway) for k, spine in enumerate(SPINES)]
    assert rule_of(*traces) == AddressRule(31, anycast=frozenset({gateway}))
    assert rule_of(("c/e", (gateway,), gateway)).anycast == frozenset(), "both NICs are on one leaf"
    loop = rule_of(("b/e", (gateway, SPINES[0], gateway), gateway))
    assert (loop.prefix, loop.anycast) == (0, {gateway}), "nothing shows that spines answer from ports"


@pytest.mark.parametrize(
    ("ports", "prefix", "hosts"),
    [
        (("10.9.0.1", "10.9.0.3", "10.9.0.6", "10.9.0.8"), 31, (0, 0)),
        (("10.9.0.1", "10.9.0.5", "10.9.0.10", "10.9.0.14"), 30, (0, 0)),
        (("10.9.0.1", "10.9.1.1", "10.9.2.254", "10.9.3.254"), 24, (1, 254)),
        (("10.9.0.1", "10.9.1.1", "10.9.2.2", "10.9.3.2"), 24, (1, 2)),
        (("fd09:0:1::1", "fd09:0:2::1", "fd09:0:3::2", "fd09:0:4::2"), 24, (1, 2)),
        (("10.255.0.2", "10.255.0.3", "10.255.0.8", "10.255.0.9"), 0, (0, 0)),
    ],
)
def test_the_length_of_the_prefix_shows_in_the_addresses(
    ports: tuple[str, ...], prefix: int, hosts: tuple[int, int]
) -> None:
    a, b, c, d = ports
    found = rule_of(("b/e", (LEAF, a, c), "10.0.2.0"), ("b/e", (LEAF, b, d), "10.0.2.0"))
    assert (found.prefix, found.hosts) == (prefix, hosts)


def test_silent_hops_and_broken_paths_show_nothing() -> None:
    addressing = Addressing()
    assert not addressing.observe("b/e", (None, None, None), True, None)
    assert not addressing.observe("b/e", (LEAF, SPINES[0]), False, SPINES[0])
    assert addressing.rule.prefix == 31
