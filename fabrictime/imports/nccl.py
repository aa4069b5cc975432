"""Reads the topology that NCCL detected on a host (`NCCL_TOPO_DUMP_FILE`): its NICs.

The file describes the inside of one host. So the import yields the host and its devices, and no cable.
"""

from __future__ import annotations

import re

from fabrictime.imports.base import BadImport, Found, Hints, xml_root


def fits(text: str) -> bool:
    """Return whether a text looks like NCCL's topology."""
    return re.search(r"<system\b[^>]*>\s*<cpu\b", text) is not None


def read(text: str, hints: Hints) -> Found:
    """Return the host, with the name in `hints.host`, and its NICs. Raises BadImport."""
    if not hints.host:
        raise BadImport("NCCL does not name its host: give --host, or name the file after the host")
    part = Found(hosts={hints.host})
    for net in xml_root(text).iter("net"):
        name = net.get("name", "").strip()
        if name and name.isprintable():
            part.ports.setdefault(hints.host, {})[name] = []
    if not part.ports:
        raise BadImport("no NIC: expected an element 'net' with a name")
    return part
