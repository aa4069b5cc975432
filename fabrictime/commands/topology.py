"""Shows the traced fabric in the terminal: switches by tier, cables with their paths, miswirings.

Inputs are `PathMaps`, the inventory, and the topology file if there is one. The command prints a drawing,
JSON or a verdict for scripts, or writes a topology file. It marks NICs on another leaf than their rail's.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.clock import ANNOUNCED_S
from schemas import codec
from schemas.ids import cable_id, natural
from schemas.kafka.reader import BEGINNING, Message, TopicReader
from schemas.topics import INVENTORY, PATHS
from schemas.topology import (
    CableEntry,
    End,
    Kind,
    NodeEntry,
    Topology,
    TopologyError,
    TopologyFile,
    TopologySource,
    nic_end,
    split_end,
)
from streams.links.wiring import Groups, Misfit, address_of, by_name, is_address, misfits_of
from streams.runtime.route_table import RouteTable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from fabrictime.runtime.config import Config

TIERS: Final = ("host", "leaf", "spine", "core")
COLUMNS: Final = 16
"""Switches of the upper tier that fit into a matrix."""
LINES: Final = 12
WATCH_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class CableLine:
    """A cable: its lower and upper node and end, the paths that cross it upwards and downwards, its rate."""

    cable: str
    lower: str
    upper: str
    up: int
    down: int
    rate_bps: int
    listed: bool

    @property
    def seen(self) -> bool:
        """Whether any path crosses it."""
        return bool(self.up or self.down)


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A host or a switch. `addresses`: those that stand for it where nothing names it."""

    node: str
    tier: int
    rail: int | None
    nics: tuple[str, ...]
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """The traced fabric."""

    nodes: list[NodeLine]
    cables: list[CableLine]
    misfits: list[Misfit]
    contradictions: list[tuple[str, int]]
    """A contradiction with the topology file, and the number of paths that show it."""
    paths: int
    complete: int
    found: dict[str, int]
    silent: list[str]
    """NICs that announce themselves and have no known path."""
    unreadable: int = 0

    @property
    def unseen(self) -> list[CableLine]:
        """Cables that the file lists and no path crosses."""
        return [line for line in self.cables if line.listed and not line.seen]

    def summary(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            **{_plural(kind): sum(TIERS[node.tier] == kind for node in self.nodes) for kind in TIERS},
            "cables": len(self.cables),
            "unseen": len(self.unseen),
            "paths": self.paths,
            "complete": self.complete,
            "found": self.found,
            "misfits": len(self.misfits),
            "contradictions": sum(count for _, count in self.contradictions),
            "silent": len(self.silent),
        }

    def wrong(self) -> list[str]:
        """Return a line for each reason why the fabric is not as it should be; none: it is."""
        if not self.paths:
            return [f"no path in {PATHS.name}, expected at least one"]
        lines = [f"{m.nic}: rail {m.rail} on {m.leaf}: {m.evidence}" for m in self.misfits]
        lines += [f"{text} ({count} paths)" for text, count in self.contradictions]
        lines += [f"{line.cable}: no path crosses it" for line in self.unseen]
        lines += [f"{nic}: nothing is known of its paths" for nic in self.silent]
        if self.complete < self.paths:
            lines.append(f"{self.paths - self.complete} of {self.paths} paths are not known from end to end")
        return lines


def picture_of(
    book: RouteTable,
    nics: Mapping[str, Mapping[str, Any]],
    topology: Topology | None = None,
    unreadable: int = 0,
) -> Picture:
    """Return the fabric that the paths show. `nics`: the announcements of those that are alive."""
    topology = topology if topology is not None else Topology()
    groups = Groups()
    crossed: Counter[str] = Counter()
    found: Counter[str] = Counter()
    contradictions: Counter[str] = Counter()
    first_hop: dict[str, str] = {}
    known: set[str] = set()
    paths = complete = 0
    for nic, peer in book.pairs():
        for line in book.paths(nic, peer).values():
            paths += 1
            complete += line.complete
            found[line.found] += 1
            if line.contradiction is not None:
                contradictions[line.contradiction] += 1
            if line.links:
                known.add(nic)
            crossed.update(line.links)
            ends = [_ends(link) for link in line.links]
            if line.complete:
                for (_, far), (near, _) in pairwise(ends):
                    groups.join(far.node, near.node)
            if ends and ends[0][0] == nic_end(nic):
                first_hop[nic] = ends[0][1].node
    listed = topology.cable_ids()
    cables = sorted({cable_id(link) for link in crossed} | listed)
    hosts = {nic_end(name).node for pair in book.pairs() for name in pair} | {
        nic_end(name).node for name in nics
    }
    tiers = _tiers(cables, hosts, groups, topology)
    of_leaf: dict[str, list[str]] = defaultdict(list)
    for nic, node in sorted(first_hop.items()):
        of_leaf[groups.find(node)].append(nic)
    names = sorted(tiers, key=lambda name: (tiers[name], by_name(name)))
    members: dict[str, set[str]] = defaultdict(set)
    for cable in cables:
        for text in cable.split("<>"):
            node = split_end(text).node
            if groups.find(node) in tiers and is_address(node):
                members[groups.find(node)].add(node)
    nodes = [
        NodeLine(
            name,
            tiers[name],
            topology.nodes[name].rail if name in topology.nodes else _rail(of_leaf.get(name, ()), nics),
            tuple(of_leaf.get(name, ())),
            tuple(sorted(members[name], key=by_name)),
        )
        for name in names
    ]
    lines = [_cable_line(cable, crossed, tiers, groups, nics, topology, cable in listed) for cable in cables]
    return Picture(
        nodes,
        sorted(lines, key=lambda line: (by_name(line.lower), by_name(line.upper), line.cable)),
        misfits_of(
            {nic: groups.find(node) for nic, node in first_hop.items()},
            {nic: record["rail"] for nic, record in nics.items()},
            topology,
        ),
        contradictions.most_common(),
        paths,
        complete,
        dict(sorted(found.items())),
        sorted((nic for nic in nics if nic not in known), key=natural),
        unreadable,
    )


def _tiers(cables: Iterable[str], hosts: set[str], groups: Groups, topology: Topology) -> dict[str, int]:
    """Return the distance of each node from the nearest host, or the tier of the topology file."""
    near: dict[str, set[str]] = defaultdict(set)
    for cable in cables:
        a, b = (groups.find(split_end(text).node) for text in cable.split("<>"))
        near[a].add(b)
        near[b].add(a)
    found = {groups.find(host): 0 for host in hosts if groups.find(host) in near}
    edge = list(found)
    while edge:
        further = []
        for node in edge:
            for other in near[node]:
                if other not in found:
                    found[other] = min(found[node] + 1, len(TIERS) - 1)
                    further.append(other)
        edge = further
    for node in near:
        tier = topology.tier(node)
        found[node] = tier if tier is not None else found.get(node, len(TIERS) - 1)
    return found


def _cable_line(
    cable: str,
    crossed: Mapping[str, int],
    tiers: Mapping[str, int],
    groups: Groups,
    nics: Mapping[str, Mapping[str, Any]],
    topology: Topology,
    listed: bool,
) -> CableLine:
    a, b = (split_end(text) for text in cable.split("<>"))
    if tiers[groups.find(a.node)] > tiers[groups.find(b.node)]:
        a, b = b, a
    up, down = f"{a.node}:{a.port}>{b.node}:{b.port}", f"{b.node}:{b.port}>{a.node}:{a.port}"
    rate_bps = topology.rate_bps(up) or nics.get(f"{a.node}/{a.port}", {}).get("speed_bps") or 0
    return CableLine(
        cable,
        groups.find(a.node),
        groups.find(b.node),
        crossed.get(up, 0),
        crossed.get(down, 0),
        rate_bps,
        listed,
    )


def _rail(of_leaf: Sequence[str], nics: Mapping[str, Mapping[str, Any]]) -> int | None:
    rails = Counter(nics[nic]["rail"] for nic in of_leaf if nics.get(nic, {}).get("rail") is not None)
    if not rails:
        return None
    rail, count = rails.most_common(1)[0]
    return int(rail) if 2 * count > rails.total() else None


def _ends(link: str) -> tuple[End, End]:
    near, _, far = link.partition(">")
    return split_end(near), split_end(far)


def file_of(found: Picture) -> TopologyFile:
    """Return the traced topology as a topology file; addresses stand for unknown names."""
    kinds: dict[int, Kind] = {0: "host", 1: "leaf", 2: "spine", 3: "core"}
    called = {
        node.node: f"{kinds[node.tier]}-{node.node}" if is_address(node.node) else node.node
        for node in found.nodes
    }
    group_of = {address: node.node for node in found.nodes for address in node.addresses}
    ports: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    shared: dict[str, set[str]] = defaultdict(set)
    cables = []
    for line in found.cables:
        ends = []
        for text in line.cable.split("<>"):
            end = split_end(text)
            node = group_of.get(end.node, end.node)
            address = address_of(end.node)
            port = end.port
            if address is not None and end.port == "ip":
                port = end.node
                ports[node][port] = (address,)
            elif address is not None:
                ports[node].setdefault(port, ())
                shared[node].add(address)
            else:
                ports[node].setdefault(port, ())
            ends.append(f"{called.get(node, node)}:{port}")
        cables.append(CableEntry(ends=(ends[0], ends[1]), rate_bps=line.rate_bps))
    return TopologyFile(
        nodes=tuple(
            NodeEntry(
                name=called[node.node],
                kind=kinds[node.tier],
                rail=node.rail if node.tier == 1 else None,
                addresses=tuple(sorted(shared[node.node])),
                ports=ports[node.node],
            )
            for node in found.nodes
        ),
        links=tuple(cables),
    )


# ------------------------------------------------------------------------------------------ the log


class Reader:
    """Follows both topics without a group."""

    def __init__(self, bootstrap: str, registry: codec.Registry | None = None) -> None:
        """Connect. Raises ValueError if the log does not answer or a topic does not exist."""
        self.book = RouteTable()
        self.unreadable = 0
        self._nics: dict[str, tuple[dict[str, Any], int]] = {}
        self._registry = registry
        self._reader = TopicReader.open(bootstrap, {PATHS: BEGINNING, INVENTORY: BEGINNING})

    def close(self) -> None:
        """Leave the log."""
        self._reader.close()

    def catch_up(self) -> None:
        """Read both topics to their end. Raises ValueError if the log stops answering."""
        for message in self._reader.read_to_end():
            self._take(message)

    def follow(self, wait_s: float) -> bool:
        """Take the messages that come within `wait_s`; return whether any came."""
        messages = self._reader.poll(wait_s)
        for message in messages:
            self._take(message)
        return bool(messages)

    def _take(self, message: Message) -> None:
        try:
            if message.topic == PATHS.name:
                self.book.take(message.key_bytes, message.value, self._registry)
            elif message.value is None:
                self._nics.pop(message.key, None)
            else:
                record = codec.decode(message.value, INVENTORY.record, self._registry)
                self._nics[record["nic"]] = (record, message.append_ns // 1_000_000)
        except codec.BadRecord:
            self.unreadable += 1

    def nics(self) -> dict[str, dict[str, Any]]:
        """Return the announcements of the NICs that are alive."""
        oldest_ms = (time.time() - ANNOUNCED_S) * 1e3
        return {
            name: record
            for name, (record, append_ms) in self._nics.items()
            if append_ms >= oldest_ms and record["probe_port"]
        }

    def picture(self, topology: Topology | None) -> Picture:
        """Return the fabric as it is known now."""
        return picture_of(self.book, self.nics(), topology, self.unreadable)


def main(
    bootstrap: str,
    *,
    topology: Topology | None = None,
    as_json: bool = False,
    file: Path | None = None,
    registry: codec.Registry | None = None,
) -> Picture:
    """Print the fabric once, or write it to `file`, and return it. Raises ValueError where the log cannot be
    read, OSError where the file cannot be written."""
    reader = Reader(bootstrap, registry)
    try:
        reader.catch_up()
    finally:
        reader.close()
    found = reader.picture(topology)
    if file is not None:
        file.write_text(file_of(found).model_dump_json(indent=1) + "\n", encoding="utf-8")
    elif as_json:
        print(json_of(found))
    else:
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console = Console(width=200)
        console.print(draw(found), highlight=False)
    return found


def source_of(config: Config) -> TopologySource:
    """Return the topology file of the settings, else of the `up` that runs on the data directory, else none.

    Raises TopologyError where it cannot be used.
    """
    path: Path | None = config.value("probes", "topology_file")
    if path is None:
        own = config.up.data_directory / "run" / "topology.json"
        path = own if own.is_file() else None
    return TopologySource(None if path is None else Path(path))


def watch(bootstrap: str, source: TopologySource, *, registry: codec.Registry | None = None) -> None:
    """Show the fabric live until SIGINT. Raises ValueError where the log cannot be read at the start."""
    from rich.live import Live

    def now() -> RenderableType:
        with contextlib.suppress(TopologyError):  # an unusable file: the former content stays
            source.refresh()
        return draw(reader.picture(source.topology))

    reader = Reader(bootstrap, registry)
    try:
        reader.catch_up()
        with Live(now(), auto_refresh=False, screen=True) as live:
            while True:
                reader.follow(WATCH_S)
                live.update(now(), refresh=True)
    except KeyboardInterrupt:
        return
    finally:
        reader.close()


def json_of(found: Picture) -> str:
    """Return the picture as one line of JSON."""
    return json.dumps(
        {
            "summary": found.summary(),
            "nodes": [asdict(node) for node in found.nodes],
            "cables": [asdict(line) | {"seen": line.seen} for line in found.cables],
            "misfits": [asdict(misfit) for misfit in found.misfits],
            "contradictions": [{"text": text, "paths": count} for text, count in found.contradictions],
            "silent": found.silent,
        }
    )


# ---------------------------------------------------------------------------------------------- display


def draw(found: Picture) -> RenderableType:
    """Return the picture for a terminal."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line, style) for line, style in _summary(found)]
    for tier in range(len(TIERS) - 2, 0, -1):
        parts += _between(found, tier)
    parts += _listed(
        "rails that are wired wrong",
        [f"{m.nic}  rail {m.rail} on {m.leaf}: {m.evidence}" for m in found.misfits],
        "red",
    )
    disagreements = [f"{text} ({count} paths)" for text, count in found.contradictions]
    parts += _listed("contradictions of the topology file", disagreements, "yellow")
    parts += _listed("cables that no path crosses", [line.cable for line in found.unseen], "yellow")
    parts += _listed("NICs of whose paths nothing is known", found.silent, "yellow")
    return Group(*parts)


def _summary(found: Picture) -> list[tuple[str, str]]:
    if not found.paths:
        return [(f"no path in {PATHS.name} yet: two hosts must probe each other", "yellow")]
    tiers = Counter(node.tier for node in found.nodes)
    text = ", ".join(
        f"{tiers[t]:,} {TIERS[t] if tiers[t] == 1 else _plural(TIERS[t])}" for t in sorted(tiers)
    )
    seen = sum(line.seen for line in found.cables)
    lines = [
        (text, "bold"),
        (
            f"{seen:,} of {len(found.cables):,} cables are crossed by paths",
            "" if not found.unseen else "yellow",
        ),
    ]
    how = ", ".join(f"{count:,} {name}" for name, count in found.found.items())
    whole = (
        "all known from end to end"
        if found.complete == found.paths
        else (f"{found.paths - found.complete:,} not known from end to end")
    )
    lines.append(
        (f"{found.paths:,} paths: {how}; {whole}", "" if found.complete == found.paths else "yellow")
    )
    if found.unreadable:
        lines.append((f"{found.unreadable:,} records could not be read", "yellow"))
    return lines


def _plural(kind: str) -> str:
    return "leaves" if kind == "leaf" else f"{kind}s"


def _between(found: Picture, tier: int) -> list[RenderableType]:
    """Return the cables from one tier to the next as a table: how many paths go up and down each."""
    from rich.table import Table
    from rich.text import Text

    lower = [node for node in found.nodes if node.tier == tier]
    upper = [node for node in found.nodes if node.tier == tier + 1]
    if not lower or (tier > 1 and not upper):
        return []
    crossing: dict[tuple[str, str], list[CableLine]] = defaultdict(list)
    for line in found.cables:
        crossing[line.lower, line.upper].append(line)
    odd = {misfit.nic for misfit in found.misfits}
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.add_column(TIERS[tier], no_wrap=True)
    wide = len(upper) > COLUMNS
    if any(node.rail is not None for node in lower):
        table.add_column("rail", justify="right")
    if wide:
        table.add_column(f"cables to {_plural(TIERS[tier + 1])}", justify="right")
        table.add_column("crossed", justify="right")
    else:
        for node in upper:
            table.add_column(node.node, justify="right", no_wrap=True)
    if tier == 1:
        table.add_column("NICs")
    rows = lower if len(lower) <= 4 * LINES else lower[: 4 * LINES]
    for node in rows:
        cells: list[str | Text] = [node.node]
        if any(each.rail is not None for each in lower):
            cells.append("" if node.rail is None else str(node.rail))
        if wide:
            own = [line for each in upper for line in crossing[node.node, each.node]]
            seen = sum(line.seen for line in own)
            cells += [str(len(own)), Text(str(seen), "" if seen == len(own) else "yellow")]
        else:
            cells += [_cell(crossing[node.node, each.node]) for each in upper]
        if tier == 1:
            shown = Text()
            for at, nic in enumerate(node.nics[:COLUMNS]):
                shown.append(("  " if at else "") + nic, "bold red" if nic in odd else "")
            if len(node.nics) > COLUMNS:
                shown.append(f"  and {len(node.nics) - COLUMNS} more")
            cells.append(shown)
        table.add_row(*cells)
    more = (
        [Text(f"and {len(lower) - len(rows):,} more; --json lists them", "dim")]
        if len(rows) < len(lower)
        else []
    )
    return [Text(""), table, *more]


def _cell(lines: Sequence[CableLine]) -> Text:
    """Return a pair of switches: paths up and down, '-' where no cable is known, '0' where none is
    crossed."""
    from rich.text import Text

    if not lines:
        return Text("-", "dim")
    up, down = sum(line.up for line in lines), sum(line.down for line in lines)
    text = f"{up}/{down}" + (f" ({len(lines)})" if len(lines) > 1 else "")
    return Text(text, "" if all(line.seen for line in lines) else "yellow")


def _listed(title: str, lines: Sequence[str], style: str) -> list[RenderableType]:
    from rich.text import Text

    if not lines:
        return []
    more = [f"and {len(lines) - LINES:,} more; --json lists them"] if len(lines) > LINES else []
    return [
        Text(""),
        Text(title, f"bold {style}"),
        *(Text(f"  {line}", style) for line in [*lines[:LINES], *more]),
    ]
