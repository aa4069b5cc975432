"""Reads Slurm's topology.conf (topology/tree): which switch has which nodes and switches below it.

The file names no ports. So a port has the name of the node at its other end.
"""

from __future__ import annotations

import re
from typing import Final

from fabrictime.imports.base import BadImport, Found, Hints, expanded

_FIELD: Final = re.compile(r"(\w+)=(\S+)")
_KBPS: Final = 1_000


def fits(text: str) -> bool:
    """Return whether a text looks like topology.conf."""
    return re.search(r"^\s*SwitchName=", text, re.MULTILINE | re.IGNORECASE) is not None


def read(text: str, hints: Hints) -> Found:
    """Return a cable from each node and each lower switch to its switch. Nodes have the device
    `hints.device`. Raises BadImport.
    """
    part = Found()
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        fields = {key.lower(): value for key, value in _FIELD.findall(line.partition("#")[0])}
        if not fields:
            continue
        if "switchname" not in fields:
            if "blockname" in fields:
                raise BadImport(f"line {number}: blocks name no switches, expected topology/tree")
            continue
        speed = fields.get("linkspeed", "")
        rate_bps = int(speed) * _KBPS if speed.isdecimal() and len(speed) < 13 else 0
        for switch in expanded(fields["switchname"]):
            for host in expanded(fields.get("nodes", "")):
                part.hosts.add(host)
                part.connect((host, hints.device), (switch, host), rate_bps)
            for below in expanded(fields.get("switches", "")):
                part.connect((below, switch), (switch, below), rate_bps)
    return part
