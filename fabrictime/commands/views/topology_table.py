"""Formats the traced fabric for a terminal, or as JSON: cables with their paths, and wiring faults."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from fabrictime.state.traced_fabric import TIERS, CableLine, NodeLine, Picture, plural
from schemas.topics import PATHS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

COLUMNS: Final = 16
"""Largest number of switches of the upper tier that get a column of the matrix, and of NICs in a cell."""
LINES: Final = 12


def json_of(picture: Picture) -> str:
    """Return the traced fabric as one line of JSON."""
    return json.dumps(
        {
            "summary": picture.summary(),
            "nodes": [asdict(node) for node in picture.nodes],
            "cables": [asdict(line) | {"seen": line.seen} for line in picture.cables],
            "misfits": [asdict(misfit) for misfit in picture.misfits],
            "contradictions": [{"text": text, "paths": count} for text, count in picture.contradictions],
            "misplaced": picture.misplaced,
            "silent": picture.silent,
        }
    )


class _Column(NamedTuple):
    """A column of a table with one row per node."""

    title: str
    cell: Callable[[NodeLine], str | Text]
    justify: Literal["left", "right"] = "right"
    no_wrap: bool = True


def draw(picture: Picture) -> RenderableType:
    """Return the traced fabric as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line, style) for line, style in _summary(picture)]
    for tier in range(len(TIERS) - 2, 0, -1):
        parts += _between(picture, tier)
    parts += _listed(
        "rails that are wired wrong",
        [f"{m.nic}  rail {m.rail} on {m.leaf}: {m.evidence}" for m in picture.misfits],
        "red",
    )
    parts += _listed("cables at another switch", picture.misplaced, "red")
    disagreements = [f"{text} ({count} paths)" for text, count in picture.contradictions]
    parts += _listed("contradictions of the topology file", disagreements, "yellow")
    parts += _listed("cables that no path crosses", [line.cable for line in picture.unseen], "yellow")
    parts += _listed("NICs of whose paths nothing is known", picture.silent, "yellow")
    return Group(*parts)


def _summary(picture: Picture) -> list[tuple[str, str]]:
    if not picture.paths:
        return [(f"no path in {PATHS.name} yet: two hosts must probe each other", "yellow")]
    tiers = Counter(node.tier for node in picture.nodes)
    text = ", ".join(f"{tiers[t]:,} {TIERS[t] if tiers[t] == 1 else plural(TIERS[t])}" for t in sorted(tiers))
    crossed = sum(line.seen for line in picture.cables)
    cables = f"{crossed:,} of {len(picture.cables):,} cables are crossed by paths"
    how = ", ".join(f"{count:,} {name}" for name, count in picture.paths_by_source.items())
    partial = picture.paths - picture.complete
    completeness = f"{partial:,} not known from end to end" if partial else "all known from end to end"
    lines = [
        (text, "bold"),
        (cables, "yellow" if picture.unseen else ""),
        (f"{picture.paths:,} paths: {how}; {completeness}", "yellow" if partial else ""),
    ]
    if picture.unreadable:
        lines.append((f"{picture.unreadable:,} records could not be read", "yellow"))
    return lines


def _between(picture: Picture, tier: int) -> list[RenderableType]:
    """Return a table of the cables from one tier to the next, with each cable's paths up and down."""
    from rich.table import Table
    from rich.text import Text

    lower = [node for node in picture.nodes if node.tier == tier]
    upper = [node for node in picture.nodes if node.tier == tier + 1]
    if not lower or (tier > 1 and not upper):
        return []
    columns = [
        _Column(TIERS[tier], lambda node: node.node, justify="left"),
        *_rail_column(lower),
        *_cable_columns(picture, tier, upper),
        *_nic_column(picture, tier),
    ]
    table = Table(box=None, pad_edge=False, title_justify="left")
    for column in columns:
        table.add_column(column.title, justify=column.justify, no_wrap=column.no_wrap)
    rows = lower[: 4 * LINES]
    for node in rows:
        table.add_row(*(column.cell(node) for column in columns))
    parts: list[RenderableType] = [Text(""), table]
    if len(rows) < len(lower):
        parts.append(Text(f"and {len(lower) - len(rows):,} more; --json lists them", "dim"))
    return parts


def _rail_column(nodes: Sequence[NodeLine]) -> list[_Column]:
    """Return the column with the nodes' rails, as a list; empty if no node has a rail."""
    rails = {node.node: str(node.rail) for node in nodes if node.rail is not None}
    return [_Column("rail", lambda node: rails.get(node.node, ""), no_wrap=False)] if rails else []


def _cable_columns(picture: Picture, tier: int, upper: Sequence[NodeLine]) -> list[_Column]:
    """Return a column for each node of the upper tier; if there are too many, two columns with sums."""
    crossing: dict[tuple[str, str], list[CableLine]] = defaultdict(list)
    for line in picture.cables:
        crossing[line.lower, line.upper].append(line)
    if len(upper) <= COLUMNS:
        return [
            _Column(upper_node.node, lambda node, far=upper_node: _cell(crossing[node.node, far.node]))  # type: ignore[misc]
            for upper_node in upper
        ]

    def cables_of(node: NodeLine) -> list[CableLine]:
        return [line for upper_node in upper for line in crossing[node.node, upper_node.node]]

    return [
        _Column(
            f"cables to {plural(TIERS[tier + 1])}", lambda node: str(len(cables_of(node))), no_wrap=False
        ),
        _Column("crossed", lambda node: _crossed_text(cables_of(node)), no_wrap=False),
    ]


def _crossed_text(cables: Sequence[CableLine]) -> Text:
    from rich.text import Text

    crossed = sum(line.seen for line in cables)
    return Text(str(crossed), "" if crossed == len(cables) else "yellow")


def _nic_column(picture: Picture, tier: int) -> list[_Column]:
    """Return the column of a leaf's NICs, with NICs on a wrong rail marked; empty for other tiers."""
    misfit_nics = {misfit.nic for misfit in picture.misfits}

    def cell(node: NodeLine) -> Text:
        from rich.text import Text

        text = Text()
        for at, nic in enumerate(node.nics[:COLUMNS]):
            text.append(("  " if at else "") + nic, "bold red" if nic in misfit_nics else "")
        if len(node.nics) > COLUMNS:
            text.append(f"  and {len(node.nics) - COLUMNS} more")
        return text

    return [_Column("NICs", cell, justify="left", no_wrap=False)] if tier == 1 else []


def _cell(lines: Sequence[CableLine]) -> Text:
    """Return the cell of the cables between two switches: paths up/down, '-' if no cable is known."""
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
