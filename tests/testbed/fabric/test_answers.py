"""Forms of the testbed's switches: the addresses that answer real packets, and a network that works."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import get_args

import pytest
from pydantic import ValidationError

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.topology import exchange, make_plan, topology_file
from fabrictime.testbed.settings import AnswerForm, FabricSettings
from schemas.topology import End, Topology

FORMS = get_args(AnswerForm)
SHAPE = {"hosts": 4, "leaves": 2, "spines": 2}
IP_RECVERR, MSG_ERRQUEUE, TIME_EXCEEDED = 11, 0x2000, 11
WAIT_S = 0.2
MAX_TTL = 5
PATTERNS: dict[AnswerForm, tuple[str | None, ...]] = {
    "ports": ("10.64.0.0", "10.128.0.", "10.128.0."),
    "transit_30": ("10.64.0.0", "10.128.0.", "10.128.0."),
    "transit_24": ("10.64.0.0", "10.128.", "10.128."),
    "loopback": ("10.255.0.1", "10.255.1.", "10.255.0.2"),
    "anycast": ("10.99.0.1", "10.128.0.", "10.128.0."),
    "anycast_loopback": ("10.99.0.1", "10.255.1.", "10.255.0.2"),
    "rate_limited": ("10.64.0.0", "10.128.0.", "10.128.0."),
    "silent_spines": ("10.64.0.0", None, "10.128.0."),
    "silent": (None, None, None),
    "tunnel": ("10.255.0.1", "10.255.0.2"),
    "flat": (),
}
"""Beginnings of the addresses that answer from h1 to h4, None for silence."""


def traced(source: str, target: str) -> list[str | None]:
    """Return the address that answers each TTL below the first that arrives. Runs in a host's namespace."""
    found: list[str | None] = []
    for ttl in range(1, MAX_TTL + 1):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((source, 40_000))
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            sock.sendto(b"x", (target, 33_434))
            answer = _answer(sock)
        if answer is not None and answer[0] != TIME_EXCEEDED:
            return found
        found.append(None if answer is None else answer[1])
    return found


def _answer(sock: socket.socket) -> tuple[int, str] | None:
    """Return type and sender of the ICMP error that a packet caused; None if none comes."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        with contextlib.suppress(BlockingIOError):
            for level, kind, data in sock.recvmsg(100, 512, MSG_ERRQUEUE | socket.MSG_DONTWAIT)[1]:
                if (level, kind) == (socket.IPPROTO_IP, IP_RECVERR):
                    return struct.unpack_from("=IBB", data)[2], socket.inet_ntoa(data[20:24])
        time.sleep(0.002)
    return None


def reached(testbed: Testbed) -> bool:
    """Send a datagram from h1 to h4 and back; return whether both arrived."""
    near, far = testbed.fabric.nic("h1"), testbed.fabric.nic("h4")

    def bound(address: str) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((address, 0))
        sock.settimeout(1)
        return sock

    socks = [testbed.fabric.open_in(nic.host, lambda nic=nic: bound(nic.address)) for nic in (near, far)]
    with socks[0] as one, socks[1] as other:
        try:
            one.sendto(b"1", other.getsockname())
            return other.recv(10) == b"1" and other.sendto(b"2", one.getsockname()) and one.recv(10) == b"2"
        except OSError:
            return False


@pytest.mark.parametrize("form", FORMS)
def test_switches_answer_in_their_form(inside, form):
    def body():
        with Testbed(FabricSettings(**SHAPE, answers=form)) as testbed:
            ports = range(9_320, 9_328)
            paths = [testbed.truth.path_of("h1", "h4", port, 9_319) for port in ports]
            assert paths == [testbed.truth.likely_path_of("h1", "h4", port, 9_319) for port in ports]
            near, far = testbed.fabric.nic("h1"), testbed.fabric.nic("h4")
            return (
                reached(testbed),
                {path[1] for path in paths},
                testbed.fabric.open_in("h1", lambda: traced(near.address, far.address)),
                testbed.fabric.open_in("h1", lambda: traced(near.address, testbed.fabric.nic("h2").address)),
            )

    works, uplinks, hops, beside = inside(body)
    expected = PATTERNS[form]
    assert works
    assert len(uplinks) == 2, "the flow hash spreads paths over both spines"
    assert len(hops) == len(expected)
    assert all(
        hop is None if start is None else str(hop).startswith(start)
        for hop, start in zip(hops, expected, strict=True)
    ), hops
    assert beside == hops[: 0 if form == "flat" else 1], "the same leaf alone"


@pytest.mark.parametrize("form", ["loopback", "anycast_loopback", "flat"])
def test_a_port_that_was_down_carries_packets_again(inside, form):
    """Unnumbered ports lose their routes with the carrier; routes to gateways outside any network, too."""

    def body():
        with Testbed(FabricSettings(hosts=4, leaves=2, spines=1, answers=form)) as testbed:
            found = [reached(testbed)]
            for target in ("leaf1:swp3>spine1:swp1", "leaf1:swp1>h1:eth1", "h1:eth1>leaf1:swp1"):
                fault = testbed.faults.add(f"down {target}")
                found.append(reached(testbed))
                testbed.faults.clear(fault.fault)
                end_s = time.monotonic() + 3
                while not reached(testbed) and time.monotonic() < end_s:
                    time.sleep(0.05)
                found.append(reached(testbed))
            return found

    assert inside(body) == [True] + 3 * [False, True]


def test_answers_at_linux_default_rate_stop_after_a_burst(inside):
    def body():
        with Testbed(FabricSettings(**SHAPE, answers="rate_limited")) as testbed:
            near, far = testbed.fabric.nic("h1"), testbed.fabric.nic("h4")
            return [
                testbed.fabric.open_in("h1", lambda: traced(near.address, far.address))[0] for _ in range(9)
            ]

    first_hops = inside(body)
    assert first_hops[0] == "10.64.0.0"
    assert None in first_hops


def test_the_topology_file_names_each_address():
    for form in FORMS:
        plan = make_plan(FabricSettings(**SHAPE, answers=form))
        topology = Topology(topology_file(plan))
        assert len(topology.routes(End("h1", "eth1"), End("h4", "eth1"))) == 2
        if form in ("loopback", "tunnel"):
            assert [node for node, _ in topology.holders("10.255.1.2")] == ["spine2"]
        if form.startswith("anycast"):
            assert {node for node, _ in topology.holders("10.99.0.1")} == {"leaf1", "leaf2"}


def test_rails_have_one_leaf_each_in_every_form(inside):
    def body(form):
        rails = {"hosts": 2, "nics_per_host": 2, "leaves": 2, "spines": 1}
        with Testbed(FabricSettings(**rails, answers=form)) as testbed:
            return [
                testbed.truth.path_of(f"h1/{nic}", f"h2/{nic}", 9_320, 9_319)[0].partition(">")[2]
                for nic in ("eth1", "eth2")
            ]

    for form in ("loopback", "anycast", "flat"):
        assert inside(lambda form=form: body(form)) == ["leaf1:swp1", "leaf2:swp1"]


def test_settings_without_such_a_form_are_refused():
    with pytest.raises(ValidationError, match="transit_24: 65536 cables, expected at most 32768"):
        FabricSettings(leaves=128, spines=64, links_per_leaf_spine=8, answers="transit_24")
    with pytest.raises(ValidationError, match="answers"):
        FabricSettings(answers="shouting")
    with pytest.raises(ValueError, match="unnumbered ports: a cable that moves has no addresses"):
        exchange(make_plan(FabricSettings(**SHAPE, answers="loopback")), "spine1", "spine2")
