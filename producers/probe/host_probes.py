"""Probes the kernels of hosts whose probers are silent, to distinguish a stopped agent from a dead host.

`SilentPeers` decides from the engine's evidence whose host to probe, and makes the rows to report.
`HostSocket` sends an ICMP echo request and a UDP datagram to a closed port. The kernel answers the first with
an echo reply and the second with port unreachable. Only peers of the inventory are probed, each once a
second, so no traffic is amplified.
"""

from __future__ import annotations

import collections
import contextlib
import math
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from native.core.device_sockets import bind_to_device
from native.core.probe import PathEvidence
from producers.netns import in_netns
from producers.trace.sockets import ORIGIN_ICMP, ORIGIN_ICMP6, UNREACHABLE, prepare_for_errors, read_errors
from schemas.records import HostEvidence

SILENT_S: Final = 0.3
"""Silence of a peer after which its host is probed."""
LOSING_S: Final = 2.0
"""A peer whose latest loss is older than this is not probed."""
PROBE_S: Final = 1.0
"""Minimum time between two probes of one host."""
LISTEN_S: Final = 5.0
"""Answers are read for this long after the last probe."""
ANSWER_S: Final = 0.5
"""Time after which a probe without an answer is reported."""

CLOSED_PORT: Final = 33434
"""traceroute's first port: firewalls that reject it answer too."""
PORT_UNREACHABLE: Final = {ORIGIN_ICMP: 3, ORIGIN_ICMP6: 4}
_ECHO: Final = struct.Struct("!BBHHH")
_ECHO_REQUEST: Final = {socket.AF_INET: 8, socket.AF_INET6: 128}
_ECHO_REPLY: Final = {socket.AF_INET: 0, socket.AF_INET6: 129}
_MAX_READS: Final = 256


@dataclass(slots=True)
class _Peer:
    """A peer's last answers, and the probes sent to its host. Times are seconds of the monotonic clock."""

    answered_s: float
    """Time of the prober's newest answer; until it has answered, the time of its first probe."""
    lost_s: float = -LOSING_S
    probed_s: float = -PROBE_S
    host_answered_s: float | None = None
    requests: int = 0
    answers: int = 0
    """Number of the host's answers that are not reported yet."""

    def is_silent(self, now_s: float) -> bool:
        """Return whether the peer's prober has answered no recent probe."""
        return now_s - self.answered_s >= SILENT_S and now_s - self.lost_s < LOSING_S

    def is_due(self, now_s: float) -> bool:
        """Return whether counts of packets to the peer's host must be reported now."""
        return self.answers > 0 or (self.requests > 0 and now_s - self.probed_s >= ANSWER_S)


@dataclass(slots=True)
class SilentPeers:
    """Decides which hosts of one NIC's silent peers to probe. Pure; times are monotonic, s."""

    _peers: dict[str, _Peer] = field(default_factory=dict)

    def update(self, evidence: Iterable[PathEvidence], now_s: float) -> None:
        """Process the engine's evidence since the last call: which peers answered or lost probes."""
        for path in evidence:
            peer = self._peers.setdefault(path.peer, _Peer(now_s))
            if path.answered and path.arrived_age_ns >= 0:
                peer.answered_s = max(peer.answered_s, now_s - path.arrived_age_ns / 1e9)
                peer.host_answered_s = None
            if path.lost:
                peer.lost_s = now_s

    def keep_only(self, names: Iterable[str]) -> None:
        """Drop all peers that are not in `names`."""
        remaining = set(names)
        for name in [name for name in self._peers if name not in remaining]:
            del self._peers[name]

    def due(self, now_s: float) -> list[str]:
        """Return the peers whose hosts must be probed now; their next probes are due later."""
        due_names = [
            name
            for name, peer in self._peers.items()
            if peer.is_silent(now_s) and now_s - peer.probed_s >= PROBE_S
        ]
        for name in due_names:
            self._peers[name].probed_s = now_s
        return due_names

    def on_sent(self, name: str, packets: int) -> None:
        """Add `packets` to the number of packets sent to the host of the peer `name`."""
        self._peers[name].requests += packets

    def on_answer(self, name: str, now_s: float) -> None:
        """Count an answer from the host of the peer `name`."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.answers += 1
            peer.host_answered_s = now_s

    def report(self, now_s: float) -> list[HostEvidence]:
        """Return a row for each host whose packet counts are due for a report, and reset these counts."""
        rows: list[HostEvidence] = []
        for name, peer in self._peers.items():
            if not peer.is_due(now_s):
                continue
            age_s = None if peer.host_answered_s is None else now_s - peer.host_answered_s
            rows.append(
                {
                    "peer": name,
                    "requests": peer.requests,
                    "answers": peer.answers,
                    "answered_age_ns": -1 if age_s is None else round(age_s * 1e9),
                }
            )
            peer.requests = peer.answers = 0
        return rows


class HostSocket:
    """Sends packets from one NIC that another host's kernel answers. Needs no privilege."""

    def __init__(self, address: str, netns: str | None, device: str | None = None) -> None:
        """Open the ICMP and UDP sockets. Raises OSError if the kernel refuses UDP; ICMP is optional."""
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sequence = 0

        def open_udp() -> socket.socket:
            sock = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            return _bound(sock, address, device)

        def open_icmp() -> socket.socket:
            protocol = socket.IPPROTO_ICMP if self._family == socket.AF_INET else socket.IPPROTO_ICMPV6
            sock = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, protocol)
            return _bound(sock, address, device)

        self._udp = prepare_for_errors(in_netns(netns, open_udp))
        self._icmp: socket.socket | None = None
        with contextlib.suppress(PermissionError):  # net.ipv4.ping_group_range
            self._icmp = in_netns(netns, open_icmp)
            self._icmp.setblocking(False)

    def close(self) -> None:
        """Close the ICMP and UDP sockets."""
        self._udp.close()
        if self._icmp is not None:
            self._icmp.close()

    def send(self, address: str) -> int:
        """Send the probe packets to an address; return the number that the kernel accepted."""
        self._sequence = (self._sequence + 1) & 0xFFFF
        echo = _ECHO.pack(_ECHO_REQUEST[self._family], 0, 0, 0, self._sequence)
        sent = 0
        for sock, data, port in ((self._udp, b"", CLOSED_PORT), (self._icmp, echo, 0)):
            if sock is not None:
                # a pending error of an earlier packet, or no route
                with contextlib.suppress(OSError):
                    sock.sendto(data, (address, port))
                    sent += 1
        return sent

    def answers(self) -> Iterator[str]:
        """Yield the address of each answer since the last call."""
        for _, (address, _), error in read_errors(self._udp):
            is_port = error.code == PORT_UNREACHABLE[error.origin]
            if error.type == UNREACHABLE[error.origin] and is_port and error.hop == address:
                yield address
        for _ in range(_MAX_READS if self._icmp is not None else 0):
            try:
                data, source = self._icmp.recvfrom(256)  # type: ignore[union-attr]  # the range is empty then
            except BlockingIOError:
                return
            except OSError:  # an error about an earlier packet
                continue
            if data and data[0] == _ECHO_REPLY[self._family]:
                yield str(source[0])


class HostProber:
    """Probes the hosts of the silent peers of one NIC."""

    def __init__(self, address: str, netns: str | None, device: str | None = None) -> None:
        """Open the sockets. Packets leave by `device`, or as routed if `device` is None. Raises OSError."""
        self._socket = HostSocket(address, netns, device)
        self._listen_until_s = -math.inf
        self.peers = SilentPeers()

    def step(self, addresses: Mapping[str, str], now_s: float) -> list[HostEvidence]:
        """Read answers and send the probes that are due; return the rows to report.

        `addresses` maps each peer that this NIC probes to its address.
        """
        if now_s < self._listen_until_s:
            names = {address: name for name, address in addresses.items()}
            for address in self._socket.answers():
                if address in names:
                    self.peers.on_answer(names[address], now_s)
        self.peers.keep_only(addresses)
        for name in self.peers.due(now_s):
            if now_s >= self._listen_until_s:
                collections.deque(self._socket.answers(), maxlen=0)  # too late for the former probe
            self._listen_until_s = now_s + LISTEN_S
            self.peers.on_sent(name, self._socket.send(addresses[name]))
        return self.peers.report(now_s)

    def close(self) -> None:
        """Close the ICMP and UDP sockets."""
        self._socket.close()


def _bound(sock: socket.socket, address: str, device: str | None) -> socket.socket:
    try:
        bind_to_device(sock, address, 0, device)
    except BaseException:
        sock.close()
        raise
    return sock
