"""Reads Slurm's topology.conf (topology/tree) and topology.yaml: the nodes and switches below each switch.

The files name no ports. So a port is named by the node at its other end. Format: topology.conf(5),
topology.yaml(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from fabrictime.imports.base import BadImport, Found, Hints, expanded, text_of, yaml_content

_FIELD: Final = re.compile(r"(\w+)=(\S+)")
_KBPS: Final = 1_000
_BLOCKS: Final = "blocks name no switches, expected topology/tree"


def fits(text: str) -> bool:
    """Return whether a text looks like topology.conf or topology.yaml."""
    return bool(re.search(r"^\s*(?:SwitchName|BlockName)=", text, re.MULTILINE | re.IGNORECASE)) or _is_yaml(
        text
    )


def read(text: str, hints: Hints) -> Found:
    """Return a cable from each node and from each lower switch to the switch above. Nodes have the device
    `hints.device`. Raises BadImport.
    """
    part = Found()
    if _is_yaml(text):
        for number, row in enumerate(_tree(yaml_content(text)), 1):
            _connect(part, {str(key).lower(): text_of(row[key]) for key in row}, hints, f"switch {number}")
        return part
    for number, line in _lines(text):
        fields = {key.lower(): value for key, value in _FIELD.findall(line)}
        if "blockname" in fields:
            raise BadImport(f"line {number}: {_BLOCKS}")
        if "switchname" in fields:
            row = {"switch": fields["switchname"], "children": fields.get("switches", ""), **fields}
            _connect(part, row, hints, f"line {number}")
    return part


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line without its comment, and the number at which it begins; a backslash joins two lines."""
    begun, number = "", 1
    for at, line in enumerate(text.splitlines(), 1):
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        yield number, (begun + line).partition("#")[0]
        begun, number = "", at + 1
    yield number, begun


def _connect(part: Found, row: dict[str, str], hints: Hints, place: str) -> None:
    speed = row.get("linkspeed", "")
    rate_bps = int(speed) * _KBPS if speed.isdecimal() and len(speed) < 13 else 0
    for switch in expanded(row.get("switch", "")):
        for host in expanded(row.get("nodes", "")):
            part.hosts.add(host)
            part.connect((host, hints.device), (switch, host), rate_bps, place)
        for below in expanded(row.get("children", "")):
            part.connect((below, switch), (switch, below), rate_bps, place)


def _is_yaml(text: str) -> bool:
    """Return whether a text is the YAML list of topologies of a topology.yaml."""
    if not re.search(r"^\s*-?\s*topology\s*:", text, re.MULTILINE):
        return False
    try:
        content = yaml_content(text)
    except BadImport:
        return False
    return isinstance(content, list) and any(isinstance(one, dict) and "topology" in one for one in content)


def _tree(content: list[Any]) -> list[dict[Any, Any]]:
    """Return the switches of the cluster's default topology, else of the first tree. Raises BadImport."""
    topologies = [one for one in content if isinstance(one, dict)]
    topologies.sort(key=lambda one: one.get("cluster_default") is not True)
    for one in topologies:
        tree = one.get("tree")
        rows = tree.get("switches") if isinstance(tree, dict) else None
        if isinstance(rows, list):
            return [row for row in rows if isinstance(row, dict)]
    kinds = sorted({str(key) for one in topologies for key in one} & {"block", "flat"})
    raise BadImport(
        _BLOCKS if "block" in kinds else f"{' and '.join(kinds) or 'no topology'}: expected a tree"
    )
