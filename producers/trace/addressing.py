"""Learns from one NIC's traces whether switches answer from ports, from loopbacks or from an anycast gateway.

A port's address identifies one end of one cable, so the other end can be named too. A loopback's address
identifies a switch. An anycast gateway's address identifies no switch at all. All NICs of a fabric observe
the same signs, so they give the same names. This module is pure.

- A last hop that is also the peer's first hop is a loopback: a port faces either the fabric or the NIC.
- A peer may be reached over several switches, but always through the same last address. Then its leaf answers
  from one address for all of its ports.
- If two NICs have the same first hop but several switches between them, that hop is an anycast gateway.
- Traces from one NIC never show both ends of a cable. An assumed pairing under which they would is wrong.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

LinkPrefix = Literal["auto", 31, 30, 0]

MIN_ADDRESSES: Final = 4
"""Minimum number of port addresses from which another shared prefix than /31 is inferred."""
MAX_ADDRESSES: Final = 4_096
LOW_BYTE: Final = 0xFF


@dataclass(frozen=True, slots=True)
class AddressRule:
    """The rule by which the addresses that answer traces identify ports or switches."""

    prefix: Literal[31, 30, 24, 0] = 31
    """Length of the IPv4 prefix that both ends of a cable share; 0 if an address identifies a switch."""
    hosts: tuple[int, int] = (0, 0)
    """With `prefix` 24, the last byte of the address at each end; otherwise unused."""
    anycast: frozenset[str] = frozenset()
    """Addresses that several switches share."""

    def partner(self, address: str) -> str | None:
        """Return the address at the opposite end of a cable; None if it cannot be derived."""
        return None if address in self.anycast else partner_of(address, self.prefix, self.hosts)


BY_PORT: Final = AddressRule()


@lru_cache(maxsize=65536)
def partner_of(address: str, prefix: int, hosts: tuple[int, int] = (0, 0)) -> str | None:
    """Return the address at the opposite end of a cable whose ends share a prefix; None if there is none.

    `prefix` 31 is a /31 or /127, 30 a /30 or /126. With 24, `hosts` are the last bytes of the two ends.
    """
    if not prefix:
        return None
    ip = ipaddress.ip_address(address)
    number = int(ip)
    if prefix == 31:
        return str(type(ip)(number ^ 1))
    if prefix == 30:
        return None if number & 3 in (0, 3) else str(type(ip)(number ^ 3))  # network and broadcast
    low = number & LOW_BYTE
    return str(type(ip)(number ^ hosts[0] ^ hosts[1])) if low in hosts else None


class Addressing:
    """Learns a fabric's address rule from one NIC's traces. `configured`: prefix length, "auto" for any."""

    def __init__(self, configured: LinkPrefix = "auto") -> None:
        self._configured = configured
        self.rule = AddressRule(31 if configured == "auto" else configured)
        self._anycast: set[str] = set()
        self._by_loopback = False
        self._ports: set[str] = set()
        """Addresses that answered behind the first hop."""
        self._last: dict[str, set[tuple[str, str]]] = {}
        """For each peer, the last two hops of the paths to it."""

    def observe(
        self, peer: str, hops: Sequence[str | None], reached: bool, peer_first_hop: str | None
    ) -> bool:
        """Learn from the hops of one path to a peer; return whether the address rule changed."""
        if len(hops) < 2 or not reached or len(self._ports) > MAX_ADDRESSES:
            return False
        first, last, before = hops[0], hops[-1], hops[-2]
        if first is not None and (first == peer_first_hop or first in hops[1:]):
            self._anycast.add(first)
        self._by_loopback |= last is not None and last == peer_first_hop and last not in self._anycast
        self._ports.update(hop for hop in hops[1:] if hop is not None)
        if last is not None and before is not None and len(hops) > 2:
            self._last.setdefault(peer, set()).add((before, last))
        rule = AddressRule(*self._pairs(), frozenset(self._anycast))
        changed, self.rule = rule != self.rule, rule
        return changed

    def _pairs(self) -> tuple[Literal[31, 30, 24, 0], tuple[int, int]]:
        """Return the prefix length that the ends of a cable share (0: none), and the ends' last bytes."""
        if self._configured != "auto":
            return self._configured, (0, 0)
        if self._by_loopback or self._has_one_last_hop():
            return 0, (0, 0)
        ports = self._ports - self._anycast
        numbers = [int(ipaddress.ip_address(port)) for port in ports]
        low = sorted({number & LOW_BYTE for number in numbers})
        candidates: list[tuple[Literal[31, 30, 24], tuple[int, int]]] = [(31, (0, 0))]
        if len(ports) >= MIN_ADDRESSES and not any(number & 3 in (0, 3) for number in numbers):
            candidates.insert(0, (30, (0, 0)))
        if len(ports) >= MIN_ADDRESSES and len(low) == 2 and low[0] ^ low[1] > 1:
            candidates.insert(0, (24, (low[0], low[1])))
        for prefix, hosts in candidates:
            if not any(partner_of(port, prefix, hosts) in ports for port in ports):
                return prefix, hosts
        return 0, (0, 0)

    def _has_one_last_hop(self) -> bool:
        """Return whether each leaf answers from one address, whichever switch precedes it on the path."""
        is_shared = False
        for ends in self._last.values():
            before, last = {a for a, _ in ends}, {b for _, b in ends}
            if len(before) > 1:
                if len(last) > 1 and not last <= self._anycast:
                    return False
                is_shared = True
        return is_shared or any(last in self._anycast for ends in self._last.values() for _, last in ends)
