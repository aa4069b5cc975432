"""Reads the output of `ibnetdiscover`: switches and channel adapters with the neighbour of each port."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fabrictime.imports.base import BadImport, Found, Hints

_NODE: Final = re.compile(r'^(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-fA-F]+)"\s*#\s*"([^"]*)"')
_PORT: Final = re.compile(
    r'^\[(\d+)\](?:\[[^\]]*\])?(?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]+)"\[(\d+)\](.*)$'
)
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
    return any(_NODE.match(line) for line in text.splitlines()[:2000])


def read(text: str, hints: Hints) -> Found:
    """Return the cables. An adapter named `host device` becomes that host's device. Raises BadImport."""
    names, ports = _names(text), list(_ports(text))
    part = Found()
    for guid, (kind, name) in names.items():
        if kind == "Ca":
            part.hosts.add(_end(guid, names, "1")[0])
        elif not name:
            raise BadImport(f"{guid}: no name")
    for guid, port, far, far_port, rate_bps in ports:
        for end_guid in (guid, far):
            if end_guid not in names:
                raise BadImport(f"port {port} of {guid}: leads to {end_guid}, which the file does not list")
        part.connect(_end(guid, names, port), _end(far, names, far_port), rate_bps)
    return part


def _names(text: str) -> dict[str, tuple[str, str]]:
    """Return GUID to (kind, name). Switches with the same name get their GUID appended, else one would hide
    the other.
    """
    nodes = [match.groups() for match in map(_NODE.match, text.splitlines()) if match]
    count: dict[str, int] = {}
    for kind, _, _, name in nodes:
        if kind != "Ca":
            count[name] = count.get(name, 0) + 1
    return {
        guid: (kind, f"{name} {guid[2:]}" if kind != "Ca" and count[name] > 1 else name.strip())
        for kind, _, guid, name in nodes
    }


def _ports(text: str) -> Iterator[tuple[str, str, str, str, int]]:
    guid = ""
    for line in text.splitlines():
        node, port = _NODE.match(line), _PORT.match(line)
        if node is not None:
            guid = node[3]
        elif port is not None and guid:
            yield guid, port[1], port[2], port[3], _rate_bps(port[4].rpartition("#")[2])


def _rate_bps(comment: str) -> int:
    match = _RATE.search(comment.rpartition('"')[2])
    return 0 if match is None or len(match[1]) > 2 else int(match[1]) * _SIGNAL_BPS.get(match[2], 0)


def _end(guid: str, names: dict[str, tuple[str, str]], port: str) -> tuple[str, str]:
    """Return the node and port of one end. `gpu01 mlx5_0` and `gpu01 HCA-1` are adapters of gpu01."""
    kind, name = names[guid]
    if kind != "Ca":
        return name, port
    host, _, device = name.partition(" ")
    device = device.strip() or f"port{port}"
    return host or guid, device if port == "1" else f"{device}.{port}"
