"""Watches whether a NIC's packets leave and arrive by that NIC, and whether its host drops them.

A host with several NICs in one subnet may send by the wrong one, answer ARP for another one's address (ARP
flux), or drop what arrives by a NIC that its routes do not use (strict `rp_filter`).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from producers.egress import EgressCheck, foreign_egress
from producers.interfaces import route_devices
from producers.netns import in_netns
from producers.nic_network import NicNetwork
from producers.settings import NicSettings

__all__ = ["NicWatch", "problems_of"]

STRICT: Final = 1
"""Value of rp_filter that drops packets which would be answered by another interface."""
_CONF: Final = "/proc/sys/net/ipv4/conf"


def problems_of(egress: str | None, arrived: int, filtered: str | None) -> str | None:
    """Return in one line what keeps a NIC's packets from it; None if nothing does.

    `egress`: device of another NIC that packets leave by. `arrived`: packets for this NIC that another one
    received. `filtered`: device that the reverse path leads by, if strict filtering drops what arrives.
    """
    found = [] if egress is None else [f"its packets leave by {egress}"]
    if arrived > 0:
        found.append(
            f"{arrived} packets for it arrived by another NIC of this host: set arp_ignore to 1 and "
            "arp_announce to 2"
        )
    if filtered is not None:
        found.append(
            f"strict reverse path filtering drops its peers' packets, as routes to them lead by {filtered}: "
            "set rp_filter to 2, or add a policy rule for its address"
        )
    return "; ".join(found) or None


class NicWatch:
    """Checks one NIC. Call `check` every few seconds."""

    def __init__(self, nic: NicSettings, network: NicNetwork) -> None:
        """Raise OSError if the kernel refuses a socket."""
        self._nic, self._network = nic, network
        self._check = EgressCheck(nic.address, network.device, nic.netns)
        self._next = 0
        self._wrong_device = 0
        self.egress: str | None = None
        """Device that packets were seen to leave by, if it is another NIC's."""

    def check(self, peers: Sequence[str], wrong_device: int) -> str | None:
        """Send a packet to one of the `peers`' addresses; return the problem seen since the last call.

        `wrong_device`: the engine's counter of packets that another NIC received.
        """
        index = self._check.device_index()
        if index is not None:  # else the last one stays
            self.egress = foreign_egress(self._nic.device, index, self._network.interfaces)
        filtered = None
        if peers:
            self._next += 1
            peer = peers[self._next % len(peers)]
            self._check.send(peer)
            with contextlib.suppress(OSError, ValueError):
                filtered = in_netns(self._nic.netns, lambda: self._filtered(peer))
        arrived, self._wrong_device = wrong_device - self._wrong_device, wrong_device
        return problems_of(self.egress, arrived, filtered)

    def close(self) -> None:
        """Close the socket."""
        self._check.close()

    def _filtered(self, peer: str) -> str | None:
        """Return the device by which the kernel expects a peer's packets, if it drops them here."""
        own, device = self._nic.address, self._network.device
        if device is None or ":" in own:
            return None
        if max(int(Path(_CONF, name, "rp_filter").read_text()) for name in ("all", device)) != STRICT:
            return None
        devices = route_devices(socket.AF_INET, peer, own)
        if not devices or self._network.index in devices:
            return None
        return socket.if_indextoname(devices[0])
