"""Reads topology.dot of Cumulus' Prescriptive Topology Manager, in Graphviz format: edges between ports.

NVIDIA Air and topology_converter write the same format, with an attribute `function` for each node.
"""

from __future__ import annotations

import re
from typing import Final

from fabrictime.imports.base import BadImport, Found, Hints, kind_of_role

_NAME: Final = r'(?:"([^"\n]*)"|([\w./-]+))'
_EDGE: Final = re.compile(rf"{_NAME}\s*:\s*{_NAME}\s*--\s*{_NAME}\s*:\s*{_NAME}")
_NODE: Final = re.compile(rf"(?:^|[;{{}}\]])\s*{_NAME}\s*\[([^\]]*)\]", re.MULTILINE)
_FUNCTION: Final = re.compile(r'\bfunction\s*=\s*"?([\w-]+)', re.IGNORECASE)
_COMMENT: Final = re.compile(r'("[^"\n]*")|/\*.*?\*/|//[^\n]*|^\s*#[^\n]*', re.DOTALL | re.MULTILINE)


def fits(text: str) -> bool:
    """Return whether a text looks like topology.dot."""
    plain = _plain(text)
    return re.search(r"^\s*(?:strict\s+)?graph\b[^{]*\{", plain) is not None and "--" in plain


def read(text: str, hints: Hints) -> Found:
    """Return the cables, and the kinds of nodes with a stated function. Raises BadImport."""
    part, plain = Found(), _plain(text)
    for node in _NODE.finditer(plain):
        function, name = _FUNCTION.search(node[3]), node[1] or node[2]
        kind = kind_of_role(function[1]) if function else None
        if kind == "host":
            part.hosts.add(name)
        elif kind is not None:
            part.kinds[name] = kind
    for edge in _EDGE.finditer(plain):
        names = [edge[k] or edge[k + 1] for k in (1, 3, 5, 7)]
        if not all(names):
            raise BadImport(f"edge {edge[0][:80]!r}: expected node:port -- node:port")
        line = plain.count("\n", 0, edge.start()) + 1
        part.connect((names[0], names[1]), (names[2], names[3]), place=f"line {line}")
    if not part.cables:
        raise BadImport("no edge: expected node:port -- node:port")
    return part


def _plain(text: str) -> str:
    """Return a Graphviz text without comments; the numbers of its lines do not change."""
    return _COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n") or " ", text)
