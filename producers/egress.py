"""Checks by which device a NIC's packets leave its host, from the kernel's transmit timestamps.

The kernel reports the device with the timestamp of each packet (`SOF_TIMESTAMPING_OPT_CMSG`). A packet to one
peer every few seconds shows the effect of routes and bonds on the NIC's probes. No privilege is needed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

from native.core.device_sockets import bind_to_device
from producers.interfaces import Interface, below
from producers.netns import in_netns

_SO_TIMESTAMPING: Final = 37
_SOF_SOFTWARE, _SOF_TX_SCHED, _SOF_OPT_CMSG = 1 << 4, 1 << 8, 1 << 10
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_PKTINFO = 8, 49, 50
_IN_PKTINFO: Final = struct.Struct("=i")
_IN6_PKTINFO: Final = struct.Struct("=16xi")
_CHECK_PORT: Final = 33434
"""Destination port of the packets: traceroute's first port, where nothing listens."""
_TTL: Final = 1
"""TTL of the packets. The first router may drop them, because only the device by which they leave matters."""


class EgressCheck:
    """Sends packets with a NIC's address and routes, and reads by which device they leave the host."""

    def __init__(self, address: str, device: str | None, netns: str | None) -> None:
        """Open the socket that sends the packets. Raises OSError if the kernel refuses it."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        is_ipv6 = family == socket.AF_INET6

        def opened() -> socket.socket:
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            try:
                bind_to_device(sock, address, 0, device)
                level = socket.IPPROTO_IPV6 if is_ipv6 else socket.IPPROTO_IP
                sock.setsockopt(level, _IPV6_RECVPKTINFO if is_ipv6 else _IP_PKTINFO, 1)
                sock.setsockopt(level, socket.IPV6_UNICAST_HOPS if is_ipv6 else socket.IP_TTL, _TTL)
                flags = _SOF_SOFTWARE | _SOF_TX_SCHED | _SOF_OPT_CMSG
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, flags)
            except BaseException:
                sock.close()
                raise
            return sock

        self._sock = in_netns(netns, opened)

    def close(self) -> None:
        """Close the socket that sends the packets."""
        self._sock.close()

    def send(self, address: str) -> None:
        """Send one packet to `address`. If that fails, `device_index` returns None."""
        with contextlib.suppress(OSError):  # no route, or an error about an earlier packet
            self._sock.sendto(b"", (address, _CHECK_PORT))

    def device_index(self) -> int | None:
        """Return the index of the device that first queued the newest packet; None if none was reported."""
        index: int | None = None
        while True:
            try:
                _, ancillary, _, _ = self._sock.recvmsg(256, 512, socket.MSG_ERRQUEUE)
            except OSError:
                return index
            for level, kind, data in ancillary:
                if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
                    index = index or _IN_PKTINFO.unpack_from(data)[0]
                elif (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):
                    index = index or _IN6_PKTINFO.unpack_from(data)[0]


def foreign_egress(device: str, index: int, interfaces: tuple[Interface, ...]) -> str | None:
    """Return the name of the device with number `index` unless it belongs to the NIC; else None.

    A bond, bridge or VLAN on the NIC's device belongs to the NIC, and so does a member of the NIC's bond.
    Devices that the kernel does not know are not checked.
    """
    by_index = {interface.index: interface for interface in interfaces}
    own = next((interface for interface in interfaces if interface.name == device), None)
    exit_interface = by_index.get(index)
    if own is None or exit_interface is None or exit_interface.name == "lo":
        return None
    if (
        exit_interface == own
        or own.index in below(exit_interface, by_index)
        or exit_interface.index in below(own, by_index)
    ):
        return None
    return exit_interface.name
