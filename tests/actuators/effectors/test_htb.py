"""Tenants' shares by the kernel: HTB and filters at hosts of a testbed fabric, in network namespaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyroute2 import IPRoute

from actuators.effectors.htb import HtbQdisc, Match, Share
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.fabric import Fabric
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricSettings

LINE = 20_000_000
SHAPE: dict[str, Any] = {"hosts": 2, "leaves": 2, "spines": 1, "host_rate_bps": 0, "fabric_rate_bps": 0}
GOLD = Match("TCP", "10.9.0.1", 5000, "10.9.0.2", 6000)
OTHER = Match("UDP", "10.9.0.1", 5001, "10.9.0.2", 6000)


def at_host(fabric: Fabric, work: Callable[[IPRoute], Any]) -> Any:
    """Call `work` in the namespace of h1."""

    def opened() -> Any:
        with IPRoute() as ip:
            return work(ip)

    return fabric.open_in("h1", opened)


def on_fabric(work: Callable[[IPRoute], Any], **settings: Any) -> Any:
    with Fabric(FabricSettings(**{**SHAPE, **settings})) as fabric:
        return at_host(fabric, work)


def seen(ip: IPRoute) -> list[tuple[Any, ...]]:
    """All qdiscs, classes and filters at eth1."""
    index = ip.link_lookup(ifname="eth1")[0]
    return [
        (found.get_attr("TCA_KIND"), found["handle"], found["parent"])
        for found in (*ip.get_qdiscs(index=index), *ip.get_classes(index=index))
    ]


def test_shares_are_applied_once_changed_live_read_back_and_removed_without_trace(inside) -> None:
    def body(ip: IPRoute) -> None:
        before = seen(ip)
        kernel = HtbQdisc(ip, "eth1", LINE)
        assert kernel.remove() is False
        shares = {"gold": Share(5_000_000), "silver": Share(0, 4_000_000)}
        assert kernel.apply(shares, {GOLD: "gold", OTHER: "silver"}) == 7
        assert kernel.apply(shares, {GOLD: "gold", OTHER: "silver"}) == 0
        again = HtbQdisc(ip, "eth1", LINE)  # a restarted service finds the present state
        assert again.apply(shares, {GOLD: "gold", OTHER: "silver"}) == 0
        there = again.read()
        assert sorted(there.classes.values()) == [
            (8_000, 4_000_000),
            (5_000_000, LINE),
            (15_000_000, LINE),
            (LINE, LINE),
        ]
        assert len(there.flows) == 2
        assert again.apply({"gold": Share(6_000_000), "silver": Share(0, 4_000_000)}, {OTHER: "gold"})
        there = again.read()
        assert (6_000_000, LINE) in there.classes.values()
        assert len(there.flows) == 1
        assert again.apply({"gold": Share(6_000_000)}, {OTHER: "gold"}) == 1
        assert len(again.read().classes) == 3
        assert again.apply({}, {}) == 1
        assert seen(ip) == before

    inside(lambda: on_fabric(body))


def test_a_guarantee_holds_beside_a_greedy_unpaced_tenant(inside) -> None:
    def body() -> tuple[float, float, float]:
        with Testbed(FabricSettings(**SHAPE)) as testbed:
            here, there = (testbed.fabric.nic(host).address for host in ("h1", "h2"))
            gold = Match("TCP", here, 5000, there, 6000)

            def apply(shares: dict[str, Share]) -> None:
                at_host(testbed.fabric, lambda ip: HtbQdisc(ip, "eth1", LINE).apply(shares, {gold: "gold"}))

            apply({"gold": Share(8_000_000)})

            def flow(sport: int, seconds: float, *, greedy: bool = False):
                spec = FlowSpec(
                    "h1",
                    "h2",
                    40_000_000 if greedy else 0,
                    seconds,
                    "udp" if greedy else "tcp",
                    sport,
                    6001 if greedy else 6000,
                )
                return testbed.traffic.start(spec)

            alone = flow(5001, 1.0, greedy=True).wait().goodput_bps
            greedy = flow(5001, 3.0, greedy=True)
            limited = flow(5000, 2.0).wait().goodput_bps
            greedy.stop()
            apply({"gold": Share(0, 4_000_000)})
            capped = flow(5000, 1.0).wait().goodput_bps
            apply({})
            return alone, limited, capped

    alone, limited, capped = inside(body)
    assert alone > 0.8 * LINE, "what is idle is used"
    assert limited > 0.85 * 8_000_000
    assert 0.7 * 4_000_000 < capped < 1.1 * 4_000_000


def test_invalid_shares_are_refused_in_one_line_and_change_nothing(inside) -> None:
    def body(ip: IPRoute) -> None:
        before = seen(ip)
        kernel = HtbQdisc(ip, "eth1", LINE)
        for shares, flows, why in (
            ({"gold": Share(30_000_000)}, {}, "guarantees of 30000000 bit/s"),
            ({"gold": Share(5_000_000, 1_000_000)}, {}, "ceiling of 1000000 bit/s"),
            ({"gold": Share(1)}, {GOLD._replace(protocol="IB"): "gold"}, "protocol 'IB'"),
            ({"gold": Share(1)}, {GOLD._replace(peer_address="fd00::1"): "gold"}, "IPv4"),
        ):
            with pytest.raises(ValueError, match=why):
                kernel.apply(shares, flows)
        assert seen(ip) == before
        with pytest.raises(ValueError, match="no such device"):
            HtbQdisc(ip, "nosuch", LINE)

    inside(lambda: on_fabric(body))


def test_a_nic_with_a_foreign_root_stays_untouched(inside) -> None:
    def body(ip: IPRoute) -> None:
        before = seen(ip)
        kernel = HtbQdisc(ip, "eth1", LINE)
        with pytest.raises(ValueError, match="its root is tbf"):
            kernel.apply({"gold": Share(5_000_000)}, {})
        assert kernel.remove() is False
        assert seen(ip) == before

    inside(lambda: on_fabric(body, host_rate_bps=LINE))
