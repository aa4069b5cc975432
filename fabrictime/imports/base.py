"""The result that all readers of other tools' files return, and its conversion to a topology file. Pure.

A reader returns `Found`: cables, hosts, and the stated kinds, addresses and ports of nodes. `merged` combines
the files of many hosts or switches. A cable that both of its ends report counts once. If two lines connect
one port to different ports, this is an error, unless the caller wants such cables left out.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree import ElementTree

import yaml

from schemas.host_list import host_names
from schemas.ids import End, end_id
from schemas.topology import CableEntry, Kind, NodeEntry, TopologyFile

MAX_BYTES: Final = 64 << 20
MAX_NAMES: Final = 200_000
"""Largest number of names that one pattern of hosts may stand for."""
_KIND_OF_ROLE: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(
        ("host", "hosts", "server", "servers", "client", "clients", "compute", "gpu", "node"), "host"
    ),
    **dict.fromkeys(("leaf", "leaves", "tor", "leafs"), "leaf"),
    **dict.fromkeys(("spine", "spines"), "spine"),
    **dict.fromkeys(("core", "superspine", "super-spine", "superspines", "super-spines"), "core"),
}
_KIND_OF_TIER: Final[Mapping[int, Kind]] = {1: "leaf", 2: "spine", 3: "core"}


class BadImport(ValueError):
    """The file has another format, or contradicts itself; the message is one line."""


class NoCable(BadImport):
    """The files are valid, but state no cable between two nodes of the fabric."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts that a file may not contain: the host that it describes (empty: the stem of the file's name), the
    network device of hosts, and a pattern of the names of further hosts, such as `gpu*`.
    """

    host: str = ""
    device: str = "eth0"
    hosts: str = ""
    without: tuple[str, ...] = ()
    """Patterns of the names of nodes to leave out, such as `oob-*`."""


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two ports; its rate is 0 if unknown."""

    ends: tuple[End, End]
    rate_bps: int = 0
    place: str = field(default="", compare=False)
    """Where the file states it, such as `line 7`."""


@dataclass(slots=True)
class Found:
    """The cables and nodes that one file describes."""

    cables: list[Cable] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    kinds: dict[str, Kind] = field(default_factory=dict)
    """Switch to its kind, if the file states it."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    """Node to its addresses that belong to no port."""
    ports: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Node to port to the port's addresses."""

    def connect(
        self, near: tuple[str, str], far: tuple[str, str], rate_bps: int = 0, place: str = ""
    ) -> None:
        """Add a cable. `place` is the cable's position in the file. Raises BadImport for an invalid name."""
        for node, port in (near, far):
            try:
                end_id(node, port)
            except ValueError as error:
                raise BadImport(str(error)) from None
        self.cables.append(Cable((End(*near), End(*far)), rate_bps, place))


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. `fits(text)` returns whether a text probably has it. `read` returns the content of a
    text, or raises BadImport.
    """

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str, Hints], Found]


def merged(
    every: Iterable[Found], hints: Hints | None = None, conflicts: list[str] | None = None
) -> TopologyFile:
    """Return one topology file without the nodes that `hints` leaves out. A switch's tier is the tier that a
    file states, else its distance from the hosts.

    Raises BadImport if two lines connect one port differently. With a list `conflicts`, the second cable is
    left out instead, and the list gets a line.
    """
    parts, patterns = list(every), Hints() if hints is None else hints
    cables = [
        cable
        for cable in _cables(parts, conflicts)
        if not any(_matches(end.node, patterns.without) for end in cable.ends)
    ]
    names = _names(parts, cables, patterns.without)
    kinds = _kinds(parts, cables, names, patterns.hosts)
    return TopologyFile(
        nodes=tuple(_node(name, kinds.get(name, "switch"), parts) for name in names),
        links=tuple(
            CableEntry(ends=(end_id(*cable.ends[0]), end_id(*cable.ends[1])), rate_bps=cable.rate_bps)
            for cable in cables
        ),
    )


def _names(parts: Iterable[Found], cables: Iterable[Cable], without: Iterable[str]) -> list[str]:
    """Return the names of all nodes, nodes with a cable first, without the names that match `without`."""
    names: dict[str, None] = dict.fromkeys(end.node for cable in cables for end in cable.ends)
    for part in parts:
        names.update(dict.fromkeys((*part.hosts, *part.addresses, *part.ports, *part.kinds)))
    return [name for name in names if not _matches(name, without)]


def _kinds(
    parts: Iterable[Found], cables: Iterable[Cable], names: Iterable[str], host_pattern: str
) -> dict[str, Kind]:
    """Return the kind of each node: host, the kind that a file states, or its tier."""
    hosts = {host for part in parts for host in part.hosts}.intersection(names)
    if host_pattern:
        hosts |= {node for cable in cables for node, _ in cable.ends if _matches(node, (host_pattern,))}
    stated = {name: kind for part in parts for name, kind in part.kinds.items()}
    return {**_tiers(cables, hosts), **stated, **dict.fromkeys(hosts, "host")}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _node(name: str, kind: Kind, parts: Iterable[Found]) -> NodeEntry:
    ports: dict[str, tuple[str, ...]] = {}
    addresses: dict[str, None] = {}
    for part in parts:
        addresses.update(dict.fromkeys(part.addresses.get(name, ())))
        for port, of_port in part.ports.get(name, {}).items():
            ports[port] = tuple(dict.fromkeys((*ports.get(port, ()), *of_port)))
    return NodeEntry(name=name, kind=kind, addresses=tuple(addresses), ports=ports)


def _cables(parts: Iterable[Found], conflicts: list[str] | None) -> list[Cable]:
    far_of: dict[End, tuple[End, str]] = {}
    cables: dict[tuple[End, End], int] = {}
    for cable in (cable for part in parts for cable in part.cables):
        near, far = cable.ends
        if near.node == far.node:
            continue  # a loop plug, or two ports of one chassis: no link of the fabric
        conflict = _conflict(cable, far_of)
        if conflict and conflicts is None:
            raise BadImport(conflict)
        if conflict and conflicts is not None:
            conflicts.append(conflict)
            continue
        far_of.setdefault(near, (far, cable.place))
        far_of.setdefault(far, (near, cable.place))
        key = (near, far) if (far, near) not in cables else (far, near)
        cables[key] = max(cables.get(key, 0), cable.rate_bps)
    return [Cable(ends, rate_bps) for ends, rate_bps in cables.items()]


def _conflict(cable: Cable, far_of: Mapping[End, tuple[End, str]]) -> str:
    """Return a line about another cable at one of this cable's ports; empty if there is none."""
    near, far = cable.ends
    for one, other in ((near, far), (far, near)):
        wired_to, place = far_of.get(one, (other, ""))
        if wired_to != other:
            first, second = (
                end_id(*end) + (f" ({text})" if text else "")
                for end, text in ((wired_to, place), (other, cable.place))
            )
            return f"{end_id(*one)} is wired to {first} and to {second}"
    return ""


def _tiers(cables: Iterable[Cable], hosts: set[str]) -> dict[str, Kind]:
    """Return the kind of each switch from its distance to the nearest host."""
    neighbours: dict[str, set[str]] = {}
    for cable in cables:
        a, b = (end.node for end in cable.ends)
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    reached_nodes, edge, tier, kinds = set(hosts), set(hosts), 0, {}
    while edge:
        tier += 1
        edge = {other for node in edge for other in neighbours.get(node, ())} - reached_nodes
        reached_nodes |= edge
        kinds.update({node: _KIND_OF_TIER.get(tier, "switch") for node in edge})
    return kinds


def kind_of_role(role: str) -> Kind | None:
    """Return the kind for a role, group or function, such as `leaf` or `compute`; None if there is none."""
    return _KIND_OF_ROLE.get(role.strip().lower())


def text_of(value: Any) -> str:
    """Return a value from JSON, YAML or CSV as a name; empty if it is neither text nor a whole number.

    Raises BadImport for a number that is too long to print.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    try:
        return str(value).strip()
    except ValueError as error:
        raise BadImport(f"a number: {error}") from None


@functools.lru_cache(maxsize=1)
def json_table(text: str) -> dict[str, Any]:
    """Return the object in a JSON text. Raises BadImport if the text has none."""
    if not text.lstrip()[:1] == "{":
        raise BadImport("not JSON: expected a table")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadImport(f"not JSON: {error}") from None
    return content if isinstance(content, dict) else {}


def has_key(text: str, *keys: str) -> bool:
    """Return whether a text is a JSON object with one of these keys at its top level."""
    try:
        return not json_table(text).keys().isdisjoint(keys)
    except BadImport:
        return False


@functools.lru_cache(maxsize=1)
def yaml_content(text: str) -> Any:
    """Return the content of a YAML text. Raises BadImport for invalid YAML."""
    try:
        return yaml.load(text, Loader=_BoundedLoader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError, AttributeError, LookupError) as error:
        # PyYAML raises the last two for a tag such as !!timestamp with a value of another form
        raise BadImport(f"not YAML: {' '.join(str(error).split())[:200]}") from None


class _BoundedLoader(yaml.SafeLoader):  # type: ignore[misc]
    """A YAML loader that refuses tables which merge keys (`<<`) make longer than any fabric.

    An alias is a reference and needs no memory. Merged tables are copies, so that a few lines could stand for
    gigabytes.
    """

    def flatten_mapping(self, node: Any) -> None:
        """Merge the tables of merge keys (`<<`) into a table. Raises an error if it becomes too long."""
        super().flatten_mapping(node)
        if len(node.value) > MAX_NAMES:
            raise yaml.YAMLError(f"a table of more than {MAX_NAMES} keys")


def xml_root(text: str) -> ElementTree.Element:
    """Return the root element of an XML text. Raises BadImport, also for a text with a document type."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise BadImport("XML with a document type: refused, because entities can grow without bound")
    try:
        return ElementTree.fromstring(text)  # noqa: S314 - without entities
    except (ElementTree.ParseError, UnicodeEncodeError) as error:
        raise BadImport(f"not XML: {error}") from None


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names in a Slurm host list, such as `h[1-3,07],g1`. Raises BadImport for an invalid list."""
    try:
        yield from host_names(pattern, MAX_NAMES)
    except ValueError as error:
        raise BadImport(str(error)) from None
