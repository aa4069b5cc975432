"""Divides a host's NIC among tenants by the kernel's HTB: a class per tenant, a u32 filter per flow.

HTB needs no help from flow endpoints, so it also limits flows that no endpoint paces. Only differences from
the kernel's state are applied. All classes and filters are under one root qdisc with a handle of our own, so
deleting it removes them all. Only IPv4 is supported. A NIC with a foreign root qdisc stays untouched.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyroute2 import IPRoute

HANDLE: Final = 0x7F74_0000
"""Handle of our root qdisc."""
TOP: Final = HANDLE | 1
DEFAULT_CLASS: Final = HANDLE | 2
"""Class of packets that match no filter."""
FIRST, LAST = 0x100, 0xFFEF
MIN_BPS: Final = 8_000
"""Rate of the default class, bit/s, if the guarantees use the whole link."""
FRAME_BYTES: Final = 1_514
TC_H_ROOT: Final = 0xFFFF_FFFF
ETH_P_IP: Final = 0x0800
ORDER: Final = 10
DEFAULT_QDISCS: Final = frozenset({"noqueue", "pfifo_fast", "fq_codel", "fq", "mq"})
"""Default root qdiscs, restored when ours is deleted."""
PROTOCOLS: Final = {"TCP": 6, "UDP": 17, "ROCE": 17}


Keys = tuple[tuple[int, int, int], ...]
"""Bytes of a packet to match: (offset from the IP header, value, mask) for each."""


class Share(NamedTuple):
    """The share of a tenant at this NIC, bit/s. Without `ceiling_bps` it may use all spare capacity."""

    guarantee_bps: int
    ceiling_bps: int | None = None


class Match(NamedTuple):
    """The header fields of a flow. `protocol`: TCP, UDP or ROCE."""

    protocol: str
    source_address: str
    source_port: int
    peer_address: str
    peer_port: int


class Applied(NamedTuple):
    """The classes and filters in the kernel. Rates are in bit/s, rounded to whole bytes per second."""

    classes: dict[int, tuple[int, int]]
    """Maps minor number of a class to its rate and ceiling."""
    flows: dict[Keys, tuple[int, int]]
    """Maps keys of a filter to its class and the filter's own handle."""


class HtbQdisc:
    """HTB on one NIC. `ip`: netlink socket in the NIC's namespace, for one thread; `rate_bps`: link rate."""

    def __init__(self, ip: IPRoute, device: str, rate_bps: int) -> None:
        indices = list(ip.link_lookup(ifname=device))
        if not indices:
            raise ValueError(f"NIC {device!r}: no such device here")
        if rate_bps < MIN_BPS:
            raise ValueError(f"NIC {device}: {rate_bps} bit/s, expected at least {MIN_BPS}")
        self._ip, self.device, self.rate_bps, self._index = ip, device, rate_bps, indices[0]

    def apply(self, shares: Mapping[str, Share], flows: Mapping[Match, str]) -> int:
        """Apply the shares of tenants, and assign flows to tenants. Return the number of changes.

        Flows of tenants without a share use the default class. Raises OSError, or ValueError before any
        change.
        """
        if not shares:
            return int(self.remove())
        minors = _minors(shares)
        classes = self._classes(shares, minors)
        class_of_keys = {
            _keys(match): HANDLE | minors[tenant] for match, tenant in flows.items() if tenant in shares
        }
        changes = self._root()
        there = self.read()
        for keys, (target, handle) in there.flows.items():
            if class_of_keys.get(keys) != target:
                self._drop_filter(handle)
                changes += 1
        for minor in (1, *sorted(classes.keys() - {1})):
            if there.classes.get(minor) != classes[minor]:
                self._set_class(minor, *classes[minor])
                changes += 1
        for keys, target in sorted(class_of_keys.items()):
            if keys not in there.flows or there.flows[keys][0] != target:
                self._add_filter(keys, target)
                changes += 1
        for minor in sorted(there.classes.keys() - classes.keys(), reverse=True):
            self._ip.tc("del-class", "htb", self._index, HANDLE | minor, parent=TOP, rate=1000, ceil=1000)
            changes += 1
        return changes

    def read(self) -> Applied:
        """Return the classes and filters under our root qdisc at this NIC."""
        if self._root_kind()[1] != HANDLE:
            return Applied({}, {})
        classes = {}
        for message in self._ip.get_classes(index=self._index):
            if message["handle"] & 0xFFFF_0000 == HANDLE:
                options = message.get_attr("TCA_OPTIONS")
                parms = options.get_attr("TCA_HTB_PARMS")
                rate = options.get_attr("TCA_HTB_RATE64") or parms["rate"]
                ceil = options.get_attr("TCA_HTB_CEIL64") or parms["ceil"]
                classes[message["handle"] & 0xFFFF] = (8 * rate, 8 * ceil)
        flows: dict[Keys, tuple[int, int]] = {}
        for message in self._ip.get_filters(index=self._index, parent=HANDLE):
            options = message.get_attr("TCA_OPTIONS")
            selector = None if options is None else options.get_attr("TCA_U32_SEL")
            if selector is not None and options.get_attr("TCA_U32_CLASSID"):
                flows[_read_keys(selector.data[selector.offset + 4 : selector.offset + selector.length])] = (
                    options.get_attr("TCA_U32_CLASSID"),
                    message["handle"],
                )
        return Applied(classes, flows)

    def remove(self) -> bool:
        """Delete our root qdisc. Return True if it existed."""
        if self._root_kind()[1] != HANDLE:
            return False
        self._ip.tc("del", "htb", self._index, HANDLE, parent=TC_H_ROOT)
        return True

    # --- the kernel ---

    def _root_kind(self) -> tuple[str, int]:
        """Return kind and handle of the root qdisc."""
        for message in self._ip.get_qdiscs(index=self._index):
            if message["parent"] == TC_H_ROOT:
                return message.get_attr("TCA_KIND"), message["handle"]
        return "noqueue", 0

    def _root(self) -> int:
        kind, handle = self._root_kind()
        if handle == HANDLE:
            return 0
        if kind not in DEFAULT_QDISCS:
            raise ValueError(f"NIC {self.device}: its root is {kind}, expected one of the kernel's own")
        self._ip.tc("add", "htb", self._index, HANDLE, parent=TC_H_ROOT, default=DEFAULT_CLASS & 0xFFFF)
        return 1

    def _set_class(self, minor: int, rate_bps: int, ceiling_bps: int) -> None:
        parent = HANDLE if minor == TOP & 0xFFFF else TOP
        self._ip.tc(
            "replace-class",
            "htb",
            self._index,
            HANDLE | minor,
            parent=parent,
            rate=rate_bps // 8,
            ceil=ceiling_bps // 8,
            quantum=10 * FRAME_BYTES,
        )

    def _add_filter(self, keys: Keys, target: int) -> None:
        self._ip.tc(
            "add-filter",
            "u32",
            self._index,
            parent=HANDLE,
            prio=ORDER,
            protocol=ETH_P_IP,
            target=target,
            keys=[f"{value:#x}/{mask:#x}+{at}" for at, value, mask in keys],
        )

    def _drop_filter(self, handle: int) -> None:
        self._ip.tc(
            "del-filter",
            "u32",
            self._index,
            handle,
            parent=HANDLE,
            prio=ORDER,
            protocol=ETH_P_IP,
            target=0,
            keys=[],
        )

    def _classes(self, shares: Mapping[str, Share], minors: Mapping[str, int]) -> dict[int, tuple[int, int]]:
        """Return, by class number, rate and ceiling in bit/s that are whole bytes per second."""
        line_bps = _whole_bytes(self.rate_bps)
        guaranteed_bps = sum(share.guarantee_bps for share in shares.values())
        if guaranteed_bps > self.rate_bps:
            raise ValueError(
                f"NIC {self.device}: guarantees of {guaranteed_bps} bit/s, expected at most {self.rate_bps}"
            )
        rates = {TOP & 0xFFFF: (line_bps, line_bps)}
        rates[DEFAULT_CLASS & 0xFFFF] = (_whole_bytes(max(MIN_BPS, self.rate_bps - guaranteed_bps)), line_bps)
        for tenant, share in shares.items():
            max_bps = self.rate_bps if share.ceiling_bps is None else min(share.ceiling_bps, self.rate_bps)
            if max_bps < max(share.guarantee_bps, MIN_BPS):
                raise ValueError(
                    f"tenant {tenant}: ceiling of {max_bps} bit/s, expected at least its guarantee of"
                    f" {share.guarantee_bps} and {MIN_BPS}"
                )
            rates[minors[tenant]] = (_whole_bytes(max(MIN_BPS, share.guarantee_bps)), _whole_bytes(max_bps))
        return rates


def _whole_bytes(bps: int) -> int:
    return bps // 8 * 8


def _minors(tenants: Iterable[str]) -> dict[str, int]:
    """Return a class number for each tenant; it depends on other tenants only after a hash collision."""
    minors: dict[str, int] = {}
    in_use: set[int] = set()
    for tenant in sorted(tenants):
        minor = int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=4).digest(), "big")
        minor = FIRST + minor % (LAST - FIRST)
        while minor in in_use:
            minor = FIRST + (minor + 1 - FIRST) % (LAST - FIRST)
        minors[tenant] = minor
        in_use.add(minor)
    return minors


def _keys(match: Match) -> Keys:
    """Return the keys of a flow's filter: header without options, protocol, addresses, ports.

    Raises ValueError if the addresses are not IPv4.
    """
    if match.protocol not in PROTOCOLS:
        raise ValueError(f"flow {match}: protocol {match.protocol!r}, expected TCP, UDP or ROCE")
    try:
        source, peer = (
            int.from_bytes(socket.inet_pton(socket.AF_INET, address), "big")
            for address in (match.source_address, match.peer_address)
        )
    except OSError:
        raise ValueError(f"flow {match}: expected IPv4 addresses") from None
    ports = match.source_port << 16 | match.peer_port
    entries = ((12, source), (16, peer), (20, ports))
    return (
        (0, 0x45, 0xFF),
        (9, PROTOCOLS[match.protocol], 0xFF),
        *((at + i, number >> (24 - 8 * i) & 0xFF, 0xFF) for at, number in entries for i in range(4)),
    )


def _read_keys(selector: bytes) -> Keys:
    """Return the keys in a struct tc_u32_sel (linux/pkt_cls.h), which pyroute2 reads at a wrong offset.

    It reads them four bytes too early.
    """
    entries = struct.iter_unpack("4s4sii", selector[16 : 16 + 16 * selector[2]])
    return tuple((at + i, value[i], mask[i]) for mask, value, at, _ in entries for i in range(4) if mask[i])
