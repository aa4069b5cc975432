"""Reads by which device a NIC's probes leave its host, and which networks the NIC reaches."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from typing import Final

from producers.interfaces import Interface, egress_device, read_network, routed_networks
from producers.netns import in_netns
from producers.settings import NicSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NicNetwork:
    """The device by which a NIC's probes leave its host, and the networks that the NIC reaches."""

    device: str | None = None
    """Device to which sockets are bound: the NIC's, or the bond or VLAN on it; None if the kernel chooses."""
    index: int = 0
    """Index of `device`; 0 if it is None."""
    networks: tuple[str, ...] = ()
    """Networks that the host's routes reach by `device`; empty if not known."""
    own_addresses: frozenset[str] = frozenset()
    """Addresses of the namespace, to which packets never reach a cable; empty unless the NIC is bound."""
    interfaces: tuple[Interface, ...] = ()


_UNKNOWN: Final = NicNetwork()


def read_nic_network(nic: NicSettings) -> NicNetwork:
    """Return a NIC's egress device and networks, or unknown ones if the kernel does not report them.

    Raises OSError if the network namespace cannot be entered.
    """
    family = socket.AF_INET6 if ":" in nic.address else socket.AF_INET

    def read() -> NicNetwork:
        try:
            state = read_network(family)
        except (OSError, ValueError, KeyError) as error:
            _log.warning("%s/%s: its network is not known: %s", nic.host, nic.device, error)
            return _UNKNOWN
        device = egress_device(nic.device, nic.address, state.interfaces)
        interface = None if device is None else state.named(device)
        if interface is None:
            return NicNetwork(interfaces=state.interfaces)
        networks = routed_networks(state, nic.address, interface.name)
        return NicNetwork(
            interface.name, interface.index, tuple(networks), state.own_addresses, state.interfaces
        )

    return in_netns(nic.netns, read)
