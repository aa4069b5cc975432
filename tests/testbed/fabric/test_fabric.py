"""The fabric under real packets: everything reaches everything, paths follow the 5-tuple, rates hold."""

from __future__ import annotations

import collections
import os
import socket
import time

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.fabric import Fabric, FabricError
from fabrictime.testbed.fabric.truth import Truth
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricSettings


def udp_socket(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.settimeout(2)
    return sock


def unreached(fabric: Fabric) -> list[tuple[str, str]]:
    """Send one datagram between all pairs of NICs; return those that did not arrive."""
    nics = fabric.nics()
    socks = {nic.nic: fabric.open_in(nic.host, lambda nic=nic: udp_socket(nic.address)) for nic in nics}
    for nic in nics:
        for other in nics:
            if nic.host != other.host:
                socks[nic.nic].sendto(nic.nic.encode(), socks[other.nic].getsockname())
    missing = []
    for nic in nics:
        waiting = {other.nic for other in nics if other.host != nic.host}
        try:
            while waiting:
                waiting.discard(socks[nic.nic].recv(100).decode())
        except TimeoutError:
            missing += [(other, nic.nic) for other in waiting]
    for sock in socks.values():
        sock.close()
    return missing


SHAPES = {
    "2/2/2": {"hosts": 2, "leaves": 2, "spines": 2},
    "8/4/4": {},
    "rails": {"hosts": 4, "leaves": 4, "spines": 2, "nics_per_host": 2, "links_per_leaf_spine": 2},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_nic_reaches_every_other_at_once(inside, shape):
    def body():
        with Fabric(FabricSettings(**shape)) as fabric:
            assert unreached(fabric) == []

    inside(body)


@pytest.mark.parametrize("shape", ["8/4/4", "rails"])
def test_a_moved_spine_carries_its_flows_and_running_traffic_goes_on(inside, shape):
    def body():
        with Testbed(FabricSettings(**SHAPES[shape])) as testbed:
            fabric, truth = testbed.fabric, testbed.truth
            nics = [nic.nic for nic in fabric.nics()]
            ask = [(nics[0], nics[-1], sport, 9319) for sport in range(9320, 9328)]
            before = [truth.path_of(*each) for each in ask]
            moved = testbed.move("spine1", "spine2", ["leaf1"])
            assert unreached(fabric) == []
            after = [truth.path_of(*each) for each in ask]
            assert after == [truth.likely_path_of(*each) for each in ask]
            assert after != before
            assert len(moved) == 4 * fabric.settings.links_per_leaf_spine
            assert set(moved) <= set(fabric.links) == set(truth.links())
            testbed.move("spine1", "spine2", ["leaf1"])
            assert [truth.path_of(*each) for each in ask] == before
            fault = testbed.faults.add("blackhole leaf1>spine2")
            with pytest.raises(FabricError, match="fault 1 is in force"):
                testbed.move("spine1", "spine2")
            testbed.faults.clear(fault.fault)
            for wrong in (("spine1", "spine1"), ("spine1", "leaf1"), ("spine1", "spine9")):
                with pytest.raises(ValueError, match="spine"):
                    testbed.move(*wrong)
            with pytest.raises(ValueError, match="leaf 'leaf9'"):
                testbed.move("spine1", "spine2", ["leaf9"])

    inside(body)


def test_the_time_to_stand_and_to_fall_is_printed(inside, capsys):
    def body():
        times = []
        for hosts, leaves, spines in ((2, 2, 2), (8, 4, 4), (64, 16, 8)):
            begin = time.monotonic()
            fabric = Fabric(FabricSettings(hosts=hosts, leaves=leaves, spines=spines)).open()
            up = time.monotonic()
            assert len(fabric.nics()) == hosts
            fabric.close()
            times.append((f"{hosts}/{leaves}/{spines}", up - begin, time.monotonic() - up))
        return times

    for shape, up_s, down_s in inside(body):
        with capsys.disabled():
            print(f"\n  fabric {shape}: up in {up_s:.3f} s, down in {down_s * 1e3:.1f} ms", end="")
        assert up_s < 30


def test_fabrics_of_one_and_of_two_processes_do_not_meet(inside):
    def body():
        settings = FabricSettings(hosts=2, leaves=2, spines=1)
        with Fabric(settings) as one, Fabric(settings) as two:
            assert {n.netns for n in one.nics()}.isdisjoint(n.netns for n in two.nics())
            assert [n.address for n in one.nics()] == [n.address for n in two.nics()]
            assert unreached(one) == unreached(two) == []
            names = sorted(os.listdir("/run/netns"))
        assert os.listdir("/run/netns") == [".fabrictime"]
        return names

    first, second = inside(body), inside(body)
    assert len(first) == len(second) == 11  # 2 x (2 hosts, 2 leaves, 1 spine) and the mark


def test_ports_spread_over_all_spines_and_a_5_tuple_keeps_its_path(inside):
    def body():
        with Fabric() as fabric:
            truth = Truth(fabric)
            seen = collections.Counter()
            for sport in range(40_000, 40_032):
                path = truth.path_of("h1", "h8", sport, 9319)
                assert path == truth.path_of("h1", "h8", sport, 9319)
                assert len(path) == 4
                seen[path[1]] += 1
            return seen

    seen = inside(body)
    assert len(seen) == 4, seen
    assert max(seen.values()) < 20, seen


@pytest.mark.parametrize("apart", [True, False])
def test_tcp_and_connected_udp_follow_the_packets_5_tuple(inside, apart):
    """All bytes of a flow cross one spine: the one that a burst of its 5-tuple crossed."""

    def body():
        with Testbed(FabricSettings(hash_protocol=apart)) as testbed:
            differ = 0
            for sport in range(41_000, 41_006):
                udp = testbed.truth.path_of("h1", "h8", sport, 7000)
                tcp = testbed.truth.path_of("h1", "h8", sport, 7000, "tcp")
                differ += udp != tcp
                for protocol, path in (("udp", udp), ("tcp", tcp)):
                    assert path == testbed.truth.likely_path_of("h1", "h8", sport, 7000, protocol)
                    before = testbed.truth.links()
                    spec = FlowSpec("h1", "h8", 20_000_000, 0.1, protocol, sport, 7000)
                    result = testbed.traffic.start(spec).wait()
                    after = testbed.truth.links()
                    for link, (sender, _) in testbed.fabric.links.items():
                        if sender.node == "leaf1" and testbed.fabric.links[link][1].node.startswith("spine"):
                            moved = after[link].sent_bytes - before[link].sent_bytes
                            if link in path:
                                assert moved >= result.received_bytes
                            else:
                                assert moved == 0, (protocol, sport, link, moved, path)
            return differ

    differ = inside(body)
    assert (differ > 0) == apart


@pytest.mark.parametrize(("rate_mbit", "mtu"), [(20, 1500), (100, 1500), (20, 4196)])
def test_a_port_holds_its_rate(inside, rate_mbit, mtu):
    """What leaves an overdriven port is never above its rate, and reaches it given processor time."""

    def body():
        rate = rate_mbit * 1_000_000
        settings = FabricSettings(
            hosts=2,
            leaves=2,
            spines=1,
            host_rate_bps=0,
            fabric_rate_bps=rate,
            buffer_bytes=60_000,
            mtu_bytes=mtu,
        )
        tries = []
        with Testbed(settings) as testbed:
            for _ in range(6):
                udp = testbed.traffic.start(FlowSpec("h1", "h2", int(rate * 1.3), 0.5)).wait()
                tcp = testbed.traffic.start(FlowSpec("h1", "h2", 0, 0.5, "tcp")).wait()
                on_wire = udp.goodput_bps * 1514 / 1472, tcp.goodput_bps * (mtu + 14) / (mtu - 52)
                shares = [bps / rate for bps in on_wire]
                tries.append((*shares, udp.loss))
                if shares[0] > 0.95 and shares[1] > 0.85:
                    break
        return tries

    tries = inside(body)
    best_udp, best_tcp = max(udp for udp, _, _ in tries), max(tcp for _, tcp, _ in tries)
    assert best_udp < 1.05
    assert best_tcp < 1.05
    busy = os.getloadavg()[0] > (os.cpu_count() or 1) * 1.5
    if busy and (best_udp < 0.95 or best_tcp < 0.85):
        pytest.skip(f"the processors are taken by others: load {os.getloadavg()[0]:.1f}")
    assert best_udp > 0.95
    assert best_tcp > 0.85
    assert max(loss for _, _, loss in tries) > 0.1


def test_a_small_packet_on_an_idle_path_waits_for_no_token(inside):
    """A round trip over four links and back stays far below a millisecond, though every port is limited."""

    def body():
        with Fabric(FabricSettings(host_rate_bps=100_000_000, fabric_rate_bps=100_000_000)) as fabric:
            a, b = fabric.nic("h1"), fabric.nic("h8")
            near = fabric.open_in("h1", lambda: udp_socket(a.address))
            far = fabric.open_in("h8", lambda: udp_socket(b.address))
            trips = []
            for _ in range(200):
                begin = time.perf_counter()
                near.sendto(b"x", far.getsockname())
                far.sendto(*far.recvfrom(10))
                near.recv(10)
                trips.append(time.perf_counter() - begin)
            near.close()
            far.close()
            return sorted(trips)[100]

    assert inside(body) < 0.001


def test_a_fabric_before_entering_and_a_name_that_it_lacks_are_refused(inside):
    with pytest.raises(RuntimeError, match="after fabrictime"):
        Fabric().open()

    def body():
        with Fabric(FabricSettings(hosts=2, leaves=2, spines=1)) as fabric:
            with pytest.raises(FabricError, match="h9"):
                fabric.nic("h9")
            with pytest.raises(FabricError, match="spine7"):
                fabric.open_in("spine7", lambda: None)
            with pytest.raises(FabricError, match="open already"):
                fabric.open()
        assert fabric.nics() == []

    inside(body)


def test_a_broken_clock_of_an_unknown_nic_is_refused():
    with pytest.raises(FabricError, match=r"unstable_clocks 'h9/eth1': expected NICs .* such as h1/eth1"):
        Fabric(FabricSettings(hosts=4, unstable_clocks=("h2/eth1", "h9/eth1")))
