"""Reads SONiC's config_db.json of one switch: neighbours, rates and addresses of its ports."""

from __future__ import annotations

from typing import Any, Final

from fabrictime.imports.base import BadImport, Found, Hints, has_key, json_table, text_of
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
"""SONiC's device type to kind. A LeafRouter may be above ToRs: its distance from hosts decides."""
_SERVERS: Final = ("server", "backendserver", "smartcable")
_INSIDE: Final = ("asic", "supervisor", "linecard")
"""Types of neighbours that are parts of the same chassis: cables to them are no links of the fabric."""


def fits(text: str) -> bool:
    """Return whether a text looks like config_db.json of a switch with one or several ASICs."""
    if has_key(text, "DEVICE_METADATA", "DEVICE_NEIGHBOR"):
        return True
    return has_key(text, "localhost") and "DEVICE_METADATA" in _table(json_table(text)["localhost"])


def read(text: str, hints: Hints) -> Found:
    """Return the switch's cables. A file for several ASICs has a table of tables each. Raises BadImport."""
    content, part, name = json_table(text), Found(), ""
    spaces = [content] if "localhost" not in content else [_table(value) for value in content.values()]
    for space in spaces:
        local = _table(_table(space.get("DEVICE_METADATA")).get("localhost"))
        name = name or text_of(local.get("hostname")) or hints.host
        if not name:
            raise BadImport("DEVICE_METADATA.localhost.hostname: missing, give --host")
        kind = KINDS.get(text_of(local.get("type")))
        if kind is not None and text_of(local.get("type")) != "LeafRouter":
            part.kinds[name] = kind
        _cables(space, name, part)
        _addresses(space, name, part)
    return part


def is_inside(kind: str) -> bool:
    """Return whether a neighbour of this SONiC device type is part of the same chassis."""
    return kind.lower() in _INSIDE


def is_server(kind: str) -> bool:
    """Return whether a device of this SONiC device type is a host."""
    return kind.lower() in _SERVERS


def _cables(content: dict[str, Any], name: str, part: Found) -> None:
    ports, types = _table(content.get("PORT")), _table(content.get("DEVICE_NEIGHBOR_METADATA"))
    for key, neighbour in _table(content.get("DEVICE_NEIGHBOR")).items():
        port, far, far_port = _neighbour(key, _table(neighbour))
        kind = text_of(_table(types.get(far, neighbour)).get("type"))
        if not far or not far_port or is_inside(kind):
            continue
        rate_bps = _rate_bps(_table(ports.get(port)).get("speed"))
        part.connect((name, port), (far, far_port), rate_bps, place=f"DEVICE_NEIGHBOR {key}")
        if is_server(kind):
            part.hosts.add(far)


def _neighbour(key: str, entry: dict[str, Any]) -> tuple[str, str, str]:
    """Return local port, neighbour and its port. The key is the local port; in the older format, it is the
    neighbour (SONiC wiki, 'Configuration').
    """
    far_port = text_of(entry.get("port"))
    if "local_port" in entry and "name" not in entry:
        return text_of(entry["local_port"]), key, far_port
    return key, text_of(entry.get("name")), far_port


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
