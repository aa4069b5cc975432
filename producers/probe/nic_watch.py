"""Checks that a NIC's packets leave and arrive by that NIC, keep their traffic class and are not dropped.

A host with several NICs in one subnet may send by another NIC, or answer ARP requests for another NIC's
address (ARP flux). It may also drop packets that arrive by a NIC that its routes do not use (strict
`rp_filter`). A switch may rewrite DSCP: the probe then waits in another queue than its class's data.
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

STRICT: Final = 1
"""Value of `rp_filter` with which packets are dropped if their answers would leave by another interface."""
MIN_REWRITTEN: Final = 10
"""Number of probes with a changed DSCP between two checks that indicates a switch setting; fewer do not."""
_CONF: Final = "/proc/sys/net/ipv4/conf"


def problems_of(egress: str | None, arrived: int, filtered: str | None, rewritten: int = 0) -> str | None:
    """Return one line on why a NIC's packets bypass the NIC or are changed; None if there is no problem.

    `egress`: device of another NIC by which this NIC's packets leave. `arrived`: packets for this NIC that
    another NIC received. `filtered`: device of the reverse path, if strict filtering drops arriving packets.
    `rewritten`: probes whose DSCP changed in the network.
    """
    problems = [] if egress is None else [f"its packets leave by {egress}"]
    if arrived > 0:
        problems.append(
            f"{arrived} packets for it arrived by another NIC of this host: set arp_ignore to 1 and "
            "arp_announce to 2"
        )
    if filtered is not None:
        problems.append(
            f"strict reverse path filtering drops its peers' packets, as routes to them lead by {filtered}: "
            "set rp_filter to 2, or add a policy rule for its address"
        )
    if rewritten >= MIN_REWRITTEN:
        problems.append(
            f"the DSCP of {rewritten} of its probes changed on the way, so they wait in another queue: "
            "let all switch ports trust DSCP"
        )
    return "; ".join(problems) or None


class NicWatch:
    """Checks by which device one NIC's packets leave and arrive. Call `check` every few seconds."""

    def __init__(self, nic: NicSettings, network: NicNetwork) -> None:
        """Open the socket that sends check packets. Raises OSError if the kernel refuses it."""
        self._nic, self._network = nic, network
        self._check = EgressCheck(nic.address, network.device, nic.netns)
        self._next = 0
        self._wrong_device = self._rewritten = 0
        self.egress: str | None = None
        """Device by which packets were seen to leave, if it belongs to another NIC."""

    def check(self, peers: Sequence[str], wrong_device: int, rewritten: int = 0) -> str | None:
        """Send a packet to one of the addresses `peers`; return a problem since the last call, in one line.

        `wrong_device` and `rewritten` are counters of the engine: packets that another NIC received, and
        probes whose DSCP changed in either direction.
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
        changed, self._rewritten = rewritten - self._rewritten, rewritten
        return problems_of(self.egress, arrived, filtered, changed)

    def close(self) -> None:
        """Close the socket that sends check packets."""
        self._check.close()

    def _filtered(self, peer: str) -> str | None:
        """Return the only device from which the kernel accepts a peer's packets, if it drops them here."""
        own, device = self._nic.address, self._network.device
        if device is None or ":" in own:
            return None
        if max(int(Path(_CONF, name, "rp_filter").read_text()) for name in ("all", device)) != STRICT:
            return None
        devices = route_devices(socket.AF_INET, peer, own)
        if not devices or self._network.index in devices:
            return None
        return socket.if_indextoname(devices[0])
