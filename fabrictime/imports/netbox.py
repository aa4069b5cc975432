"""Reads cables from NetBox's CSV export or from files for its bulk import."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
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
)
_COLUMNS: Final = {
    (side, part): tuple(name.format(side) for name in names)
    for side in "ab"
    for part, names in (("device", _DEVICE), ("port", _PORT))
}
"""Known column names by (side, part), in the form that `_plain` returns; the first one that a file has is
used.
"""
_KINDS: Final = (("side_a_type", "side_b_type"), ("termination_a_type", "termination_b_type"))
_OTHER: Final = ("power", "console", "circuit")
"""Types of cable ends that carry no network data of hosts."""
_GONE: Final = ("planned", "decommissioning", "offline")


def fits(text: str) -> bool:
    """Return whether a text looks like a table of cables."""
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
            ends = [(plain[columns[side, "device"]], plain[columns[side, "port"]]) for side in "ab"]
            if all(all(end) for end in ends):
                part.connect(ends[0], ends[1])
    except csv.Error as error:
        raise BadImport(f"not CSV: {error}") from None
    return part


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
    types = [row[name].lower() for pair in _KINDS for name in pair if row.get(name)]
    return not any(other in kind for kind in types for other in _OTHER)
