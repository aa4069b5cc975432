"""The result that all readers of other tools' files return, and its conversion to a topology file. Pure.

A reader returns `Found`: cables, hosts, and the known kinds, addresses and ports of nodes. `merged` combines
the files of many hosts or switches. A cable that both of its ends report counts once. It is an error if two
files connect one port differently.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree import ElementTree

from schemas.ids import End, end_id
from schemas.topology import CableEntry, Kind, NodeEntry, TopologyFile

MAX_BYTES: Final = 64 << 20
MAX_NAMES: Final = 200_000
"""Largest number of names that one pattern of hosts may stand for."""
_KIND_OF_TIER: Final[Mapping[int, Kind]] = {1: "leaf", 2: "spine", 3: "core"}


class BadImport(ValueError):
    """The file is not of this format, or contradicts itself; the message is one line."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts that a file may not contain: the host that it describes (empty: the stem of the file's name), the
    network device of hosts, and a pattern of the names of further hosts, such as `gpu*`.
    """

    host: str = ""
    device: str = "eth0"
    hosts: str = ""


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two ports; its rate is 0 if unknown."""

    ends: tuple[End, End]
    rate_bps: int = 0


@dataclass(slots=True)
class Found:
    """The content of one file."""

    cables: list[Cable] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    kinds: dict[str, Kind] = field(default_factory=dict)
    """Switch to its kind, if the file states it."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    """Node to its addresses that belong to no port."""
    ports: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Node to port to the port's addresses."""

    def connect(self, near: tuple[str, str], far: tuple[str, str], rate_bps: int = 0) -> None:
        """Add a cable. Raises BadImport if a node's or port's name is invalid."""
        for node, port in (near, far):
            try:
                end_id(node, port)
            except ValueError as error:
                raise BadImport(str(error)) from None
        self.cables.append(Cable((End(*near), End(*far)), rate_bps))


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files. `fits(text)` says whether a text probably has it. `read` returns the content of a
    text, or raises BadImport.
    """

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str, Hints], Found]


def merged(every: Iterable[Found], hosts_pattern: str = "") -> TopologyFile:
    """Return one topology file. A switch's tier is the one that a file states, else its distance from the
    hosts.

    Raises BadImport if two files connect one port differently.
    """
    parts = list(every)
    cables = _cables(parts)
    hosts = {host for part in parts for host in part.hosts}
    if hosts_pattern:
        nodes = {end.node for cable in cables for end in cable.ends}
        hosts |= {node for node in nodes if fnmatch.fnmatchcase(node, hosts_pattern)}
    kinds = {**_tiers(cables, hosts), **{name: kind for part in parts for name, kind in part.kinds.items()}}
    kinds.update(dict.fromkeys(hosts, "host"))
    names: dict[str, None] = dict.fromkeys(end.node for cable in cables for end in cable.ends)
    for part in parts:
        names.update(dict.fromkeys([*part.hosts, *part.addresses, *part.ports, *part.kinds]))
    return TopologyFile(
        nodes=tuple(_node(name, kinds.get(name, "switch"), parts) for name in names),
        links=tuple(
            CableEntry(ends=(end_id(*cable.ends[0]), end_id(*cable.ends[1])), rate_bps=cable.rate_bps)
            for cable in cables
        ),
    )


def _node(name: str, kind: Kind, parts: Iterable[Found]) -> NodeEntry:
    ports: dict[str, tuple[str, ...]] = {}
    addresses: dict[str, None] = {}
    for part in parts:
        addresses.update(dict.fromkeys(part.addresses.get(name, ())))
        for port, of_port in part.ports.get(name, {}).items():
            ports[port] = tuple(dict.fromkeys((*ports.get(port, ()), *of_port)))
    return NodeEntry(name=name, kind=kind, addresses=tuple(addresses), ports=ports)


def _cables(parts: Iterable[Found]) -> list[Cable]:
    far_of: dict[End, End] = {}
    cables: dict[tuple[End, End], int] = {}
    for cable in (cable for part in parts for cable in part.cables):
        near, far = cable.ends
        if near.node == far.node:
            continue  # a loop plug, or two ports of one chassis: no link of the fabric
        for one, other in ((near, far), (far, near)):
            wired_to = far_of.setdefault(one, other)
            if wired_to != other:
                raise BadImport(f"{end_id(*one)} is wired to {end_id(*wired_to)} and to {end_id(*other)}")
        key = (near, far) if (far, near) not in cables else (far, near)
        cables[key] = max(cables.get(key, 0), cable.rate_bps)
    return [Cable(ends, rate_bps) for ends, rate_bps in cables.items()]


def _tiers(cables: Iterable[Cable], hosts: set[str]) -> dict[str, Kind]:
    """Return switch to its kind, from its distance to the nearest host."""
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


def text_of(value: Any) -> str:
    """Return a value of JSON, YAML or CSV as a name; empty if it is neither text nor a whole number."""
    return str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""


def xml_root(text: str) -> ElementTree.Element:
    """Return the root element of an XML text. Raises BadImport, also for a text with a document type."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise BadImport("XML with a document type: refused, because entities can grow without bound")
    try:
        return ElementTree.fromstring(text)  # noqa: S314 - without entities
    except ElementTree.ParseError as error:
        raise BadImport(f"not XML: {error}") from None


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names of Slurm's host list, such as `h[1-3,07],g1`. Raises BadImport."""
    count = 0
    for item in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", pattern):
        for name in _expanded_item(item):
            count += 1
            if count > MAX_NAMES:
                raise BadImport(f"host list {pattern[:60]!r}: more than {MAX_NAMES} names")
            yield name


def _expanded_item(item: str) -> Iterator[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)", item)
    if match is None:
        if item:
            yield item
        return
    head, ranges, rest = match.groups()
    for part in ranges.split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(low) > 9 or len(high) > 9:
            raise BadImport(f"host list {item[:60]!r}: expected numbers in the brackets")
        for number in range(int(low), int(high or low) + 1):
            for tail in _expanded_item(rest) if rest else ("",):
                yield f"{head}{number:0{len(low)}d}{tail}"
