"""Traces of real packets: the links that probers name for their probes and answers are the true ones."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.truth import PathUnclear
from fabrictime.testbed.settings import FabricSettings

pytestmark = pytest.mark.fabric

PORT, PATHS = 9319, 4
SMALL = FabricSettings(hosts=4, leaves=2, spines=3)
RAILS = FabricSettings(hosts=3, nics_per_host=2, leaves=4, spines=2, links_per_leaf_spine=2)


class Watched:
    """Probers of a fabric with a `ProbeRouteTracer` each, and the book of what they published."""

    def __init__(self, testbed: Testbed, probers: type, **settings: Any) -> None:
        from producers.settings import ProbeSettings
        from producers.trace.probe_routes import ProbeRouteTracer
        from producers.trace.route_tracer import TracedNic
        from streams.runtime.route_table import RouteTable

        self.fabric, self.truth = testbed.fabric, testbed.truth
        names = [nic.nic for nic in self.fabric.nics()]
        hosts = {nic.nic: nic.host for nic in self.fabric.nics()}
        self.peers = {name: [other for other in names if hosts[other] != hosts[name]][:3] for name in names}
        self.fleet = probers(self.fabric, self.peers, rate_pps=300.0, paths=PATHS)
        self.book, self.tombstones, self.published = RouteTable(), [], 0
        given = {"key_file": "unused", "paths": PATHS, "retrace_s": 600, **settings}
        self.watches = {}
        for nic in self.fabric.nics():
            engine = self.fleet.engines[nic.nic]
            self.watches[nic.nic] = ProbeRouteTracer(
                engine,
                ProbeSettings(**given),
                TracedNic(nic.nic, "fabric", nic.address, self.put),
                open_candidates=self.opener(nic) if "path_candidates" in settings else None,
            )
        self.announce()

    def opener(self, nic: Any) -> Callable[[Any], Any]:
        from native.core.probe import open_socket

        return lambda ports: self.fabric.open_in(
            nic.host, lambda: [open_socket(nic.address, port) for port in ports]
        )

    def put(self, topic: str, key: str, value: bytes | None) -> None:
        assert topic == self.book.topic.name
        self.published += 1
        if value is None:
            self.tombstones.append(key)
        self.book.take(key.encode(), value)

    def announce(self, without: tuple[str, ...] = ()) -> None:
        records = {
            nic.nic: {
                "nic": nic.nic,
                "addresses": [nic.address],
                "first_hop": self.watches[nic.nic].first_hop,
                "path_ports": list(self.fleet.engines[nic.nic].path_ports),
            }
            for nic in self.fabric.nics()
            if nic.nic not in without
        }
        for watch in self.watches.values():
            watch.set_fleet(records)

    def run(self, until: Callable[[], bool], timeout_s: float = 30.0) -> float:
        """Tick all watches until something holds; return the seconds that it took."""
        began_s = time.monotonic()
        while not until():
            now_s = time.monotonic()
            assert now_s - began_s < timeout_s, f"still not after {timeout_s:g} s: {self.wrong()[:3]}"
            for name, watch in self.watches.items():
                watch.observe(self.fleet.engines[name].drain(), now_s)
                watch.tick(now_s)
            if any(watch.announcement_changed for watch in self.watches.values()):
                for watch in self.watches.values():
                    watch.announcement_changed = False
                self.announce()
            time.sleep(0.005)
        return time.monotonic() - began_s

    def asked(self) -> Iterator[tuple[str, str, int]]:
        for name, peers in self.peers.items():
            for peer in peers:
                for port in self.fleet.engines[name].path_ports:
                    yield name, peer, port

    def wrong(self) -> list[str]:
        """Every path that is not known as it truly is, requests and answers."""
        found = []
        for name, peer, port in self.asked():
            try:
                out = tuple(self.truth.likely_path_of(name, peer, port, PORT))
                back = tuple(self.truth.likely_path_of(peer, name, PORT, port))
            except PathUnclear as error:
                # A neighbour that has not heard of the lost carrier still sends to a switch without routes.
                found.append(f"{name} {peer} {port}: {error}")
                continue
            for direction, true, traced_links in (
                ("out", out, self.book.forward(name, peer, port)),
                ("back", back, self.book.reverse(name, peer, port)),
            ):
                if traced_links != true:
                    found.append(f"{name} {peer} {port} {direction}: {traced_links}, truly {true}")
        return found

    def malformed(self) -> dict[str, int]:
        counted = {"malformed": 0, "bad_mac": 0, "wrong_nic": 0, "stale_time": 0, "unknown_stamp": 0}
        for engine in self.fleet.engines.values():
            counters = engine.counters()
            for key in counted:
                counted[key] += int(counters[key])
        return counted

    def close(self) -> None:
        for watch in self.watches.values():
            watch.close()
        self.fleet.close()


def write_names(testbed: Testbed, path: Path) -> Path:
    """Write down the fabric as it is now, as an operator would."""
    from fabrictime.testbed.fabric.topology import topology_file

    new = path.with_suffix(".new")
    new.write_text(topology_file(testbed.fabric.plan).model_dump_json())
    new.replace(path)
    return path


@pytest.mark.parametrize("shape", [SMALL, RAILS], ids=["small", "rails"])
def test_traced_links_are_the_true_ones_for_every_pair_and_port(inside, probers, tmp_path, shape):
    def body():
        with Testbed(shape) as testbed:
            names = write_names(testbed, tmp_path / "names.json")
            watched = Watched(testbed, probers, topology_file=names)
            try:
                took_s = watched.run(lambda: not watched.wrong())
                lines = [watched.book.route(*where) for where in watched.asked()]
                proven = [
                    watched.truth.path_of(name, peer, port, PORT)
                    == list(watched.book.forward(name, peer, port))
                    for name, peer, port in list(watched.asked())[::7]
                ]
                return (
                    took_s,
                    {line.found for line in lines},
                    {line.contradiction for line in lines},
                    proven,
                    watched.malformed(),
                )
            finally:
                watched.close()

    took_s, found, contradictions, proven, malformed = inside(body)
    assert took_s < 20
    assert found == {"TRACED"}
    assert contradictions == {None}
    assert all(proven)
    assert not any(malformed.values()), malformed


@pytest.mark.parametrize("leaves", [["leaf1"], None], ids=["one leaf", "all leaves"])
def test_paths_are_right_again_after_a_spine_is_moved(inside, probers, tmp_path, leaves):
    """At one leaf the packets go other ways; at all of them the same addresses are other spines' ports."""

    def body():
        with Testbed(SMALL) as testbed:
            names = write_names(testbed, tmp_path / "names.json")
            watched = Watched(testbed, probers, topology_file=names, retrace_s=4.0)
            try:
                watched.run(lambda: not watched.wrong())
                before = {where: watched.book.forward(*where) for where in watched.asked()}
                testbed.move("spine1", "spine3", leaves)
                write_names(testbed, names)
                wrong = len(watched.wrong())
                took_s = watched.run(lambda: not watched.wrong())
                moved = [where for where, links in before.items() if watched.book.forward(*where) != links]
                proven = [
                    watched.truth.path_of(*where, PORT) == list(watched.book.forward(*where))
                    for where in moved[:4]
                ]
                return wrong, len(moved), took_s, proven
            finally:
                watched.close()

    wrong, moved, took_s, proven = inside(body)
    assert wrong, "the move changed no path: nothing was tested"
    assert moved
    assert took_s < 20
    assert all(proven)


def test_paths_that_switches_lead_around_a_spine_are_seen_to_move_there_and_back(inside, probers, tmp_path):
    """The carrier goes, neighbours take other ways at once: nothing is lost, and no trace is due for ten
    minutes."""

    def body():
        with Testbed(SMALL) as testbed:
            names = write_names(testbed, tmp_path / "names.json")
            watched = Watched(testbed, probers, topology_file=names)
            try:
                watched.run(lambda: not watched.wrong())
                testbed.faults.add("down spine2")
                wrong = len(watched.wrong())
                around_s = watched.run(lambda: not watched.wrong())
                testbed.faults.clear()
                back_s = watched.run(lambda: not watched.wrong())
                return wrong, around_s, back_s
            finally:
                watched.close()

    wrong, around_s, back_s = inside(body)
    assert wrong, "no path led over the spine: nothing was tested"
    assert around_s < 10
    assert back_s < 10


def test_ports_are_chosen_so_that_every_spine_is_probed(inside, probers, tmp_path):
    def body():
        with Testbed(FabricSettings(hosts=4, leaves=2, spines=4)) as testbed:
            names = write_names(testbed, tmp_path / "names.json")
            watched = Watched(testbed, probers, topology_file=names, path_candidates=24)
            try:
                watched.run(
                    lambda: all(
                        w.ports._searched_s > 0 and not w.ports.is_searching for w in watched.watches.values()
                    )
                )
                watched.run(lambda: not watched.wrong())
                spines = {}
                for name, peer, port in watched.asked():
                    links = watched.book.forward(name, peer, port)
                    spines.setdefault(name, set()).update(link.partition(":")[0] for link in links[2:3])
                ports = {tuple(engine.path_ports) for engine in watched.fleet.engines.values()}
                return {name: len(of - {"leaf1", "leaf2"}) for name, of in spines.items()}, ports
            finally:
                watched.close()

    spines, ports = inside(body)
    assert set(spines.values()) == {4}
    assert ports != {(9320, 9321, 9322, 9323)}


def test_a_dead_link_stays_on_its_paths_and_a_peer_that_leaves_is_forgotten(inside, probers, tmp_path):
    def body():
        with Testbed(SMALL) as testbed:
            names = write_names(testbed, tmp_path / "names.json")
            watched = Watched(testbed, probers, topology_file=names, retrace_s=0.5, silent_s=1)
            try:
                watched.run(lambda: not watched.wrong())
                known = {where: watched.book.forward(*where) for where in watched.asked()}
                testbed.faults.add("blackhole leaf1>spine2")
                ends = time.monotonic() + 4
                watched.run(lambda: time.monotonic() > ends)
                kept = known == {where: watched.book.forward(*where) for where in watched.asked()}
                testbed.faults.clear()

                gone = next(iter(watched.peers))
                watched.fleet.engines[gone].set_peers([])
                watched.watches.pop(gone)
                for name, engine in watched.fleet.engines.items():
                    engine.set_peers([peer for peer in engine.peers if peer.nic != gone])
                    watched.peers[name] = [peer for peer in watched.peers[name] if peer != gone]
                others = [name for name in watched.peers if name != gone]
                watched.announce(without=(gone,))
                watched.run(lambda: not any(gone in pair for pair in watched.book.pairs()))
                return kept, sorted(watched.tombstones), gone, others
            finally:
                watched.close()

    kept, tombstones, gone, others = inside(body)
    assert kept, "whoever looks for the dead link needs the paths as they were"
    assert set(tombstones) >= {f"{name}>{gone}" for name in others}
    assert set(tombstones) >= {f"{gone}>{name}" for name in others}


def test_a_file_that_is_out_of_date_is_a_contradiction_and_not_a_wrong_link(inside, probers, tmp_path):
    def body():
        with Testbed(SMALL) as testbed:
            names = write_names(testbed, tmp_path / "names.json")
            testbed.move("spine1", "spine3", ["leaf1"])
            watched = Watched(testbed, probers, topology_file=names)
            try:
                watched.run(lambda: all(watched.book.route(*where).links for where in watched.asked()))
                lines = [(watched.book.route(*where), where) for where in watched.asked()]
                contradicted = [line.contradiction for line, _ in lines if line.contradiction]
                whole = [line for line, _ in lines if line.complete and line.contradiction]
                return len(lines), contradicted, whole
            finally:
                watched.close()

    lines, contradicted, whole = inside(body)
    assert contradicted
    assert len(contradicted) < lines, "paths over the spine that stayed are as the file says"
    assert not whole
    assert any("which the file wires to" in text for text in contradicted)


def test_ipv6_paths_are_traced_like_ipv4_paths(inside):
    """Two hosts and two routers in a row, built by hand: the fabric itself speaks IPv4 alone."""
    if not Path("/proc/sys/net/ipv6").exists():
        pytest.skip("this kernel has no IPv6")

    def body():
        from pyroute2 import IPRoute

        from fabrictime.testbed.processes import userns
        from native.core.probe import Engine, Peer, open_sockets
        from producers.settings import ProbeSettings
        from producers.trace.probe_routes import ProbeRouteTracer
        from producers.trace.route_tracer import TracedNic
        from streams.runtime.route_table import RouteTable

        names = ["a", "r1", "r2", "b"]
        spaces: dict[str, str] = {}

        def build() -> None:
            fds = {}
            for name in names:
                spaces[name] = userns.new_netns(f"v6-{os.getpid()}-{name}")
                fds[name] = os.open(spaces[name], os.O_RDONLY | os.O_CLOEXEC)
                for key in ("all/forwarding", "default/forwarding"):
                    Path(f"/proc/sys/net/ipv6/conf/{key}").write_text("1" if name.startswith("r") else "0")
                for key in ("all/accept_dad", "default/accept_dad"):
                    Path(f"/proc/sys/net/ipv6/conf/{key}").write_text("0")
                Path("/proc/sys/net/ipv6/icmp/ratelimit").write_text("0")
            for at, name in enumerate(names):
                userns.setns(spaces[name])
                with IPRoute() as ip:
                    ip.link("set", index=1, state="up")
                    if at < 3:
                        peer = {"ifname": "down", "net_ns_fd": fds[names[at + 1]]}
                        ip.link("add", ifname="up", kind="veth", index=100 + at, peer=peer)
            for at, name in enumerate(names):
                userns.setns(spaces[name])
                with IPRoute() as ip:
                    for device, address in (("up", f"fd00:{at}::"), ("down", f"fd00:{at - 1}::1")):
                        if (device == "up" and at == 3) or (device == "down" and at == 0):
                            continue
                        index = socket.if_nametoindex(device)
                        ip.addr("add", index=index, address=address, prefixlen=127)
                        ip.link("set", index=index, state="up")
            for at, name in enumerate(names):
                userns.setns(spaces[name])
                with IPRoute() as ip:
                    for net in range(3):
                        if net > at:
                            ip.route("add", dst=f"fd00:{net}::/127", gateway=f"fd00:{at}::1")
                        elif net < at - 1:
                            ip.route("add", dst=f"fd00:{net}::/127", gateway=f"fd00:{at - 1}::")
            for fd in fds.values():
                os.close(fd)

        userns.in_helper_thread(build)
        home = {"a": "fd00:0::", "b": "fd00:2::1"}
        engines, book, watches = {}, RouteTable(), {}
        try:
            for name in ("a", "b"):
                sockets = userns.in_netns(
                    spaces[name], lambda name=name: open_sockets(home[name], PORT, 9320, 2)
                )
                engines[name] = Engine(sockets, nic=f"{name}/e", key=bytes(16), rate_pps=200.0)
            threads = [threading.Thread(target=e.run, daemon=True) for e in engines.values()]
            for thread in threads:
                thread.start()
            engines["a"].set_peers([Peer("b/e", home["b"], PORT)])
            for name, engine in engines.items():
                watches[name] = ProbeRouteTracer(
                    engine,
                    ProbeSettings(key_file="unused", paths=2),
                    TracedNic(
                        f"{name}/e",
                        "f",
                        home[name],
                        lambda topic, key, value: book.take(key.encode(), value),
                    ),
                )
            ends = time.monotonic() + 30
            while not (book.forward("a/e", "b/e", 9320) and book.reverse("a/e", "b/e", 9321)):
                assert time.monotonic() < ends, (book.paths("a/e", "b/e"), book.paths("b/e", "a/e"))
                records = {
                    f"{name}/e": {
                        "addresses": [str(ipaddress.ip_address(home[name]))],
                        "first_hop": watches[name].first_hop,
                        "path_ports": [9320, 9321],
                    }
                    for name in home
                }
                for watch in watches.values():
                    watch.set_fleet(records)
                    watch.tick(time.monotonic())
                time.sleep(0.01)
            lost = engines["a"].counters()["unreachable"]
            for engine in engines.values():
                engine.stop()
            for thread in threads:
                thread.join(10)
            return book.forward("a/e", "b/e", 9320), book.reverse("a/e", "b/e", 9321), lost
        finally:
            for engine in engines.values():
                engine.close()
            for path in spaces.values():
                userns.remove_netns(path)

    out, back, unreachable = inside(body)
    assert out == ("a:e>fd00--1:a.e", "fd00-1--:ip>fd00-1--1:ip", "fd00-2--:b.e>b:e")
    assert back == tuple(">".join(link.split(">")[::-1]) for link in out[::-1])
    assert unreachable == 0
