"""Reads cables from NetBox's CSV export or from files for its bulk import.

In the export, one field names all ports at one side of a breakout cable. Formats: NetBox,
`dcim/tables/cables.py`, `dcim/tables/connections.py` and `CableImportForm`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from typing import Final

from fabrictime.imports.base import BadImport, Found, Hints

_DEVICE: Final = ("side_{}_device", "device_{}", "termination_{}_device", "{}_device")
_PORT: Final = (
    "side_{}_name",
    "termination_{}",
    "{}_terminations",
    "side_{}",
    "termination_{}_name",
    "{}_name",
    "interface_{}",
)
_COLUMNS: Final = {
    (side, part): tuple(name.format(side) for name in names)
    for side in "ab"
    for part, names in (("device", _DEVICE), ("port", _PORT))
}
"""Known column names by (side, part), as `_plain` returns them; the first one in a file counts."""
_KINDS: Final = ("side_{}_type", "termination_{}_type", "type")
_OTHER: Final = ("power", "console", "circuit", "front", "rear")
"""Types of cable ends that are no interface: a cable to a patch panel ends at no port of a switch or host."""
_GONE: Final = ("planned", "decommissioning", "offline")


def fits(text: str) -> bool:
    """Return whether a text looks like a table of cables from NetBox."""
    head = {_plain(name) for name in text[:8192].partition("\n")[0].split(",")}
    return all(head & set(names) for names in _COLUMNS.values())


def read(text: str, hints: Hints) -> Found:
    """Return the cables that are connected and have a device and a port at both ends. Raises BadImport."""
    part = Found()
    try:
        rows = csv.DictReader(io.StringIO(text))
        columns = {key: _column(key, rows.fieldnames or ()) for key in _COLUMNS}
        for row in rows:
            plain = {_plain(str(name)): str(value).strip() for name, value in row.items()}
            if not _is_link(plain):
                continue
            sides = [_ends(plain[columns[side, "device"]], plain[columns[side, "port"]]) for side in "ab"]
            for near, far in _pairs(*sides):
                part.connect(near, far, place=f"line {rows.line_num}")
    except csv.Error as error:
        raise BadImport(f"not CSV: {error}") from None
    return part


def _ends(devices: str, ports: str) -> list[tuple[str, str]]:
    """Return the ports of one side of a cable; empty if the side is not connected."""
    device_names, port_names = _values(devices), _values(ports)
    if len(device_names) == 1:
        device_names *= len(port_names)
    return list(zip(device_names, port_names, strict=False))


def _values(text: str) -> list[str]:
    return [value.strip() for value in text.split(",") if value.strip() not in ("", "—", "-")]


def _pairs(
    near: list[tuple[str, str]], far: list[tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield the pairs of ports of a cable. A port that breaks out into several gets a number for each."""
    if len(near) == 1 < len(far):
        near = [(near[0][0], f"{near[0][1]}:{breakout}") for breakout in range(1, len(far) + 1)]
    elif len(far) == 1 < len(near):
        far = [(far[0][0], f"{far[0][1]}:{breakout}") for breakout in range(1, len(near) + 1)]
    yield from zip(near, far, strict=False)


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip().lower()).strip("_")


def _column(key: tuple[str, str], names: object) -> str:
    plain = [_plain(str(name)) for name in names] if isinstance(names, list | tuple) else []
    for column in _COLUMNS[key]:
        if column in plain:
            return column
    side, part = key
    raise BadImport(
        f"no column with {part} of side {side.upper()}: expected one of {', '.join(_COLUMNS[key])}"
    )


def _is_link(row: Mapping[str, str]) -> bool:
    """Return whether a cable carries network data now: it is no power or console cable and is not planned."""
    if row.get("status", "").lower() in _GONE:
        return False
    names = [name.format(side) for name in _KINDS for side in "ab"]
    types = [row[name].lower() for name in names if row.get(name)]
    return not any(other in kind for kind in types for other in _OTHER)
