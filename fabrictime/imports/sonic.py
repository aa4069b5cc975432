"""Reads SONiC's config_db.json of one switch: neighbours, rates and addresses of its ports."""

from __future__ import annotations

import json
from typing import Any, Final

from fabrictime.imports.base import BadImport, Found, Hints, text_of
from schemas.topology import Kind

_MBPS: Final = 1_000_000
KINDS: Final[dict[str, Kind]] = {
    "ToRRouter": "leaf",
    "LeafRouter": "leaf",
    "BackEndToRRouter": "leaf",
    "BackEndLeafRouter": "spine",
    "SpineRouter": "spine",
    "UpperSpineRouter": "core",
}
"""SONiC's device type to kind. A LeafRouter is missing: it may be above ToRs, so its distance from the hosts
decides.
"""
_SERVERS: Final = ("server", "Server", "asic", "BackEndServer")


def fits(text: str) -> bool:
    """Return whether a text looks like config_db.json."""
    return '"DEVICE_METADATA"' in text


def read(text: str, hints: Hints) -> Found:
    """Return the switch's cables. Raises BadImport."""
    try:
        content = _table(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadImport(f"not JSON: {error}") from None
    local = _table(_table(content.get("DEVICE_METADATA")).get("localhost"))
    name = text_of(local.get("hostname")) or hints.host
    if not name:
        raise BadImport("DEVICE_METADATA.localhost.hostname: missing, give --host")
    part, ports = Found(), _table(content.get("PORT"))
    kind = KINDS.get(text_of(local.get("type")))
    if kind is not None and text_of(local.get("type")) != "LeafRouter":
        part.kinds[name] = kind
    types = _table(content.get("DEVICE_NEIGHBOR_METADATA"))
    for port, neighbour in _table(content.get("DEVICE_NEIGHBOR")).items():
        far, far_port = (text_of(_table(neighbour).get(key)) for key in ("name", "port"))
        if not far or not far_port:
            continue
        part.connect((name, text_of(port)), (far, far_port), _rate_bps(_table(ports.get(port)).get("speed")))
        if text_of(_table(types.get(far)).get("type")) in _SERVERS:
            part.hosts.add(far)
    _addresses(content, name, part)
    return part


def _addresses(content: dict[str, Any], name: str, part: Found) -> None:
    for key in _table(content.get("LOOPBACK_INTERFACE")):
        _, bar, prefix = key.partition("|")
        if bar:
            part.addresses.setdefault(name, []).append(prefix.partition("/")[0])
    for key in _table(content.get("INTERFACE")):
        port, bar, prefix = key.partition("|")
        if bar and port in _table(content.get("PORT")):
            part.ports.setdefault(name, {}).setdefault(port, []).append(prefix.partition("/")[0])


def _rate_bps(mbps: Any) -> int:
    text = text_of(mbps)
    return int(text) * _MBPS if text.isdecimal() and len(text) < 10 else 0


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
