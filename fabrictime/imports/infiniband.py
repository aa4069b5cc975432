"""Reads the output of `ibnetdiscover`: switches and channel adapters with the neighbour of each port.

A node is identified by its GUID; its description, which the owner sets, is only a name. Adapters inside
switches, which aggregate for SHARP, are no hosts and are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fabrictime.imports.base import BadImport, Found, Hints

_NODE: Final = re.compile(r'^(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-fA-F]+)"\s*#\s*"([^"]*)"')
_PORT: Final = re.compile(
    r'^\[(\d+)\](?:\[[^\]]*\])?(?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]+)"\[(\d+)\](.*)$'
)
_INSIDE: Final = re.compile(r"\bAggregation Node\b", re.IGNORECASE)
"""Description of the adapter of each Quantum switch at its last port."""
_FACTORY_NAME: Final = re.compile(r"^MT\d+ |\bMellanox Technologies\b|^$")
"""Description of an adapter that no host has named yet (mlx5 driver: board's name and vendor)."""
_RATE: Final = re.compile(r"\b(\d+)x([A-Z]+\d*)\b")
_SIGNAL_BPS: Final = {
    "SDR": 2_500_000_000,
    "DDR": 5_000_000_000,
    "QDR": 10_000_000_000,
    "FDR10": 10_312_500_000,
    "FDR": 14_062_500_000,
    "EDR": 25_781_250_000,
    "HDR": 53_125_000_000,
    "NDR": 106_250_000_000,
    "XDR": 212_500_000_000,
}
"""Signalling rate of a lane, bit/s (InfiniBand Trade Association, roadmap)."""


def fits(text: str) -> bool:
    """Return whether a text looks like ibnetdiscover's output."""
    return any(_NODE.match(line) for line in text.splitlines())


def read(text: str, hints: Hints) -> Found:
    """Return the cables. An adapter named `host device` is a device of this host. Raises BadImport."""
    names, part = _names(text), Found()
    for guid, (kind, name) in names.items():
        if kind == "Ca" and not _INSIDE.search(name):
            part.hosts.add(_end(guid, names, "1")[0])
        elif not name:
            raise BadImport(f"{guid}: no name")
    for line, guid, port, far, far_port, rate_bps in _ports(text):
        for end_guid in (guid, far):
            if end_guid not in names:
                raise BadImport(f"port {port} of {guid}: leads to {end_guid}, which the file does not list")
        if not any(names[end][0] == "Ca" and _INSIDE.search(names[end][1]) for end in (guid, far)):
            near_end, far_end = _end(guid, names, port), _end(far, names, far_port)
            part.connect(near_end, far_end, rate_bps, place=f"line {line}")
    return part


def _names(text: str) -> dict[str, tuple[str, str]]:
    """Return (kind, name) by GUID. The name contains the GUID if several nodes have the same name or if it is
    a factory name, because one node would hide another.
    """
    nodes = {match[3]: (match[1], match[4].strip()) for match in map(_NODE.match, text.splitlines()) if match}
    count = Counter(nodes.values())
    names = {}
    for guid, (kind, name) in nodes.items():
        number = guid.partition("-")[2]
        if kind != "Ca":
            name = f"{name} {number}" if count[kind, name] > 1 else name
        elif _FACTORY_NAME.search(name) and not _INSIDE.search(name):
            name = f"ca-{number}"
        elif count[kind, name] > 1 and not _INSIDE.search(name):
            host, _, device = name.partition(" ")
            name = f"{host}-{number} {device}"
        names[guid] = kind, name
    return names


def _ports(text: str) -> Iterator[tuple[int, str, str, str, str, int]]:
    guid = ""
    for number, line in enumerate(text.splitlines(), 1):
        node, port = _NODE.match(line), _PORT.match(line)
        if node is not None:
            guid = node[3]
        elif port is not None and guid:
            yield number, guid, port[1], port[2], port[3], _rate_bps(port[4].rpartition("#")[2])


def _rate_bps(comment: str) -> int:
    match = _RATE.search(comment.rpartition('"')[2])
    return 0 if match is None or len(match[1]) > 2 else int(match[1]) * _SIGNAL_BPS.get(match[2], 0)


def _end(guid: str, names: dict[str, tuple[str, str]], port: str) -> tuple[str, str]:
    """Return node and port of one end of a cable. `gpu01 mlx5_0` and `gpu01 HCA-1` are adapters of gpu01."""
    kind, name = names[guid]
    if kind != "Ca":
        return name, port
    host, _, device = name.partition(" ")
    device = device.strip() or f"port{port}"
    return host or guid, device if port == "1" else f"{device}.{port}"
