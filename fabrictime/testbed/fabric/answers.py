"""Makes the switches of a testbed answer traceroutes as switches of other networks do.

The plan has the addresses and routes of each `AnswerForm`. This module adds limits and rules to one
namespace. Hidden switches keep the TTL of forwarded packets: a rule adds one before the kernel subtracts one.
So a packet crosses them as in a tunnel or a layer-2 network, with the hash of its own ports. No tunnel device
is needed, which the kernel may lack (IPIP, GRE and MPLS routing).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyroute2.netlink.nfnetlink.nftsocket import (
    NFPROTO_IPV4,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWSET,
    NFT_MSG_NEWSETELEM,
    NFT_MSG_NEWTABLE,
    nft_chain_msg,
    nft_rule_msg,
    nft_set_elem_list_msg,
    nft_set_msg,
    nft_table_msg,
)

from fabrictime.testbed.fabric.nft import (
    NETWORK_HEADER,
    TRANSPORT_HEADER,
    commit,
    compare,
    data,
    drop,
    expression,
    load,
    message,
    store_ip,
)
from fabrictime.testbed.settings import AnswerForm

_LIMITS: Final = {"icmp_ratelimit": "1000", "icmp_msgs_per_sec": "1000", "icmp_msgs_burst": "50"}
"""Linux' default limits: one answer per second to each address, after a burst of six."""
_SILENT: Final[dict[AnswerForm, tuple[str, ...]]] = {
    "silent": ("leaf", "spine"),
    "silent_spines": ("spine",),
}
_HIDDEN: Final[dict[AnswerForm, tuple[str, ...]]] = {"tunnel": ("spine",), "flat": ("leaf", "spine")}
"""Kinds of switches that do not decrement the TTL, by form."""
_TABLE, _CHAIN, _NEXT_TTL = "answers", "chain", "next"
_PREROUTING, _OUTPUT = 0, 3
_RAW_PRIORITY: Final = -300
_EQUAL: Final = 0
_TTL_AT, _PROTOCOL_AT = 8, 9
_TIME_EXCEEDED: Final = 11
_PROTOCOLS: Final = (socket.IPPROTO_ICMP, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
_MAX_TTL: Final = 254
_ELEMENTS_A_MESSAGE: Final = 256
_SYSCTLS: Final = Path("/proc/sys/net/ipv4")


def write_limits(form: AnswerForm, kind: str) -> None:
    """Limit this namespace's ICMP answers if `form` and `kind` of node require that. Raises OSError."""
    if form == "rate_limited" and kind != "host":
        for name, value in _LIMITS.items():
            with suppress(FileNotFoundError):  # a limit of all namespaces together, on older kernels
                (_SYSCTLS / name).write_text(value)


def write_proxy(form: AnswerForm, ports: Iterable[str]) -> None:
    """Let a leaf answer ARP for all hosts of a flat network, as with ARP suppression. Raises OSError."""
    for port in ports if form == "flat" else ():
        (_SYSCTLS / f"conf/{port}/proxy_arp").write_text("1")
        (_SYSCTLS / f"neigh/{port}/proxy_delay").write_text("0")


def add_rules(form: AnswerForm, kind: str) -> None:
    """Add the rules of one namespace. Raises OSError, with nothing changed, if the kernel refuses them."""
    if kind in _SILENT.get(form, ()):
        is_icmp = [load(NETWORK_HEADER, _PROTOCOL_AT, 1), compare(_EQUAL, bytes((socket.IPPROTO_ICMP,)))]
        is_exceeded = [load(TRANSPORT_HEADER, 0, 1), compare(_EQUAL, bytes((_TIME_EXCEEDED,)))]
        commit([*_chain(_OUTPUT), _rule([*is_icmp, *is_exceeded, drop()])])
    if kind in _HIDDEN.get(form, ()):
        add_one = expression(
            "lookup",
            ("NFTA_LOOKUP_SET", _NEXT_TTL),
            ("NFTA_LOOKUP_SREG", 1),
            ("NFTA_LOOKUP_DREG", 2),
            ("NFTA_LOOKUP_SET_ID", 1),
        )
        rule = [load(NETWORK_HEADER, _TTL_AT, 2), add_one, store_ip(2, _TTL_AT, 2)]
        commit([*_chain(_PREROUTING), *_next_ttls(), _rule(rule)])


def _chain(hook: int) -> list[Any]:
    """Return the netlink messages that create the nftables table with one chain."""
    return [
        _message(nft_table_msg, NFT_MSG_NEWTABLE, NFTA_TABLE_NAME=_TABLE, NFTA_TABLE_FLAGS=0),
        _message(
            nft_chain_msg,
            NFT_MSG_NEWCHAIN,
            NFTA_CHAIN_TABLE=_TABLE,
            NFTA_CHAIN_NAME=_CHAIN,
            NFTA_CHAIN_HOOK={
                "attrs": [("NFTA_HOOK_HOOKNUM", hook), ("NFTA_HOOK_PRIORITY", _RAW_PRIORITY)],
            },
            NFTA_CHAIN_POLICY=1,
            NFTA_CHAIN_TYPE="filter",
        ),
    ]


def _next_ttls() -> list[Any]:
    """Return the messages that make the map of TTL and protocol, one word of the header, to the next TTL."""
    pairs = [
        (bytes((ttl, protocol)), bytes((ttl + 1, protocol)))
        for protocol in _PROTOCOLS
        for ttl in range(1, _MAX_TTL + 1)
    ]
    ttl_map = _message(
        nft_set_msg,
        NFT_MSG_NEWSET,
        NFTA_SET_TABLE=_TABLE,
        NFTA_SET_NAME=_NEXT_TTL,
        NFTA_SET_FLAGS={"NFT_SET_MAP"},
        NFTA_SET_KEY_TYPE=0,
        NFTA_SET_KEY_LEN=2,
        NFTA_SET_DATA_TYPE=0,
        NFTA_SET_DATA_LEN=2,
        NFTA_SET_ID=1,
    )
    messages = [ttl_map]
    for first in range(0, len(pairs), _ELEMENTS_A_MESSAGE):
        elements = [
            {"attrs": [("NFTA_SET_ELEM_KEY", data(key)), ("NFTA_SET_ELEM_DATA", data(value))]}
            for key, value in pairs[first : first + _ELEMENTS_A_MESSAGE]
        ]
        messages.append(
            _message(
                nft_set_elem_list_msg,
                NFT_MSG_NEWSETELEM,
                NFTA_SET_ELEM_LIST_TABLE=_TABLE,
                NFTA_SET_ELEM_LIST_SET=_NEXT_TTL,
                NFTA_SET_ELEM_LIST_SET_ID=1,
                NFTA_SET_ELEM_LIST_ELEMENTS=elements,
            )
        )
    return messages


def _rule(expressions: list[dict[str, Any]]) -> Any:
    return _message(
        nft_rule_msg,
        NFT_MSG_NEWRULE,
        NFTA_RULE_TABLE=_TABLE,
        NFTA_RULE_CHAIN=_CHAIN,
        NFTA_RULE_EXPRESSIONS=expressions,
    )


def _message(kind: type[Any], number: int, **attributes: Any) -> Any:
    return message(kind, number, NFPROTO_IPV4, **attributes)
