"""Requests to this machine's own addresses, and to a namespace with a narrow link."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.host.base import Unreadable
from producers.audit.host.live import LiveHost
from producers.audit.host.live_reach import family_of, is_reply
from producers.audit.load import between_hosts, one_host
from producers.audit.runner import run_checks
from schemas.records import AuditCategory, AuditStatus
from tests.producers.audit.host.namespaces import named_namespaces

OF_THE_MACHINE = {"frontend.clock-service", "frontend.name-servers", "frontend.lookups"}
"""Checks that read no network namespace, or send to a name server."""
HERE, PEER = f"ft-audit-{os.getpid()}-a", f"ft-audit-{os.getpid()}-b"


def test_families() -> None:
    assert family_of("10.0.0.1") == socket.AF_INET
    assert family_of("fd00::1") == socket.AF_INET6
    with pytest.raises(ValueError, match="host12"):
        family_of("host12")


def test_a_reply_has_our_identifier_and_sequence() -> None:
    packet = bytes([0x45, *bytes(19)]) + struct.pack("!BBHHH", 0, 0, 0, 7, 9)
    assert is_reply(packet, 7, 9)
    assert not is_reply(packet, 7, 8)
    assert not is_reply(packet[:27], 7, 9)
    assert not is_reply(bytes([0x45, *bytes(19)]) + struct.pack("!BBHHH", 8, 0, 0, 7, 9), 7, 9)


@given(st.binary(max_size=60), st.integers(0, 65535), st.integers(0, 65535))
def test_any_packet_is_a_reply_or_none(packet: bytes, identifier: int, sequence: int) -> None:
    assert is_reply(packet, identifier, sequence) in (True, False)


def test_tcp_answers_whether_it_accepts_or_refuses() -> None:
    host = LiveHost()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert host.connect("127.0.0.1", server.getsockname()[1]) is not None
        port = server.getsockname()[1]
    assert host.connect("127.0.0.1", port) is not None


def test_a_datagram_is_answered_or_not() -> None:
    host = LiveHost()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer() -> None:
            request, sender = server.recvfrom(100)
            server.sendto(request[::-1], sender)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert host.exchange("127.0.0.1", server.getsockname()[1], b"abc") == b"cba"
        thread.join(10)
        port = server.getsockname()[1]
    assert host.exchange("127.0.0.1", port, b"abc") is None


@pytest.fixture
def host() -> Iterator[LiveHost]:
    """A namespace whose interface has MTU 9000 while its peer's has 1500, as a wrong switch port."""
    from pyroute2 import NetNS

    with named_namespaces(HERE, PEER):
        with NetNS(HERE) as here, NetNS(PEER) as there:
            here.link("add", ifname="ft0", kind="veth", peer={"ifname": "ft1", "net_ns_fd": PEER})
            for ip, name, address, mtu in ((here, "ft0", "10.9.0.1", 9000), (there, "ft1", "10.9.0.2", 1500)):
                index = ip.link_lookup(ifname=name)[0]
                ip.link("set", index=index, mtu=mtu, state="up")
                ip.addr("add", index=index, address=address, prefixlen=24)
            here.route("add", dst="default", gateway="10.9.0.2")
            _wait_up(here)
        yield LiveHost(netns=f"/run/netns/{HERE}", nics=("ft0",))


def _wait_up(here: Any) -> None:
    """Wait until the veth carries packets: its carrier comes a moment after both ends are up."""
    end_s = time.monotonic() + 10
    while here.get_links(ifname="ft0")[0].get_attr("IFLA_OPERSTATE") != "UP":
        assert time.monotonic() < end_s, "ft0 is not up within 10 s"
        time.sleep(0.01)


def test_a_narrow_link_is_found_by_size(host: LiveHost) -> None:
    try:
        assert host.echo("10.9.0.2", 64) is not None
    except Unreadable as error:
        pytest.skip(f"no raw sockets here: {error}")
    assert host.echo("10.9.0.2", 1500) is not None
    assert host.echo("10.9.0.2", 9000) is None
    assert host.echo("10.9.0.2", 9001) is None
    assert host.echo("10.77.0.1", 64) is None
    result = run_check(CHECKS["frontend.path-mtu"], host)
    assert result.status is AuditStatus.FAILED
    assert result.text == "ft0 to 10.9.0.2: the MTU is 9000, and 1500 bytes pass, 9000 do not"
    for check in ("frontend.round-trips", "frontend.tcp-reach", "frontend.gateway", "frontend.default-route"):
        found = run_check(CHECKS[check], host)
        assert found.status is AuditStatus.PASSED, found.text
    assert host.connect("10.9.0.99", 22) is None


def _failed() -> set[str]:
    """Check the host anew: one `LiveHost` shares its reads among the checks of a run."""
    host = LiveHost(netns=f"/run/netns/{HERE}", nics=("ft0",))
    left_out = {*OF_THE_MACHINE, *(each.check_id for each in (*one_host.CHECKS, *between_hosts.CHECKS))}
    checks = [
        each
        for each in CHECKS.values()
        if each.category in (AuditCategory.FRONTEND, AuditCategory.BACKEND) and each.check_id not in left_out
    ]
    return {each.check.check_id for each in run_checks(checks, host) if each.status is AuditStatus.FAILED}


@pytest.mark.usefixtures("host")
def test_planted_faults_of_a_namespace_are_found() -> None:
    from pyroute2 import NetNS

    if os.geteuid():
        pytest.skip("raw sockets need root")
    with NetNS(PEER) as there:
        there.link("set", index=there.link_lookup(ifname="ft1")[0], mtu=9000)
    assert _failed() == set()
    with NetNS(HERE) as here:
        index = here.link_lookup(ifname="ft0")[0]
        here.rule("add", table=100, priority=99, src="10.9.0.1", src_len=32)
        assert _failed() == {"frontend.policy-rules"}
        here.rule("del", table=100, priority=99, src="10.9.0.1", src_len=32)
        here.route("del", dst="default", gateway="10.9.0.2")
        assert _failed() == {"frontend.default-route"}
        here.addr("del", index=index, address="10.9.0.1", prefixlen=24)
        assert _failed() == {"frontend.default-route", "backend.addresses", "backend.plane-routes"}
        here.link("set", index=index, state="down")
        assert "backend.carrier" in _failed()
