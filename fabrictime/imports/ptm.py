"""Reads topology.dot of Cumulus' Prescriptive Topology Manager, in Graphviz format: edges between ports."""

from __future__ import annotations

import re
from typing import Final

from fabrictime.imports.base import BadImport, Found, Hints

_NAME: Final = r'(?:"([^"]*)"|([\w./-]+))'
_EDGE: Final = re.compile(rf"{_NAME}\s*:\s*{_NAME}\s*--\s*{_NAME}\s*:\s*{_NAME}")
_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", re.DOTALL | re.MULTILINE)


def fits(text: str) -> bool:
    """Return whether a text looks like topology.dot."""
    return re.search(r"\bgraph\b", text[:4096]) is not None and "--" in text


def read(text: str, hints: Hints) -> Found:
    """Return the cables. Raises BadImport."""
    part = Found()
    for edge in _EDGE.finditer(_COMMENT.sub(" ", text)):
        names = [edge[k] or edge[k + 1] for k in (1, 3, 5, 7)]
        if not all(names):
            raise BadImport(f"edge {edge[0][:80]!r}: expected node:port -- node:port")
        part.connect((names[0], names[1]), (names[2], names[3]))
    if not part.cables:
        raise BadImport("no edge: expected node:port -- node:port")
    return part
