"""Gives the ports of a testbed a queue per traffic class, and lets switches mark packets (ECN).

A port's classes are HTB classes below one class of the link's rate. nftables selects the class of a packet by
its DSCP (`meta priority`). The kernel needs neither prio nor RED, because nftables also marks. Each class of
a switch's port has a phantom queue as in HULL (Alizadeh et al., NSDI 2012): a token bucket that drains at a
part of the link's rate. After a packet that finds the bucket empty, every ECN-capable packet of the class is
marked for `HOLD_MS`. So small probes are marked as often as large data packets in the same queue.

A byte bucket of nftables holds at least a second of its rate, which is too deep. So the bucket counts
packets: packets above half the MTU, as full ones.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink import NETLINK_NETFILTER
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES
from pyroute2.netlink.nfnetlink.nftsocket import (
    NFPROTO_IPV4,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWSET,
    NFT_MSG_NEWTABLE,
    nft_chain_msg,
    nft_rule_msg,
    nft_set_msg,
    nft_table_msg,
)

from fabrictime.testbed.fabric.nft import (
    NETWORK_HEADER,
    commit,
    compare,
    data,
    expression,
    load,
    longer_than,
    message,
    store_ip,
)
from fabrictime.testbed.settings import FabricClass, FabricSettings
from producers.netlink import attribute, attributes, dump, open_netlink

HOLD_MS: Final = 20
"""Time for which a class is marked after its bucket was found empty: some packets of a slow link, and some
ticks of a kernel that counts in 10 ms."""

_TC_H_ROOT: Final = 0xFFFFFFFF
_HANDLE: Final = 0x1_0000
_LINK_CLASS: Final = _HANDLE | 1
_FIRST_CLASS: Final = 0x10
_TABLE, _CHAIN, _MARKING = "classes", "out", "marking"
_POSTROUTING: Final = 4  # NF_INET_POST_ROUTING
_META_PROTOCOL, _META_PRIORITY, _META_OIFNAME = 1, 2, 7
_ETHERTYPE_IPV4: Final = bytes((0x08, 0x00))
_EQUAL, _NOT_EQUAL = 0, 1
_LIMIT_PACKETS, _LIMIT_OVER = 0, 1
_DYNSET_UPDATE: Final = 1
_ECN_MASK, _DSCP_MASK, _CE = 0x03, 0xFC, 0x03
_GETRULE: Final = 7
_RULE_TABLE, _RULE_EXPRESSIONS, _RULE_USERDATA = 1, 4, 7
_EXPRESSION_NAME, _EXPRESSION_DATA, _COUNTER_PACKETS = 1, 2, 2


def add_queues(ip: IPRoute, index: int, rate_bps: int, settings: FabricSettings) -> None:
    """Give a port one queue per class, with a total rate of `rate_bps`. Raises NetlinkError."""
    ip.tc("add", "htb", index, _HANDLE, parent=_TC_H_ROOT, default=_FIRST_CLASS)
    frame = settings.frame_bytes
    ip.tc("add-class", "htb", index, _LINK_CLASS, parent=_HANDLE, **_rates(rate_bps, rate_bps, settings))
    for number, traffic_class in enumerate(settings.classes):
        minor = _FIRST_CLASS + number
        share_bps = max(8, int(rate_bps * traffic_class.share_percent / 100))
        ip.tc(
            "add-class",
            "htb",
            index,
            _HANDLE | minor,
            parent=_LINK_CLASS,
            prio=traffic_class.priority,
            quantum=frame,
            **_rates(share_bps, rate_bps, settings),
        )
        # A bucket of ten times the link's rate delays nothing: it holds the queue, which it counts in bytes.
        ip.tc(
            "add",
            "tbf",
            index,
            minor << 16,
            parent=_HANDLE | minor,
            rate=min(10 * rate_bps // 8, 2**32 - 1),
            burst=4 * settings.burst_for(rate_bps),
            limit=settings.buffer_bytes,
        )


def _rates(rate_bps: int, ceiling_bps: int, settings: FabricSettings) -> dict[str, float]:
    """Return HTB's parameters. Bursts are rounded up to whole microseconds, as the kernel rounds down."""
    parameters: dict[str, float] = {"mtu": settings.frame_bytes}
    for rate, burst, bps in (("rate", "burst", rate_bps), ("ceil", "cburst", ceiling_bps)):
        bytes_per_us = bps / 8e6
        parameters[rate] = bps // 8
        parameters[burst] = (math.ceil(settings.burst_for(bps) / bytes_per_us) + 0.5) * bytes_per_us
    return parameters


def add_rules(rates_bps: dict[str, int], settings: FabricSettings) -> None:
    """Add the rules of one namespace: selection of classes by DSCP, and marking at the ports in `rates_bps`.

    Raises OSError, with nothing changed, if the kernel refuses.
    """
    family = {"family": NFPROTO_IPV4}
    messages = [
        message(nft_table_msg, NFT_MSG_NEWTABLE, **family, NFTA_TABLE_NAME=_TABLE, NFTA_TABLE_FLAGS=0),
        message(
            nft_chain_msg,
            NFT_MSG_NEWCHAIN,
            **family,
            NFTA_CHAIN_TABLE=_TABLE,
            NFTA_CHAIN_NAME=_CHAIN,
            NFTA_CHAIN_HOOK={
                "attrs": [("NFTA_HOOK_HOOKNUM", _POSTROUTING), ("NFTA_HOOK_PRIORITY", 0)],
            },
            NFTA_CHAIN_POLICY=1,
            NFTA_CHAIN_TYPE="filter",
        ),
        message(
            nft_set_msg,
            NFT_MSG_NEWSET,
            **family,
            NFTA_SET_TABLE=_TABLE,
            NFTA_SET_NAME=_MARKING,
            NFTA_SET_KEY_TYPE=0,
            NFTA_SET_KEY_LEN=4,
            NFTA_SET_ID=1,
            NFTA_SET_FLAGS={"NFT_SET_TIMEOUT", "NFT_SET_EVAL"},
        ),
    ]
    for number, traffic_class in enumerate(settings.classes):
        if number:  # the first class is HTB's default
            handle = struct.pack("=I", _HANDLE | _FIRST_CLASS + number)
            messages.append(_rule([*_dscp_is(traffic_class.dscp), _immediate(handle), _set_priority()]))
    number = 0
    for port, rate_bps in rates_bps.items():
        for traffic_class in settings.classes:
            if traffic_class.mark_percent is not None:
                number += 1
                packet_bps = 8 * settings.frame_bytes * 100 / traffic_class.mark_percent
                rate_pps = max(1, round(rate_bps / packet_bps))
                messages += _marking_rules(port, rate_pps, traffic_class, settings, number)
    commit(messages)


def read_marked() -> dict[tuple[str, int], int]:
    """Return how many packets this namespace's ports have marked, by (port, DSCP). Raises OSError."""
    marked_packets: dict[tuple[str, int], int] = {}
    body = struct.pack("=BBH", NFPROTO_IPV4, 0, 0) + attribute(_RULE_TABLE, _TABLE.encode() + b"\0")
    with open_netlink(NETLINK_NETFILTER, timeout_s=5) as sock:
        for rule in dump(sock, NFNL_SUBSYS_NFTABLES << 8 | _GETRULE, body):
            fields = dict(attributes(rule, 4))
            if _RULE_USERDATA not in fields:
                continue
            port, dscp = fields[_RULE_USERDATA][2:].rstrip(b"\0").decode().split()  # after type and length
            for _, element in attributes(fields[_RULE_EXPRESSIONS]):
                inner = dict(attributes(element))
                if inner[_EXPRESSION_NAME].rstrip(b"\0") == b"counter":
                    packets = dict(attributes(inner[_EXPRESSION_DATA]))[_COUNTER_PACKETS]
                    marked_packets[port, int(dscp)] = int.from_bytes(packets, "big")
    return marked_packets


def of_dscp(dscp: int) -> list[dict[str, Any]]:
    """Return expressions that match IPv4 packets with a DSCP as they enter a device."""
    protocol = expression("meta", ("NFTA_META_DREG", 1), ("NFTA_META_KEY", _META_PROTOCOL))
    return [protocol, compare(_EQUAL, _ETHERTYPE_IPV4), *_dscp_is(dscp)]


def dscp_change(before: int, after: int) -> list[dict[str, Any]]:
    """Return nftables expressions that change the DSCP of IPv4 packets as they enter a device."""
    return [*of_dscp(before), *_write_tos(_DSCP_MASK, after << 2)]


def _write_tos(mask: int, value: int) -> list[dict[str, Any]]:
    """Return expressions that set bits of the IP byte with DSCP and ECN, and correct the checksum."""
    return [
        load(NETWORK_HEADER, 0, 2),
        _bitwise(2, bytes((0xFF, 0xFF & ~mask)), bytes((0, value))),
        store_ip(1, 0, 2),
    ]


def _marking_rules(
    port: str, rate_pps: int, traffic: FabricClass, settings: FabricSettings, number: int
) -> list[Any]:
    """Return the rules of one class at one port: its phantom queue, and ECN marking while it is full."""
    of_class = [*_port_is(port), *_dscp_is(traffic.dscp)]
    key = _immediate(struct.pack("=I", number))
    is_full = longer_than(settings.mtu_bytes // 2)
    bucket = expression(
        "limit",
        ("NFTA_LIMIT_RATE", rate_pps),
        ("NFTA_LIMIT_UNIT", 1),
        ("NFTA_LIMIT_BURST", traffic.mark_bytes // settings.frame_bytes or 1),
        ("NFTA_LIMIT_TYPE", _LIMIT_PACKETS),
        ("NFTA_LIMIT_FLAGS", _LIMIT_OVER),
    )
    remember = expression(
        "dynset",
        ("NFTA_DYNSET_SET_NAME", _MARKING),
        ("NFTA_DYNSET_SET_ID", 1),
        ("NFTA_DYNSET_OP", _DYNSET_UPDATE),
        ("NFTA_DYNSET_SREG_KEY", 1),
        ("NFTA_DYNSET_TIMEOUT", HOLD_MS),
    )
    is_marking = expression(
        "lookup", ("NFTA_LOOKUP_SET", _MARKING), ("NFTA_LOOKUP_SREG", 1), ("NFTA_LOOKUP_SET_ID", 1)
    )
    # A packet that another queue has marked counts there only.
    capable = [*_field_is(_ECN_MASK, _NOT_EQUAL, 0), *_field_is(_ECN_MASK, _NOT_EQUAL, _CE)]
    mark = [
        *_write_tos(_ECN_MASK, _CE),
        expression("counter", ("NFTA_COUNTER_BYTES", 0), ("NFTA_COUNTER_PACKETS", 0)),
    ]
    return [
        _rule([*of_class, *is_full, bucket, key, remember]),
        _rule([*of_class, *capable, key, is_marking, *mark], f"{port} {traffic.dscp}"),
    ]


def _rule(expressions: list[dict[str, Any]], name: str = "") -> Any:
    fields: dict[str, Any] = {"NFTA_RULE_USERDATA": name} if name else {}
    return message(
        nft_rule_msg,
        NFT_MSG_NEWRULE,
        NFPROTO_IPV4,
        NFTA_RULE_TABLE=_TABLE,
        NFTA_RULE_CHAIN=_CHAIN,
        NFTA_RULE_EXPRESSIONS=expressions,
        **fields,
    )


def _port_is(port: str) -> list[dict[str, Any]]:
    load = expression("meta", ("NFTA_META_DREG", 1), ("NFTA_META_KEY", _META_OIFNAME))
    return [load, compare(_EQUAL, port.encode().ljust(16, b"\0"))]


def _dscp_is(dscp: int) -> list[dict[str, Any]]:
    return _field_is(_DSCP_MASK, _EQUAL, dscp << 2)


def _field_is(mask: int, operator: int, value: int) -> list[dict[str, Any]]:
    """Return expressions that compare bits of the IP header's TOS byte (DSCP and ECN) with a value."""
    bits = _bitwise(1, bytes((mask,)), b"\0")
    return [load(NETWORK_HEADER, 1, 1), bits, compare(operator, bytes((value,)))]


def _bitwise(size: int, mask: bytes, flip: bytes) -> dict[str, Any]:
    return expression(
        "bitwise",
        ("NFTA_BITWISE_SREG", 1),
        ("NFTA_BITWISE_DREG", 1),
        ("NFTA_BITWISE_LEN", size),
        ("NFTA_BITWISE_MASK", data(mask)),
        ("NFTA_BITWISE_XOR", data(flip)),
    )


def _immediate(value: bytes) -> dict[str, Any]:
    return expression("immediate", ("NFTA_IMMEDIATE_DREG", 1), ("NFTA_IMMEDIATE_DATA", data(value)))


def _set_priority() -> dict[str, Any]:
    return expression("meta", ("NFTA_META_SREG", 1), ("NFTA_META_KEY", _META_PRIORITY))
