"""Reads containerlab's topology file (YAML): nodes with a kind, and links with two endpoints."""

from __future__ import annotations

from typing import Any, Final

import yaml

from fabrictime.imports.base import BadImport, Found, Hints, text_of

_HOST_KINDS: Final = ("linux", "ext-container", "generic_vm")
_OUTSIDE: Final = ("host", "mgmt-net", "macvlan", "vxlan", "vxlan-stitch", "dummy")
"""Endpoints that are no nodes of the lab."""


def fits(text: str) -> bool:
    """Return whether a text looks like a lab's file."""
    return "topology:" in text and "endpoints" in text


def read(text: str, hints: Hints) -> Found:
    """Return the lab's cables. Nodes of kind linux are hosts. Raises BadImport."""
    try:
        content = yaml.load(text, Loader=_NoAliases)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadImport(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    lab = content.get("topology") if isinstance(content, dict) else None
    if not isinstance(lab, dict):
        raise BadImport("no table 'topology'")
    part, nodes = Found(), _table(lab.get("nodes"))
    default = _table(lab.get("defaults")).get("kind")
    for name, node in nodes.items():
        if _table(node).get("kind", default) in _HOST_KINDS:
            part.hosts.add(text_of(name))
    links = lab.get("links")
    for link in links if isinstance(links, list) else []:
        ends = [_end(endpoint) for endpoint in _endpoints(_table(link))]
        if len(ends) == 2 and all(ends) and not any(end[0] in _OUTSIDE for end in ends):
            part.connect(ends[0], ends[1])
    return part


class _NoAliases(yaml.SafeLoader):  # type: ignore[misc]
    """A YAML loader that refuses aliases, with which a small file can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node. Raises an error for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are refused")
        return super().compose_node(parent, index)


def _table(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _endpoints(link: dict[Any, Any]) -> list[Any]:
    """Return the two endpoints of a link in the brief or the extended form."""
    ends = link.get("endpoints")
    return (
        ends if isinstance(ends, list) else [link[key] for key in ("endpoint-a", "endpoint-b") if key in link]
    )


def _end(value: Any) -> tuple[str, str]:
    if isinstance(value, dict):
        node, port = text_of(value.get("node")), text_of(value.get("interface"))
    else:
        node, _, port = text_of(value).partition(":")
    if not node or not port:
        raise BadImport(f"endpoint {str(value)[:80]!r}: expected node:interface")
    return node, port
