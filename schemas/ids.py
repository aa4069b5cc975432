"""Builds and parses the ids of NICs, clocks, links, cables, flows and contention windows.

Ids are plain strings on the wire and as keys; their types only help the type checker. The `*_parts` functions
parse an id, and quote it in their errors. No constructor accepts a part that would make an id ambiguous.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, NewType

NicId = NewType("NicId", str)
"""`host/device`."""
ClockId = NewType("ClockId", str)
"""`host/system` or `host/ptpN`."""
LinkId = NewType("LinkId", str)
"""A directed link, `node:port>node:port`. Ports have their vendor's names (`Ethernet1/1`, `et-0/0/48:0`). A
node's name that contains a colon is in brackets: `[MF0;sw1:MQM9700/U1]:17`."""
CableId = NewType("CableId", str)
"""Both directions of a link: its two ends in sorted order, `node:port<>node:port`."""
FlowId = NewType("FlowId", str)
"""`host/boot/qp:<device>:<number>:<create count>` or `host/boot/sock:<cookie>`."""
WindowId = NewType("WindowId", str)
"""A contention window, `shard/link/<ns at which it opened>`."""


_MARKS: Final = frozenset("<>[]")
"""Characters that delimit the parts of links and cables."""


class NicParts(NamedTuple):
    """The host and the device of a NIC id."""

    host: str
    device: str


class End(NamedTuple):
    """One end of a link: a node and its port."""

    node: str
    port: str


class FlowParts(NamedTuple):
    """The parts of a flow id. `key` identifies the flow within its host and boot, for example `sock:17`."""

    host: str
    boot: str
    key: str


class WindowParts(NamedTuple):
    """The shard, link and opening time of a contention window's id."""

    shard: str
    link: str
    opened_ns: int


def nic_id(host: str, device: str) -> NicId:
    """Return `host/device`. Raises ValueError for a part that is empty or contains a separator."""
    return NicId(f"{_part('host', host)}/{_part('device', device)}")


def nic_parts(nic: str) -> NicParts:
    """Return the host and device of a NIC id. Raises ValueError if `nic` is no NIC id."""
    host, slash, device = nic.partition("/")
    if not slash:
        raise ValueError(f"NIC id {nic!r}: expected host/device")
    return NicParts(_part("host", host), _part("device", device))


def host_of(name: str) -> str:
    """Return the host in a NIC, clock or flow id, without a check; return a host's name unchanged."""
    return name.partition("/")[0]


def device_of(nic: str) -> str:
    """Return the device of a NIC id, without checking the id."""
    return nic.partition("/")[2]


def clock_id(host: str, clock: str = "system") -> ClockId:
    """Return `host/clock`: `system` for the kernel's timestamps, `ptpN` for hardware timestamps."""
    return ClockId(f"{_part('host', host)}/{_part('clock', clock)}")


def link_id(node: str, port: str, far_node: str, far_port: str) -> LinkId:
    """Return the id of a directed link, `node:port>node:port`."""
    return LinkId(f"{end_id(node, port)}>{end_id(far_node, far_port)}")


def end_id(node: str, port: str) -> str:
    """Return `node:port`, or `[node]:port` if the node's name contains a colon.

    Raises ValueError for a name that is empty, too long, or contains brackets, '<' or '>'.
    """
    node, port = _end_name("node", node), _end_name("port", port)
    return f"[{node}]:{port}" if ":" in node else f"{node}:{port}"


def end_parts(end: str) -> End:
    """Return a link end's node and port, without checking them; both are empty if `end` is malformed."""
    if end.startswith("["):
        node, bracket, port = end[1:].partition("]:")
        return End(node, port) if bracket else End("", "")
    node, colon, port = end.partition(":")
    return End(node, port) if colon else End("", "")


def link_ends(link: str) -> tuple[str, str]:
    """Return both ends of a directed link as `node:port`. Raises ValueError if `link` is no link id."""
    ends = link.split(">")
    if len(ends) != 2:
        raise ValueError(f"link id {link!r}: expected node:port>node:port")
    return ends[0], ends[1]


def near_node(link: str) -> str:
    """Return the node that sends into a directed link."""
    return end_parts(link_ends(link)[0]).node


def far_node(link: str) -> str:
    """Return the node that receives from a directed link."""
    return end_parts(link_ends(link)[1]).node


def reverse_link(link: str) -> LinkId:
    """Return the link in the opposite direction."""
    near, far = link_ends(link)
    return LinkId(f"{far}>{near}")


@lru_cache(maxsize=1 << 16)
def cable_id(link: str) -> CableId:
    """Return the id of the cable of a directed link. Raises ValueError if `link` is no link id."""
    return CableId("<>".join(sorted(link_ends(link))))


def cable_ends(cable: str) -> tuple[str, str]:
    """Return both ends of a cable as `node:port`, sorted. Raises ValueError if `cable` is no cable id."""
    ends = cable.split("<>")
    if len(ends) != 2:
        raise ValueError(f"cable id {cable!r}: expected node:port<>node:port")
    return ends[0], ends[1]


def pair_key(nic: str, peer: str) -> str:
    """Return the key of a directed NIC pair, `nic>peer`."""
    return f"{nic}>{peer}"


def flow_id(host: str, boot: str, key: str) -> FlowId:
    """Return `host/boot/key`; the key is `sock:<cookie>` or `qp:<device>:<number>:<create count>`."""
    return FlowId(f"{_part('host', host)}/{_part('boot', boot)}/{key}")


def flow_parts(flow: str) -> FlowParts:
    """Return the parts of a flow id. Raises ValueError if `flow` is no flow id."""
    parts = flow.split("/", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"flow id {flow!r}: expected host/boot/key")
    return FlowParts(*parts)


def window_id(shard: str, link: str, opened_ns: int) -> WindowId:
    """Return the id of a contention window: `shard/link/opened_ns`."""
    return WindowId(f"{shard}/{link}/{opened_ns}")


def window_parts(window: str) -> WindowParts:
    """Return the parts of a contention window's id. Raises ValueError if `window` is no such id."""
    rest, _, opened = window.rpartition("/")
    shard, slash, link = rest.partition("/")
    if not slash or not opened.isdigit():
        raise ValueError(f"window id {window!r}: expected shard/link/time in ns")
    return WindowParts(shard, link, int(opened))


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders numbers in names by value: h2 before h10."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    ]


def _end_name(name: str, text: str) -> str:
    is_usable = 0 < len(text) <= 128 and text == text.strip() and text.isprintable()
    if not is_usable or not _MARKS.isdisjoint(text):
        raise ValueError(f"{name} {text!r}: expected 1 to 128 printable characters without any of <>[]")
    return text


def _part(name: str, text: str) -> str:
    if not text or len(text) > 128 or any(c in "/>" or c.isspace() or not c.isprintable() for c in text):
        raise ValueError(f"{name} {text!r}: expected 1 to 128 printable characters without '/', '>' or space")
    return text
