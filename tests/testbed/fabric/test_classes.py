"""Traffic classes of the testbed: settings that are refused; queues, shares and marks of real packets."""

from __future__ import annotations

import re
import socket
import threading

import pytest
from pydantic import ValidationError

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.jobs.jobs import JobSpec
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricClass, FabricSettings

RATE_BPS = 20_000_000
SLOW = {"hosts": 4, "leaves": 2, "spines": 1, "host_rate_bps": 2 * RATE_BPS, "fabric_rate_bps": RATE_BPS}
UP = "leaf1:swp3>spine1:swp1"


def with_classes(*classes: FabricClass, **fields: int) -> FabricSettings:
    return FabricSettings(**(SLOW | {"classes": classes} | fields))


@pytest.mark.parametrize(
    ("fields", "fragment"),
    [
        ({"classes": [{"dscp": 26}, {"dscp": 26, "priority": 1}]}, "DSCP [26, 26], expected each once"),
        (
            {"classes": [{"share_percent": 60}, {"dscp": 1}]},
            "share_percent 110 together",
        ),
        ({"classes": [{}], "host_rate_bps": 0}, "expected host_rate_bps and fabric_rate_bps above 0"),
        ({"classes": [{"dscp": 64}]}, "less than or equal to 63"),
        ({"classes": [{"share_percent": 0}]}, "greater than 0"),
        ({"classes": [{"share_percent": float("nan")}]}, "finite number"),
        ({"classes": [{"mark_percent": 101}]}, "less than or equal to 100"),
        ({"classes": [{"mark_bytes": 1000}]}, "greater than or equal to 1520"),
        ({"classes": [{"dscp": n, "share_percent": 1} for n in range(9)]}, "at most 8 items"),
        ({"classes": [{"colour": "red"}]}, "Extra inputs"),
    ],
)
def test_classes_that_cannot_be_are_refused(fields, fragment):
    with pytest.raises(ValidationError, match=re.escape(fragment)):
        FabricSettings(**fields)


def test_a_fabric_without_classes_has_one_queue_and_marks_nothing(inside):
    def body():
        with Testbed(FabricSettings(**SLOW)) as testbed:
            testbed.traffic.start(FlowSpec("h1", "h3", RATE_BPS, 0.3, dscp=26)).wait()
            return testbed.truth.marked()

    assert inside(body) == {}


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_each_class_has_its_share_and_spare_capacity_goes_by_priority(inside, protocol):
    """Three classes want more than the link has: the last one keeps its share, the first takes the rest."""

    def body():
        classes = (
            FabricClass(share_percent=10),
            FabricClass(dscp=26, priority=0, share_percent=30),
            FabricClass(dscp=10, priority=1, share_percent=20),
        )
        with Testbed(with_classes(*classes)) as testbed:
            rate, shares = 0 if protocol == "tcp" else RATE_BPS, (0.0, 1.0)
            # a sender that other work keeps from its processor leaves its share to the other
            for _ in range(4):
                flows = [
                    testbed.traffic.start(FlowSpec("h1", "h3", rate, 2.5, protocol, 7000, 7001, dscp=26)),
                    testbed.traffic.start(FlowSpec("h2", "h4", rate, 2.5, protocol, 7002, 7003, dscp=10)),
                ]
                first, last = (flow.wait().goodput_bps / RATE_BPS for flow in flows)
                shares = max(shares, (first, last))
                if first > 0.65:
                    break
            return shares

    first, last = inside(body)
    assert 0.17 < last < 0.25
    assert 0.65 < first < 0.8


def test_a_jobs_packets_are_of_its_class_in_both_directions(inside):
    def body():
        classes = (FabricClass(share_percent=70), FabricClass(dscp=26, priority=1, share_percent=20))
        with Testbed(with_classes(*classes)) as testbed:
            jobs = [
                testbed.jobs.start(JobSpec("alltoall", hosts, size_bytes=400_000, duration_s=3, dscp=dscp))
                for hosts, dscp in ((("h1", "h3"), 0), (("h2", "h4"), 26))
            ]
            received: list[list[int]] = []
            for job in jobs:
                slots = job.wait().slots
                received.append([int(sum(each)) for each in slots])
            return received

    first, last = inside(body)
    assert min(first) > 2 * max(last), "a class of another priority takes the rest, there and back"
    assert min(last) > 0, "its share"


def receive_tos(sock: socket.socket, found: list[int], wanted: int) -> None:
    while len(found) < wanted:
        try:
            _, ancillary, _, _ = sock.recvmsg(2048, 64)
        except TimeoutError:
            return
        found.append(ancillary[0][2][0])


def test_marks_are_those_of_capable_packets_of_the_class_that_exceeds_its_rate(inside):
    """Each of four kinds of packets beside a load in DSCP 26: only the capable ones of DSCP 26 are marked,
    with a checksum that is right, small or large, and as many as the switch has counted."""

    def body():
        classes = (FabricClass(mark_percent=90), FabricClass(dscp=26, priority=1, mark_percent=90))
        with Testbed(with_classes(*classes, buffer_bytes=1_000_000)) as testbed:
            fabric, source, target = testbed.fabric, testbed.fabric.nic("h2"), testbed.fabric.nic("h4")

            def opened(address):
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sock.bind((address, 0))
                sock.settimeout(2)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
                return sock

            sender = fabric.open_in("h2", lambda: opened(source.address))
            receiver = fabric.open_in("h4", lambda: opened(target.address))
            load = testbed.traffic.start(FlowSpec("h1", "h3", 21_000_000, 1.5, dscp=26))
            threading.Event().wait(0.5)
            kinds, sizes, sent = [26 << 2 | 2, 26 << 2, 0 | 2, 26 << 2 | 1], (30, 1200), 200
            found: list[int] = []
            reader = threading.Thread(target=receive_tos, args=(receiver, found, sent * len(kinds)))
            reader.start()
            for number in range(sent):
                for tos in kinds:
                    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
                    sender.sendto(bytes(sizes[number % 2]), receiver.getsockname())
                threading.Event().wait(0.003)
            reader.join()
            load.wait()
            for sock in (sender, receiver):
                sock.close()
            return found, sent, testbed.truth.marked()

    found, sent, marked = inside(body)
    assert len(found) == 4 * sent
    assert found.count(26 << 2) == found.count(2) == sent, "other packets are left as they are"
    assert found.count(26 << 2 | 3) > 1.9 * sent, "nearly all while the load lasts"
    counted = sum(by_dscp.get(26, 0) for by_dscp in marked.values())
    assert counted == found.count(26 << 2 | 3), "each at the first port that marks it"
    assert marked[UP][26] > 0, "later ports mark what a late processor has bunched"
    assert marked[UP][0] == 0
    assert sum(sum(counts.values()) for counts in marked.values()) == counted, "no other class"


def test_queues_and_marks_stay_where_a_spine_moves(inside):
    def body():
        classes = (FabricClass(mark_percent=50), FabricClass(dscp=26, mark_percent=50))
        settings = with_classes(*classes).model_copy(update={"spines": 2})
        with Testbed(settings) as testbed:
            testbed.fabric.move("spine1", "spine2")
            result = testbed.traffic.start(FlowSpec("h1", "h3", 24_000_000, 1.0, dscp=26)).wait()
            return result.goodput_bps, testbed.truth.marked()

    goodput_bps, marked = inside(body)
    assert 0.9 * RATE_BPS < goodput_bps < RATE_BPS
    assert set(marked) == {link for link in marked if not link.startswith("h")}
    assert all(counts == {0: 0, 26: 0} for counts in marked.values()), "the flow is not ECN-capable"
