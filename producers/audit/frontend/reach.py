"""Active checks of the front end: echo requests to gateway and neighbours, path MTU, TCP, name servers.

Each check sends at most a few hundred packets, only to hosts that are already in the kernel's tables.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Final

from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.frontend.addressing import UNREACHED, gateways
from producers.audit.frontend.services import resolvers
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

MAX_PEERS: Final = 16
"""Largest number of hosts that one check contacts."""
PROBES: Final = 20
MAX_LOST: Final = 1
"""Largest number of lost echo requests, of 20, that is no error: gateways give them low priority."""
MAX_RTT_S: Final = 0.005
SMALL_BYTES: Final = 64
SIZES: Final = (4_000, 1_500, 1_400, 1_280)
SSH_PORT: Final = 22
DNS_PORT: Final = 53
DNS_ID: Final = 0x4654
CODES: Final = {0: "no error", 1: "format error", 2: "server failure", 3: "no such name", 5: "refused"}
GOOD_CODES: Final = (0, 3)
"""Response codes of a server that works: the name exists, or it does not."""
CHECKS: Final = Checks(limit_s=60.0, active=True)


def peers(host: Host) -> list[tuple[str, str]]:
    """Return (interface, IPv4 address) of the gateway, then of live neighbours. Raises Missing for none."""
    interface_by_address = {}
    with contextlib.suppress(Missing):
        interface_by_address = {
            route.gateway: route.interface for route in gateways(host) if ":" not in route.gateway
        }
    for neighbour in sorted(host.neighbours(), key=lambda neighbour: neighbour.address):
        if neighbour.state not in UNREACHED | {"NOARP", "NONE"} and ":" not in neighbour.address:
            interface_by_address.setdefault(neighbour.address, neighbour.interface)
    if not interface_by_address:
        raise Missing("neither a gateway nor a neighbour")
    return [(interface, address) for address, interface in interface_by_address.items()][:MAX_PEERS]


@CHECKS.error("frontend.path-mtu", "Packets of full size reach the gateway and neighbours", 19, 99, 100)
@remedy.monitor("Set one MTU on hosts and switch ports of the network")
def path_mtu(host: Host) -> Iterator[Finding]:
    """Find peers that unfragmented packets of the interface's MTU do not reach."""
    routes = {(route.interface, route.gateway): route.mtu for route in host.routes() if route.mtu}
    sizes = {interface.name: interface.mtu for interface in host.interfaces()}
    for interface, address in peers(host):
        size = routes.get((interface, address), sizes[interface])
        subject = f"{interface} to {address}"
        if host.echo(address, SMALL_BYTES) is None:
            yield Finding(subject, AuditStatus.UNKNOWN, "answers no echo request")
        elif host.echo(address, size) is not None or host.echo(address, size) is not None:
            yield passed(f"{size} bytes pass", subject)
        else:
            passing = next(
                (
                    size_bytes
                    for size_bytes in SIZES
                    if size_bytes < size and host.echo(address, size_bytes) is not None
                ),
                SMALL_BYTES,
            )
            yield failed(f"the MTU is {size}, and {passing} bytes pass, {size} do not", subject)


@CHECKS.warning("frontend.round-trips", "The gateway answers without loss", 99, limit_s=30.0)
@remedy.monitor("Check errors of the interface and of the switch port")
def round_trips(host: Host) -> Iterator[Finding]:
    """Find gateways that lose echo requests or answer late."""
    for route in gateways(host):
        if ":" in route.gateway:
            continue
        times = [host.echo(route.gateway, SMALL_BYTES) for _ in range(PROBES)]
        answer_times = sorted(answer_time for answer_time in times if answer_time is not None)
        if not answer_times:
            yield Finding(route.gateway, AuditStatus.UNKNOWN, "answers no echo request")
            continue
        lost, median_s = PROBES - len(answer_times), answer_times[len(answer_times) // 2]
        text = f"{lost} of {PROBES} echo requests lost, median {median_s * 1e3:.2f} ms; expected 1 and 5 ms"
        yield checked(lost <= MAX_LOST and median_s <= MAX_RTT_S, text, route.gateway)


@CHECKS.warning("frontend.tcp-reach", "Neighbours answer on TCP", 99)
@remedy.monitor("Check the peer, its packet filter and the route")
def tcp_reach(host: Host) -> Iterator[Finding]:
    """Find peers that neither accept nor refuse a TCP connection; either answer shows that packets pass."""
    for interface, address in peers(host):
        took_s = host.connect(address, SSH_PORT)
        text = "no answer on TCP" if took_s is None else f"answers on TCP in {took_s * 1e3:.2f} ms"
        yield checked(took_s is not None, text, f"{interface} to {address}")


def question(name: str) -> bytes:
    """Return a DNS request for the IPv4 address of a name (RFC 1035)."""
    labels = b"".join(bytes([len(label)]) + label for label in name.encode("idna")[:250].split(b".") if label)
    return struct.pack("!HHHHHH", DNS_ID, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def response_code(answer: bytes) -> int:
    """Return the response code of the answer to `question`. Raises ValueError for another message."""
    if len(answer) < 12:
        raise ValueError(f"DNS response of {len(answer)} bytes, expected 12 or more")
    number, bits = struct.unpack_from("!HH", answer)
    if number != DNS_ID or not bits & 0x8000:
        raise ValueError("not a response to our DNS request")
    return int(bits & 0xF)


@CHECKS.error("frontend.lookups", "Name servers answer", 99, limit_s=20.0)
@remedy.monitor("Check the name server, or remove it from /etc/resolv.conf")
def lookups(host: Host) -> Iterator[Finding]:
    """Find name servers that do not answer for the host's own name."""
    request = question(host.read("/proc/sys/kernel/hostname"))
    servers = resolvers(host.read("/etc/resolv.conf"))
    if not servers:
        raise Missing("no name server in /etc/resolv.conf")
    for server in servers:
        answer = host.exchange(server, DNS_PORT, request)
        if answer is None:
            yield failed("no answer", server)
            continue
        code = response_code(answer)
        yield checked(code in GOOD_CODES, CODES.get(code, f"code {code}"), server)
