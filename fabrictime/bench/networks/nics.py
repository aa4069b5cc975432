"""Measures hosts with many NICs: whether packets leave by their own NIC, and whether peers are reachable.

The production prober's transport runs on every NIC. The interfaces' own counters are the truth for the
egress; the declaration of the network's kind is the truth for reachability.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, require_namespaces
from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.fabric.multi_nic import FORMS, Form, MultiNic, MultiNicPort
from fabrictime.testbed.processes.child import run_inside

if TYPE_CHECKING:
    from producers.probe.udp import UdpTransport

HOSTS: Final = 3
PACKETS: Final = 50
"""Number of packets sent from each NIC, which is many more than those of ARP and of other NICs."""
RATE_PPS: Final = 50.0
SETTLE_S: Final = 12.0
"""Time after which a NIC knows the rails that never answered: 10 s, with a margin."""
POLL_S: Final = 0.5
MEASURED: Final = tuple(name for name in FORMS if name not in ("arp-flux", "strict-filter"))
"""The forms that are measured; the others are faults of hosts, for tests of their reports."""
QUICK: Final = ("one-subnet", "own-subnets")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts for one kind of network: NICs, NICs that use their own cables, chosen and unreachable peers."""

    nics: int
    egress_right: int
    peers: int
    unreachable: int


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure all kinds of network that this kernel can build; return the figures by key."""
    require_namespaces()
    outcomes: list[Outcome] = []
    absent: list[str] = []
    for name in QUICK if quick else MEASURED:
        try:
            outcome = run_inside(
                partial(measure_form, FORMS[name], 1.0 if quick else SETTLE_S), timeout_s=120
            )
        except FabricError as error:
            progress(str(error))
            absent.append(name)
            continue
        outcomes.append(outcome)
        progress(
            f"{name}: {outcome.egress_right} of {outcome.nics} NICs right, "
            f"{outcome.unreachable} of {outcome.peers} peers unreachable"
        )
    return figures_of(outcomes, absent)


def figures_of(outcomes: list[Outcome], absent: list[str]) -> dict[str, Value]:
    """Return the figures over all kinds of network; this kernel cannot build those in `absent`."""
    nics = sum(outcome.nics for outcome in outcomes)
    if not nics:
        raise CannotRun(f"no form could be built, tried {', '.join(absent)}")
    note = f"{nics} NICs in {len(outcomes)} forms"
    if absent:
        note += f"; this kernel lacks the devices of {', '.join(absent)}"
    right = sum(outcome.egress_right for outcome in outcomes)
    return {
        "egress_right": Figure(right / nics, note=note),
        "unreachable_peers_chosen": Figure(sum(outcome.unreachable for outcome in outcomes), note=note),
    }


def measure_form(form: Form, settle_s: float) -> Outcome:
    """Build a network of one kind, run a prober's transport on each NIC, and return counts of the outcome."""
    with TemporaryDirectory() as folder, MultiNic(form, HOSTS) as net:
        key_file = Path(folder, "key")
        key_file.write_bytes(os.urandom(16))
        key_file.chmod(0o600)
        transports = {port.nic: _transport(port, key_file) for port in net.ports}
        try:
            _choose_peers(transports, settle_s)
            peers_by_nic = {name: [peer.nic for peer in one.engine.peers] for name, one in transports.items()}
        finally:
            for transport in transports.values():
                transport.close()
        right = sum(_leaves_by_its_own(net, port) for port in net.ports)
        pairs = [(net.port(name), net.port(peer)) for name, peers in peers_by_nic.items() for peer in peers]
    out_of_reach = [
        (near, far) for near, far in pairs if near.host == far.host or not form.connects(near.rail, far.rail)
    ]
    return Outcome(len(transports), right, len(pairs), len(out_of_reach))


def _transport(port: MultiNicPort, key_file: Path) -> UdpTransport:
    from producers.probe.udp import UdpTransport
    from producers.settings import NicSettings, ProbeSettings

    settings = ProbeSettings(key_file=key_file, rate_pps=RATE_PPS, flow_pps=0, hardware_stamps=False, paths=1)
    nic = NicSettings(host=port.host, device=port.device, address=port.address, netns=port.netns)
    return UdpTransport(settings, nic)


def _choose_peers(transports: dict[str, UdpTransport], settle_s: float) -> None:
    """Let each NIC choose its peers among all NICs, repeatedly while evidence arrives."""
    from producers.inventory.nics import PeerTable

    table = PeerTable(3600)
    for name, transport in transports.items():
        table.update(name, transport.record(), time.time_ns() // 1_000_000)
        transport.start()
    end_s = time.monotonic() + settle_s
    while True:
        for transport in transports.values():
            transport.rails.update(transport.engine.evidence().paths)
            transport.update_peers(table)
        if time.monotonic() >= end_s:
            return
        time.sleep(POLL_S)


def _leaves_by_its_own(net: MultiNic, port: MultiNicPort) -> bool:
    """Return whether the packets of a NIC's sockets leave by its own cables, by interface counters."""
    from native.core.probe import open_socket
    from producers.nic_network import read_nic_network
    from producers.settings import NicSettings

    nic = NicSettings(host=port.host, device=port.device, address=port.address, netns=port.netns)
    device = read_nic_network(nic).device
    target = (net.peer_of(port).address, 9)
    sock = net.open_in(port.host, partial(open_socket, port.address, 0, device=device))
    with sock:
        before = net.sent_packets(port.host)
        for _ in range(PACKETS):
            sock.sendto(b"", target)
        after = net.sent_packets(port.host)
    own = {cable for cable, _ in port.cables}
    sent = {cable: after[cable] - before[cable] for cable in after}
    others = sum(count for cable, count in sent.items() if cable not in own)
    return sum(sent[cable] for cable in own) >= PACKETS and others < PACKETS // 2
