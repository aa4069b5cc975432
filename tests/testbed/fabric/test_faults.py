"""Each fault drops exactly its share on its link, and healing leaves no trace."""

from __future__ import annotations

import time

import pytest
from pyroute2 import IPRoute

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.fabric import Fabric
from fabrictime.testbed.fabric.faults import Faults, FaultSpec, parse_duration, parse_fault
from fabrictime.testbed.fabric.topology import Port
from fabrictime.testbed.fabric.truth import PathUnclear
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricSettings

SMALL = FabricSettings(hosts=4, leaves=2, spines=2)
TRUE_ATTRIBUTES = {"RTA_DST", "RTA_GATEWAY", "RTA_OIF", "RTA_TABLE", "RTA_PREFSRC", "RTA_MULTIPATH"}


def state(fabric: Fabric) -> dict[str, object]:
    """Return all that a fault may touch: routes, neighbours, addresses, carrier."""

    def read() -> object:
        with IPRoute() as ip:
            routes = sorted(
                repr([(k, repr(v)) for k, v in r["attrs"] if k in TRUE_ATTRIBUTES] + [r["flags"], r["type"]])
                for r in ip.get_routes(family=2)
            )
            neighbours = sorted(
                (n["ifindex"], n["state"], n.get_attr("NDA_DST"), n.get_attr("NDA_LLADDR"))
                for n in ip.get_neighbours(family=2)
                if n["state"] == 0x80
            )
            addresses = sorted((a["index"], a.get_attr("IFA_ADDRESS")) for a in ip.get_addr(family=2))
            links = [
                (i["index"], i["flags"], i.get_attr("IFLA_CARRIER"), i.get_attr("IFLA_QDISC"))
                for i in ip.get_links()
            ]
        return routes, neighbours, addresses, links

    return {node: fabric.open_in(node, read) for node in fabric.plan.nodes}


def steady(fabric: Fabric) -> dict[str, object]:
    """Return the state once all links that are up also run: the kernel notes a carrier with a delay."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        now = state(fabric)
        flags = [link[1] for *_, links in now.values() for link in links]
        if all(each & IFF_RUNNING for each in flags if each & IFF_UP):
            return now
        time.sleep(0.02)
    raise AssertionError(f"links that are up do not run: {now}")


def settled(fabric: Fabric, wanted: dict[str, object]) -> dict[str, object]:
    """Return the state once it is as wanted, or as it is after 3 s: carrier follows with a short delay."""
    deadline = time.monotonic() + 3
    while (now := state(fabric)) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


IFF_UP, IFF_RUNNING = 0x1, 0x40  # linux/if.h

EVERY = [
    "down leaf1>spine2",
    "down spine2>leaf1",
    "down h1",
    "down leaf1>h1",
    "down spine1",
    "down leaf1",
    "blackhole leaf1>spine2",
    "blackhole spine2",
    "blackhole h1/eth1",
    "grey 20% leaf1<>spine1 seed 3",
    "mtu 1400 leaf1>spine2",
    "blackhole leaf1>spine2 dscp 26",
    "grey 20% leaf1>spine2 dscp 26 seed 3",
    "remark 26 0 leaf1>spine2",
]


@pytest.mark.parametrize("line", EVERY)
def test_healing_leaves_everything_as_it_was(inside, line):
    def body():
        with Fabric(SMALL) as fabric:
            faults = Faults(fabric)
            before = steady(fabric)
            event = faults.add(line)
            if line.startswith("down"):
                assert state(fabric) != before
            else:
                assert state(fabric) == before, "a silent fault shows"
            assert faults.active() == [event]
            assert str(event.spec) == line
            faults.clear(line)
            assert settled(fabric, before) == before
            assert faults.active() == []

    inside(body)


def test_downs_that_overlap_heal_in_any_order(inside):
    def body():
        with Fabric(SMALL) as fabric:
            faults = Faults(fabric)
            before = steady(fabric)
            for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
                lines = ("down leaf1>spine1", "down leaf1", "down spine2>leaf1")
                events = [faults.add(line) for line in lines]
                for at in order:
                    faults.clear(events[at].fault)
                assert settled(fabric, before) == before, order

    inside(body)


def spines_used(testbed: Testbed, source: str, destination: str) -> dict[str, int]:
    """Send 32 flows' bursts; return how many crossed each spine, `lost` for those that did not arrive."""
    used: dict[str, int] = {}
    for sport in range(40_000, 40_032):
        try:
            spine = testbed.truth.path_of(source, destination, sport, 9)[1].split(">")[1].split(":")[0]
        except PathUnclear:
            spine = "lost"
        used[spine] = used.get(spine, 0) + 1
    return used


def test_down_moves_flows_of_the_near_end_and_loses_those_of_the_far_one(inside):
    def body():
        with Testbed(SMALL) as testbed:
            both = spines_used(testbed, "h1", "h3")
            testbed.faults.add("down leaf1>spine2")
            near = spines_used(testbed, "h1", "h3")
            # The far leaf never learns: what it hashes to spine2 has no way on.
            far = sum(
                testbed.truth.likely_path_of("h3", "h1", sport, 9)[1].split(">")[1].startswith("spine2")
                for sport in range(40_000, 40_004)
                if "spine2" not in _try_path(testbed, "h3", "h1", sport)
            )
            testbed.faults.clear()
            healed = spines_used(testbed, "h1", "h3")
            return both, near, far, healed

    both, near, far, healed = inside(body)
    assert set(both) == {"spine1", "spine2"}
    assert near == {"spine1": 32}
    assert far == 0
    assert healed == both, "flows take other paths than before the fault"


def _try_path(testbed: Testbed, source: str, destination: str, sport: int) -> str:
    try:
        return " ".join(testbed.truth.likely_path_of(source, destination, sport, 9))
    except PathUnclear as unclear:
        return f"spine2 lost: {unclear}"


LOSSES = {
    "blackhole leaf1>spine1": 1.0,
    "grey 20% leaf1>spine1": 0.2,
    "grey 1% leaf1>spine1 seed 9": 0.01,
    "grey 20% spine1>leaf1": 0.0,  # the other direction
    "blackhole leaf2>spine1": 0.0,
}


@pytest.mark.parametrize(("line", "share"), LOSSES.items())
def test_a_fault_takes_its_share_of_its_own_link_alone(inside, line, share):
    def body():
        with Testbed(
            FabricSettings(hosts=4, leaves=2, spines=2, host_rate_bps=0, fabric_rate_bps=0)
        ) as testbed:
            sports = {}
            for sport in range(40_000, 40_064):
                path = testbed.truth.likely_path_of("h1", "h3", sport, 7000)
                sports.setdefault(path[1].split(">")[1].split(":")[0], sport)
            testbed.faults.add(line)
            losses = {}
            for spine, sport in sports.items():
                spec = FlowSpec("h1", "h3", 40_000_000, 1.0, "udp", sport, 7000, payload_bytes=400)
                result = testbed.traffic.start(spec).wait()
                assert result.sent_packets > 6000
                losses[spine] = result.loss
            testbed.faults.clear()
            spec = FlowSpec("h1", "h3", 20_000_000, 0.2, "udp", sports["spine1"], 7000, payload_bytes=400)
            losses["healed"] = testbed.traffic.start(spec).wait().loss
            return losses

    losses = inside(body)
    assert losses["spine1"] == pytest.approx(share, abs=0.02 if share < 1 else 0)
    assert losses["spine2"] == 0
    assert losses["healed"] == 0


def test_a_grey_link_drops_the_same_packets_for_the_same_seed(inside):
    def body():
        import socket

        with Testbed(FabricSettings(hosts=2, leaves=2, spines=1)) as testbed:
            fabric = testbed.fabric

            def opened(nic):
                def work():
                    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    sock.bind((nic.address, 0))
                    sock.settimeout(0.2)
                    return sock

                return fabric.open_in(nic.host, work)

            near, far = opened(fabric.nic("h1")), opened(fabric.nic("h2"))
            got = []
            for seed in (5, 5, 6):
                testbed.faults.add(FaultSpec("grey", "leaf1>spine1", 0.3, seed))
                arrived = set()
                for number in range(100):
                    near.sendto(str(number).encode(), far.getsockname())
                near.sendto(b"end", far.getsockname())
                try:
                    while (data := far.recv(10)) != b"end":
                        arrived.add(int(data))
                except TimeoutError:
                    pass
                testbed.faults.clear()
                got.append(arrived)
            near.close()
            far.close()
            return got

    first, again, other = inside(body)
    assert first == again != other
    assert 50 < len(first) < 90


def test_a_fault_with_a_duration_heals_by_itself_and_is_in_the_log(inside):
    def body():
        with Fabric(SMALL) as fabric:
            faults = Faults(fabric)
            before = steady(fabric)
            begin = time.time_ns()
            faults.add("down leaf1>spine1 for 200ms")
            deadline = time.monotonic() + 5
            while faults.active() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert settled(fabric, before) == before
            (event,) = faults.log()
            assert begin <= event.start_begin_ns <= event.start_end_ns
            assert event.clear_begin_ns - event.start_end_ns >= 190_000_000
            assert event.links == ("leaf1:swp3>spine1:swp1", "spine1:swp1>leaf1:swp3")

    inside(body)


def test_a_fault_that_cannot_be_is_refused_and_changes_nothing(inside):
    def body():
        with Fabric(SMALL) as fabric:
            faults = Faults(fabric)
            for line in ("down nowhere", "grey 20% leaf1>leaf2", "blackhole h1>spine1"):
                with pytest.raises(ValueError, match="target"):
                    faults.add(line)
            with pytest.raises(ValueError, match="expected one in force"):
                faults.clear(7)
            assert faults.log() == []

    inside(body)


@pytest.mark.parametrize(
    ("line", "spec"),
    [
        ("down h1", FaultSpec("down", "h1")),
        ("grey 0.5% leaf1>spine2 seed 4 for 2m", FaultSpec("grey", "leaf1>spine2", 0.005, 4, 120.0)),
        (
            "blackhole leaf1:swp3>spine1:swp1 for 500ms",
            FaultSpec("blackhole", "leaf1:swp3>spine1:swp1", for_s=0.5),
        ),
    ],
)
def test_a_line_is_read_and_written_the_same(line, spec):
    assert parse_fault(line) == spec
    assert parse_fault(str(spec)) == spec


@pytest.mark.parametrize(
    "line",
    [
        "",
        "grey leaf1>spine1",
        "grey 0% a",
        "grey 100% a",
        "grey 20 a",
        "lag 5ms a",
        "down",
        "down a b",
        "down a for 5",
        "down a for 0s",
        "grey 5% a seed x",
        "grey nan% a",
    ],
)
def test_a_line_that_is_no_fault_is_refused(line):
    with pytest.raises(ValueError, match="expected"):
        parse_fault(line)


def test_durations():
    assert [parse_duration(t) for t in ("500ms", "10s", "2m", "1h")] == [0.5, 10, 120, 3600]


def test_the_far_end_sees_a_carriers_change_at_once_whichever_port_it_is(inside):
    """The kernel may hold such a change back for a second, where both ends have one interface index."""

    def body():
        with Fabric(FabricSettings(hosts=4, leaves=2, spines=2)) as fabric:
            faults = Faults(fabric)
            before = steady(fabric)
            deadline = time.monotonic() + 3
            while not all(running(fabric, port) for port, _ in fabric.links.values()):
                assert time.monotonic() < deadline
            slowest = 0.0
            for line in ("down h1", "down h2", "down leaf1>spine1", "down spine2>leaf2", "down leaf2>h3"):
                (link,) = faults.resolve(parse_fault(line))
                for change, expected in ((lambda line=line: faults.add(line), False), (faults.clear, True)):
                    begin = time.monotonic()
                    change()
                    while running(fabric, fabric.links[link][1]) != expected:
                        assert time.monotonic() - begin < 5
                    slowest = max(slowest, time.monotonic() - begin)
            assert settled(fabric, before) == before
            return slowest

    assert inside(body) < 0.4


def running(fabric: Fabric, port: Port) -> bool:
    def read() -> bool:
        with IPRoute() as ip:
            return bool(ip.get_links(ifname=port.name)[0]["flags"] & 0x40)

    return fabric.open_in(port.node, read)
