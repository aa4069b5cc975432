"""Large packets on real links: a port that drops them, a router that reports it, the link that is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.truth import PathUnclear
from fabrictime.testbed.settings import FabricSettings

pytestmark = pytest.mark.fabric

PORT, FIRST_PATH_PORT, PATHS = 9319, 9320, 4
SMALL = FabricSettings(hosts=4, leaves=2, spines=2)
FULL = 1500


class SizeWatch:
    """Size probers on all NICs of a fabric, the routes of their paths, and the health of its links."""

    def __init__(self, testbed: Testbed, fleet: Any) -> None:
        from producers.ports.link_events import LinkEvents
        from producers.probe.size_prober import SizeProber
        from streams.links.health.shard_health import ShardHealth

        self.testbed, self.fleet = testbed, fleet
        names = [nic.nic for nic in testbed.fabric.nics()]
        self.probers, self.events = {}, {}
        for nic in testbed.fabric.nics():
            self.probers[nic.nic] = SizeProber(fleet.engines[nic.nic], nic.address, 20.0, 100.0)
            self.probers[nic.nic].set_mtus(FULL, dict.fromkeys(names, FULL))
            self.events[nic.nic] = LinkEvents(nic.nic, "fabric", fleet.engines[nic.nic].run_id)
        self.version = 1
        self.rows: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.health = ShardHealth("fabric")
        self.records: dict[str, dict[str, Any]] = {}
        self.routes: dict[tuple[str, str, int], tuple[str, ...]] = {}
        for a in names:
            for b in names:
                for path in range(FIRST_PATH_PORT, FIRST_PATH_PORT + PATHS) if a != b else ():
                    self.routes[a, b, path] = tuple(testbed.truth.likely_path_of(a, b, path, PORT))

    def changed(self, since: int) -> set[tuple[str, str]]:
        return set()

    def forward(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return self.routes.get((nic, peer, path), ())

    def reverse(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return ()

    def until(self, done: Callable[[], bool], timeout_s: float = 30.0) -> bool:
        end = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > end:
                return False
            for name, prober in self.probers.items():
                rows = prober.step(time.monotonic())
                if rows:
                    self.rows |= {(name, row["peer"], row["path"]): dict(row) for row in rows}
                    event = self.events[name].sizes(rows, *self.fleet.engines[name].clocks(), 0)
                    self._take(self.health.ingest(event, time.time_ns(), self))
            self._take(self.health.evaluate(time.time_ns()))
            time.sleep(0.02)
        return True

    def _take(self, changes: Any) -> None:
        self.records |= {name: dict(record) for name, record in changes if record is not None}

    def passes(self) -> dict[tuple[str, str, int], int]:
        return {key: row["passed_bytes"] for key, row in self.rows.items()}

    def wait_for(self, crossed: set[tuple[str, str, int]], limit: int) -> bool:
        """Wait until exactly these paths have the limit, and all others pass everything."""
        wanted = {key: limit if key in crossed else FULL for key in self.routes}
        return self.until(lambda: self.passes() == wanted)


def watched(inside: Any, probers: Any, body: Callable[[Testbed, SizeWatch], Any]) -> Any:
    def run() -> Any:
        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(
                testbed.fabric, {a: [b for b in names if b != a] for a in names}, rate_pps=200.0, paths=PATHS
            )
            try:
                try:
                    watch = SizeWatch(testbed, fleet)
                except PathUnclear as unclear:  # a burst was lost on a busy machine
                    raise AssertionError(str(unclear)) from None
                return body(testbed, watch)
            finally:
                fleet.close()

    return inside(run)


@pytest.mark.parametrize("limit", [1400, 1499])
def test_a_port_that_drops_large_packets_makes_its_link_grey_with_the_size(
    inside: Any, probers: Any, limit: int
) -> None:
    def body(testbed: Testbed, watch: SizeWatch) -> Any:
        clean = watch.wait_for(set(), FULL)
        (link,) = testbed.faults.add(f"mtu {limit} leaf1>spine2").links
        crossed = {key for key, links in watch.routes.items() if link in links}
        found = watch.wait_for(crossed, limit)
        grey = watch.until(lambda: any(r["state"] == "GREY" for r in watch.records.values()))
        records = {name: (r["state"], r["max_packet_bytes"], r["text"]) for name, r in watch.records.items()}
        testbed.faults.clear()
        healed = watch.wait_for(set(), FULL)
        up = watch.until(lambda: all(r["state"] == "UP" for r in watch.records.values()))
        return clean, len(crossed), found, grey, records, healed, up, watch.passes()

    clean, crossed, found, grey, records, healed, up, passes = watched(inside, probers, body)
    assert clean, "a path that passes everything is not known to"
    assert crossed > 0
    assert found, f"other paths have the limit: {passes}"
    assert grey
    ((name, (state, size, text)),) = records.items()
    assert "leaf1:" in name
    assert "spine2:" in name
    assert (state, size) == ("GREY", limit)
    assert f"drops packets above {limit:,} bytes (NICs send 1,500), no router reports it" in text
    assert healed
    assert up


def test_a_router_with_a_smaller_mtu_is_found_and_its_report_disturbs_no_probe(
    inside: Any, probers: Any
) -> None:
    """The kernel keeps the stated path MTU for ten minutes; the end of the limit must be seen anyway."""

    def body(testbed: Testbed, watch: SizeWatch) -> Any:
        import socket

        from pyroute2 import IPRoute

        clean = watch.wait_for(set(), FULL)
        near = next(a for a, b in testbed.fabric.links.values() if a.node == "leaf1" and b.node == "spine2")
        link = next(name for name, (a, _) in testbed.fabric.links.items() if a == near)
        crossed = {key for key, links in watch.routes.items() if link in links}

        def set_mtu(size: int) -> None:
            def work() -> None:
                with IPRoute() as ip:
                    ip.link("set", index=socket.if_nametoindex(near.name), mtu=size)

            testbed.fabric.open_in(near.node, work)

        set_mtu(1400)
        stated = watch.until(
            lambda: all(
                watch.rows[key]["router_mtu_bytes"] == 1400 == watch.rows[key]["passed_bytes"]
                for key in crossed
            )
        )
        grey = watch.until(lambda: any(r["state"] == "GREY" for r in watch.records.values()))
        texts = [r["text"] for r in watch.records.values()]

        def cached(sender: str, target: str) -> int:
            def work() -> int:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.connect((target, 9))
                    return sock.getsockopt(socket.IPPROTO_IP, 14)  # IP_MTU

            return testbed.fabric.open_in(sender, work)  # type: ignore[no-any-return]

        sender, peer, _ = min(crossed)
        kernel = cached(sender.split("/")[0], testbed.fabric.nic(peer).address)
        set_mtu(1500)
        healed = watch.wait_for(set(), FULL)
        return clean, stated, grey, texts, kernel, healed, watch.passes()

    clean, stated, grey, texts, kernel, healed, passes = watched(inside, probers, body)
    assert clean
    assert stated, passes
    assert grey
    assert "a router states an MTU of 1,400 bytes" in texts[0]
    assert kernel == 1400, "the kernel has no smaller path MTU: the test shows nothing"
    assert healed, f"a smaller path MTU in the kernel's cache disturbs the probes: {passes}"


def test_a_grey_and_a_dead_link_are_no_limit(inside: Any, probers: Any) -> None:
    def body(testbed: Testbed, watch: SizeWatch) -> Any:
        testbed.faults.add("grey 30% leaf1<>spine1")
        testbed.faults.add("blackhole leaf2>spine2")
        watch.until(lambda: False, timeout_s=8.0)
        return watch.passes(), watch.records

    passes, records = watched(inside, probers, body)
    assert set(passes.values()) == {FULL}
    assert records == {}
