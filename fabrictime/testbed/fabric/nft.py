"""Drops packets on one port by nftables, over netlink without an `nft` binary.

A table per fault has one chain, which hooks the interface's ingress and drops silently: carrier, the sender's
counters and routes stay as they are. Removing the table ends the fault exactly. pyroute2 encodes the
messages; this module sends them itself to get the kernel's answer to each.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Sequence
from typing import Any

from pyroute2.netlink import (
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_REQUEST,
    NLMSG_ERROR,
)
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES, nfgen_msg
from pyroute2.netlink.nfnetlink.nftsocket import (
    NFPROTO_NETDEV,
    NFT_MSG_DELTABLE,
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

SLOTS = 4096
"""Length of the loss pattern: packet i of a link is dropped when slot i mod SLOTS is drawn."""

NETWORK_HEADER, TRANSPORT_HEADER = 1, 2
_CSUM_INET, _IP_CHECKSUM_AT = 1, 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_INGRESS = 0  # NF_NETDEV_INGRESS
_META_LEN, _HTON, _GREATER = 0, 1, 4  # packet length, to network byte order, NFT_CMP_GT
_CHAIN, _SET = "in", "slots"
_ELEMENTS_A_MESSAGE = 512
_TIMEOUT_S = 5.0


def add_drop(table: str, device: str, share: float, seed: int, only: Sequence[dict[str, Any]] = ()) -> None:
    """Drop exactly a `share`, above 0 and up to 1, of each SLOTS packets that enter `device`.

    `only` has expressions that restrict the fault to matching packets. `seed` draws the positions once and
    they repeat, so the same packets in the same order are dropped. Raises OSError, with nothing changed, if
    the kernel refuses.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share of loss {share}: expected above 0 and at most 1")
    messages, rule = _ingress_chain(table, device), [drop()]
    if share < 1:
        messages += _loss_set(table, share, seed)
        rule = [
            expression(
                "numgen",
                ("NFTA_NG_DREG", 1),
                ("NFTA_NG_MODULUS", SLOTS),
                ("NFTA_NG_TYPE", 0),
                ("NFTA_NG_OFFSET", 0),
            ),
            expression(
                "lookup",
                ("NFTA_LOOKUP_SET", _SET),
                ("NFTA_LOOKUP_SREG", 1),
                ("NFTA_LOOKUP_SET_ID", 1),
            ),
            drop(),
        ]
    commit([*messages, _rule(table, [*only, *rule])])


def add_change(table: str, device: str, expressions: Sequence[dict[str, Any]]) -> None:
    """Apply nftables expressions to all packets that enter `device`. Raises OSError."""
    commit([*_ingress_chain(table, device), _rule(table, list(expressions))])


def add_size_drop(table: str, device: str, max_bytes: int) -> None:
    """Drop packets above `max_bytes`, including the IP header, that enter `device`. Raises OSError."""
    commit(
        [
            *_ingress_chain(table, device),
            _rule(
                table,
                [
                    *longer_than(max_bytes),
                    drop(),
                ],
            ),
        ]
    )


def longer_than(max_bytes: int) -> list[dict[str, Any]]:
    """Return expressions that match packets above `max_bytes`, including the IP header."""
    return [
        expression("meta", ("NFTA_META_DREG", 1), ("NFTA_META_KEY", _META_LEN)),
        expression(
            "byteorder",
            ("NFTA_BYTEORDER_SREG", 1),
            ("NFTA_BYTEORDER_DREG", 1),
            ("NFTA_BYTEORDER_OP", _HTON),
            ("NFTA_BYTEORDER_LEN", 4),
            ("NFTA_BYTEORDER_SIZE", 4),
        ),
        expression(
            "cmp",
            ("NFTA_CMP_SREG", 1),
            ("NFTA_CMP_OP", _GREATER),
            ("NFTA_CMP_DATA", {"attrs": [("NFTA_DATA_VALUE", struct.pack("!I", max_bytes))]}),
        ),
    ]


def drop() -> dict[str, Any]:
    """Return the nftables expression of the verdict that drops a packet."""
    return expression(
        "immediate",
        ("NFTA_IMMEDIATE_DREG", 0),
        (
            "NFTA_IMMEDIATE_DATA",
            {"attrs": [("NFTA_DATA_VERDICT", {"attrs": [("NFTA_VERDICT_CODE", 0)]})]},
        ),
    )


def _rule(table: str, expressions: list[dict[str, Any]]) -> Any:
    return message(
        nft_rule_msg,
        NFT_MSG_NEWRULE,
        NFTA_RULE_TABLE=table,
        NFTA_RULE_CHAIN=_CHAIN,
        NFTA_RULE_EXPRESSIONS=expressions,
    )


def _ingress_chain(table: str, device: str) -> list[Any]:
    """Return the netlink messages that create a table with one chain at a device's ingress."""
    return [
        message(nft_table_msg, NFT_MSG_NEWTABLE, NFTA_TABLE_NAME=table, NFTA_TABLE_FLAGS=0),
        message(
            nft_chain_msg,
            NFT_MSG_NEWCHAIN,
            NFTA_CHAIN_TABLE=table,
            NFTA_CHAIN_NAME=_CHAIN,
            NFTA_CHAIN_HOOK={
                "attrs": [
                    ("NFTA_HOOK_HOOKNUM", _INGRESS),
                    ("NFTA_HOOK_PRIORITY", 0),
                    ("NFTA_HOOK_DEV", device),
                ]
            },
            NFTA_CHAIN_POLICY=1,
            NFTA_CHAIN_TYPE="filter",
        ),
    ]


def remove_drop(table: str) -> None:
    """Remove the table that `add_drop` created under this name. Raises OSError if it does not exist."""
    commit([message(nft_table_msg, NFT_MSG_DELTABLE, NFTA_TABLE_NAME=table)])


def _loss_set(table: str, share: float, seed: int) -> list[Any]:
    """Return the messages that create the set of dropped slots, with keys in the machine's byte order."""
    drawn = random.Random(seed).sample(range(SLOTS), max(1, round(share * SLOTS)))  # noqa: S311  # reproducible
    messages = [
        message(
            nft_set_msg,
            NFT_MSG_NEWSET,
            NFTA_SET_TABLE=table,
            NFTA_SET_NAME=_SET,
            NFTA_SET_KEY_TYPE=0,
            NFTA_SET_KEY_LEN=4,
            NFTA_SET_ID=1,
            NFTA_SET_FLAGS=set(),
        )
    ]
    for first in range(0, len(drawn), _ELEMENTS_A_MESSAGE):
        elements = [
            {"attrs": [("NFTA_SET_ELEM_KEY", {"attrs": [("NFTA_DATA_VALUE", struct.pack("=I", slot))]})]}
            for slot in drawn[first : first + _ELEMENTS_A_MESSAGE]
        ]
        messages.append(
            message(
                nft_set_elem_list_msg,
                NFT_MSG_NEWSETELEM,
                NFTA_SET_ELEM_LIST_TABLE=table,
                NFTA_SET_ELEM_LIST_SET=_SET,
                NFTA_SET_ELEM_LIST_SET_ID=1,
                NFTA_SET_ELEM_LIST_ELEMENTS=elements,
            )
        )
    return messages


def load(header: int, at: int, size: int) -> dict[str, Any]:
    """Return an expression that loads `size` bytes of a header, at the offset `at`, into register 1."""
    return expression(
        "payload",
        ("NFTA_PAYLOAD_DREG", 1),
        ("NFTA_PAYLOAD_BASE", header),
        ("NFTA_PAYLOAD_OFFSET", at),
        ("NFTA_PAYLOAD_LEN", size),
    )


def store_ip(register: int, at: int, size: int) -> dict[str, Any]:
    """Return an expression that writes whole 16-bit words of the IPv4 header and corrects its checksum."""
    return expression(
        "payload",
        ("NFTA_PAYLOAD_SREG", register),
        ("NFTA_PAYLOAD_BASE", NETWORK_HEADER),
        ("NFTA_PAYLOAD_OFFSET", at),
        ("NFTA_PAYLOAD_LEN", size),
        ("NFTA_PAYLOAD_CSUM_TYPE", _CSUM_INET),
        ("NFTA_PAYLOAD_CSUM_OFFSET", _IP_CHECKSUM_AT),
    )


def compare(operator: int, value: bytes) -> dict[str, Any]:
    """Return an expression that compares register 1 with a value."""
    return expression("cmp", ("NFTA_CMP_SREG", 1), ("NFTA_CMP_OP", operator), ("NFTA_CMP_DATA", data(value)))


def data(value: bytes) -> dict[str, Any]:
    """Return a value as a netlink attribute that holds data."""
    return {"attrs": [("NFTA_DATA_VALUE", value)]}


def expression(name: str, *attributes: tuple[str, Any]) -> dict[str, Any]:
    """Return a rule's expression as a netlink attribute: its name and its attributes."""
    return {"attrs": [("NFTA_EXPR_NAME", name), ("NFTA_EXPR_DATA", {"attrs": list(attributes)})]}


def message(kind: type[Any], number: int, family: int = NFPROTO_NETDEV, **attributes: Any) -> Any:
    """Return a netlink message that creates an nftables object; a rule is appended to its chain."""
    message = kind()
    message["nfgen_family"] = family
    message["attrs"] = list(attributes.items())
    message["header"]["type"] = NFNL_SUBSYS_NFTABLES << 8 | number
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND
    return message


def commit(messages: list[Any]) -> None:
    """Send messages as one transaction, applied all or none. Raises OSError for the first refused one."""
    batch = bytearray()
    edges = [nfgen_msg(), nfgen_msg()]
    for edge, number in zip(edges, (_BATCH_BEGIN, _BATCH_END), strict=True):
        edge["res_id"] = NFNL_SUBSYS_NFTABLES
        edge["header"]["type"] = number
        edge["header"]["flags"] = NLM_F_REQUEST
    for sequence, message in enumerate([edges[0], *messages, edges[1]]):
        message["header"]["sequence_number"] = sequence
        message.encode()
        batch += message.data
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(len(batch) * 2, 65536))
        sock.bind((0, 0))
        sock.send(batch)
        waiting = len(messages)
        while waiting:
            answer = sock.recv(65536)
            at = 0
            while at + 20 <= len(answer):
                length, kind, _, _, _, code = struct.unpack_from("=IHHIIi", answer, at)
                if kind == NLMSG_ERROR:
                    if code:
                        raise OSError(-code, f"nftables: {os.strerror(-code)}")
                    waiting -= 1
                at += max(length + 3 & ~3, 16)
