"""Reads containerlab's topology file (YAML): nodes with a kind, and links with two endpoints.

A node's kind is the kind that the node states, else its group's kind, else the default (containerlab manual,
'Node configuration'). A group or label that names a role, such as `leaf`, is that node's role in the fabric.
"""

from __future__ import annotations

import re
from typing import Any, Final

from fabrictime.imports.base import BadImport, Found, Hints, kind_of_role, text_of, yaml_content
from schemas.topology import Kind

_HOST_KINDS: Final = ("linux", "ext-container", "generic_vm", "k8s-kind")
_OUTSIDE: Final = ("host", "mgmt-net", "macvlan", "vxlan", "vxlan-stitch", "dummy")
"""Endpoints that are no nodes of the lab."""
_ROUTERS: Final = re.compile(
    r"\b(?:frr|frrouting|bird|gobgp|openbgpd|vyos|sonic|cumulus|cvx|ovs)\b", re.IGNORECASE
)
"""Images of routers and switches that run as kind linux."""


def fits(text: str) -> bool:
    """Return whether a text looks like a topology file of containerlab."""
    if not re.search(r"^[\"']?topology[\"']?\s*:", text, re.MULTILINE):
        return False
    try:
        content = yaml_content(text)
    except BadImport:
        return "endpoints" in text
    lab = content.get("topology") if isinstance(content, dict) else None
    return isinstance(lab, dict) and not lab.keys().isdisjoint(("nodes", "links"))


def read(text: str, hints: Hints) -> Found:
    """Return the lab's cables. Nodes of kind linux without a router's image are hosts. Raises BadImport."""
    content = yaml_content(text)
    lab = content.get("topology") if isinstance(content, dict) else None
    if not isinstance(lab, dict):
        raise BadImport("no table 'topology'")
    part = Found()
    for name, node in _table(lab.get("nodes")).items():
        kind = _kind(_table(node), lab)
        if kind == "host":
            part.hosts.add(text_of(name))
        elif kind is not None:
            part.kinds[text_of(name)] = kind
    links = lab.get("links")
    for number, link in enumerate(links if isinstance(links, list) else [], 1):
        ends = [_end(endpoint) for endpoint in _endpoints(_table(link))]
        if len(ends) == 2 and all(ends) and not any(end[0] in _OUTSIDE for end in ends):
            part.connect(ends[0], ends[1], place=f"link {number}")
    return part


def _kind(node: dict[Any, Any], lab: dict[Any, Any]) -> Kind | None:
    """Return a node's kind in the fabric; None if the file does not state it."""
    defaults = _table(lab.get("defaults"))
    group_name = text_of(node.get("group")) or text_of(defaults.get("group"))
    group = _table(_table(lab.get("groups")).get(group_name))
    kind_name = node.get("kind") or group.get("kind") or defaults.get("kind")
    tables = (node, group, _table(_table(lab.get("kinds")).get(kind_name)), defaults)
    labels = [_table(table.get("labels")) for table in tables]
    roles = [kind_of_role(text_of(label.get("role"))) for label in labels]
    runs_linux = not kind_name or kind_name in _HOST_KINDS
    stated = next((role for role in (*roles, _role_of_group(group_name, runs_linux)) if role), None)
    if stated:
        return stated
    image = next((text_of(table.get("image")) for table in tables if table.get("image")), "")
    return "host" if kind_name in _HOST_KINDS and not _ROUTERS.search(image) else None


def _role_of_group(name: str, runs_linux: bool) -> Kind | None:
    """Return the role that a group name states; None for the role host if the node does not run Linux."""
    role = kind_of_role(name)
    return role if role != "host" or runs_linux else None


def _table(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _endpoints(link: dict[Any, Any]) -> list[Any]:
    """Return the two endpoints of a link, which is in containerlab's brief or extended format."""
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
