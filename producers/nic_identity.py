"""Detects NICs that were recreated under their name: driver reload, new VF or veth, new namespace.

Sockets are bound to the index of a device and live in a namespace. A new device has another index, so all
sends of the old sockets fail, although name and address are the same.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Final, NamedTuple

from producers.netns import in_netns
from producers.settings import NicSettings
from schemas.ids import nic_id

CHECK_S: Final = 0.5
"""Interval of the checks, s."""


class Identity(NamedTuple):
    """The kernel's numbers of the device and namespace behind a NIC's name; 0 if there is none now."""

    device_index: int
    namespace: int


def identity_of(nic: NicSettings) -> Identity:
    """Return device index and namespace inode behind a NIC's name now; 0 for each that does not exist."""
    try:
        namespace = 0 if nic.netns is None else os.stat(nic.netns).st_ino
        return Identity(in_netns(nic.netns, lambda: _index_of(nic.device)), namespace)
    except OSError:  # the namespace is gone
        return Identity(0, 0)


def _index_of(device: str) -> int:
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0


class NicIdentities:
    """Detects whether NICs were recreated since their sockets were opened."""

    def __init__(self, nics: Iterable[NicSettings]) -> None:
        self._nics = list(nics)
        self._known = {nic_id(nic.host, nic.device): identity_of(nic) for nic in self._nics}
        self._check_at_s = 0.0

    def changed(self, now_s: float) -> str | None:
        """Return one line about a recreated NIC; None if there is none or the last check is recent.

        A device that is gone, or that has another name for now, does not count as recreated.
        """
        if now_s < self._check_at_s:
            return None
        self._check_at_s = now_s + CHECK_S
        for nic in self._nics:
            name = nic_id(nic.host, nic.device)
            before, now = self._known[name], identity_of(nic)
            if now.namespace not in (0, before.namespace):
                return f"{name}: its network namespace {nic.netns} was made again"
            if now.device_index not in (0, before.device_index):
                numbers = f"index {now.device_index} after {before.device_index}"
                return f"{name}: its device was made again, {numbers}"
        return None
