"""Decides which peers a NIC can reach, by the routes of both hosts and by the answers of whole rails.

Rails with separate networks, and planes of a dual-plane fabric, cannot reach each other. The routes of both
ends show this if each rail has only routes to its own networks. If each rail has a default route, only
missing answers show that rails are separate.
"""

from __future__ import annotations

import ipaddress
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from native.core.probe import PathEvidence
from schemas.records import Nic

SILENT_S: Final = 10.0
"""A rail must have been probed for this long without an answer before it counts as silent."""
MIN_SILENT_HOSTS: Final = 2
"""Number of hosts whose NICs on a rail must not have answered; a single host may be dead."""
RETRY_S: Final = 600.0
"""Time after which a rail that did not answer is probed again."""


@lru_cache(maxsize=4096)
def _ranges(networks: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return (IP version, first address, last address) of each network, addresses as integers."""
    parsed = [ipaddress.ip_network(network) for network in networks]
    return tuple(
        (network.version, int(network.network_address), int(network.broadcast_address)) for network in parsed
    )


def reaches(networks: Iterable[str], address: str) -> bool:
    """Return whether `networks` contain `address`; True without any network: the routes are unknown then."""
    ranges = _ranges(tuple(networks))
    if not ranges:
        return True
    parsed = ipaddress.ip_address(address)
    number = int(parsed)
    return any(version == parsed.version and low <= number <= high for version, low, high in ranges)


def reachable(
    own: Nic, records: Mapping[str, Nic], own_addresses: frozenset[str], silent: frozenset[str] = frozenset()
) -> dict[str, Nic]:
    """Return the NICs among `records` that can exchange packets with `own`.

    NICs with an address in `own_addresses` are left out: packets to these addresses do not leave the host.
    `silent` holds the rails that do not answer.
    """
    address = own["addresses"][0]
    groups = group_of(own, records) if silent else {}
    return {
        name: record
        for name, record in records.items()
        if groups.get(name) not in silent
        and reaches(record["networks"], address)
        and any(
            other not in own_addresses and reaches(own["networks"], other) for other in record["addresses"]
        )
    }


def group_of(own: Nic, records: Mapping[str, Nic]) -> dict[str, str]:
    """Return, by NIC, its rail if it is not on the rail of `own`: the rail number, else the device name.

    A device name stands for a rail only on hosts that also have a NIC with the device name of `own`.
    """
    same_kind = {record["host"] for record in records.values() if record["device"] == own["device"]}
    group_by_nic: dict[str, str] = {}
    for name, record in records.items():
        if own["rail"] is not None and record["rail"] is not None:
            if record["rail"] != own["rail"]:
                group_by_nic[name] = f"rail {record['rail']}"
        elif record["device"] != own["device"] and record["host"] in same_kind:
            group_by_nic[name] = record["device"]
    return group_by_nic


@dataclass(slots=True)
class RailReach:
    """Finds the rails from which no NIC has ever answered. Times are seconds of the monotonic clock."""

    _first_s: dict[str, float] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)
    _silent_since_s: dict[str, float] = field(default_factory=dict)

    def set_peers(self, peers: Iterable[str], now_s: float) -> None:
        """Set the NICs that are probed from `now_s` on."""
        self._first_s = {name: self._first_s.get(name, now_s) for name in peers}

    def update(self, evidence: Iterable[PathEvidence]) -> None:
        """Record which NICs have answered, from the engine's evidence since the last call."""
        self._answered.update(path.peer for path in evidence if path.answered)

    def silent(self, groups: Mapping[str, str], host_of: Mapping[str, str], now_s: float) -> frozenset[str]:
        """Return the rails that do not answer although NICs of the own rail do.

        `groups` maps each NIC on another rail to its rail. `host_of` maps each NIC to its host.
        """
        for group in [name for name, since_s in self._silent_since_s.items() if now_s - since_s >= RETRY_S]:
            del self._silent_since_s[group]
        if not any(name not in groups for name in self._answered):
            return frozenset(self._silent_since_s)
        hosts: dict[str, set[str]] = defaultdict(set)
        answering = {groups.get(name) for name in self._answered}
        for name, group in groups.items():
            if group not in answering and now_s - self._first_s.get(name, math.inf) >= SILENT_S:
                hosts[group].add(host_of[name])
        # Few NICs of each rail are probed. If no other rail answers at all, their hosts count together.
        is_apart = answering == {None} and len(set().union(*hosts.values())) >= MIN_SILENT_HOSTS
        for group in sorted(set(groups.values())):
            if is_apart or len(hosts[group]) >= MIN_SILENT_HOSTS:
                self._silent_since_s.setdefault(group, now_s)
        return frozenset(self._silent_since_s)

    def unproven(self, groups: Mapping[str, str]) -> frozenset[str]:
        """Return the probed NICs of other rails from which no answer has ever come.

        The network may not connect these rails, so lost probes to their NICs show no fault.
        """
        answering = {groups.get(name) for name in self._answered}
        return frozenset(name for name in self._first_s if name in groups and groups[name] not in answering)
