"""Prints the differences between two runs of a fleet audit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from fabrictime.audit.diff import Change, RunDiff, diff
from fabrictime.audit.host_names import folded
from fabrictime.audit.stored import load
from schemas.kafka.settings import KafkaSettings
from schemas.units import counted

MAX_NAMES: Final = 200
"""Largest number of characters of host names in a line."""
STYLES: Final = {
    Change.NEW_ERROR: "red",
    Change.NEW_WARNING: "yellow",
    Change.NEW_UNKNOWN: "yellow",
    Change.OTHER_CAUSE: "yellow",
    Change.FIXED: "green",
    Change.OTHER: "dim",
}


def sentence(difference: RunDiff) -> str:
    """Return a one-line summary of the differences between two runs."""
    if not (difference.checks or difference.values or difference.hosts_gone or difference.hosts_new):
        return f"{difference.after}: no change since {difference.before}"
    parts = [
        counted(sum(len(check.hosts) for check in difference.checks if check.change is change), str(change))
        for change in (Change.NEW_ERROR, Change.NEW_WARNING)
    ]
    fixed = sum(len(check.hosts) for check in difference.checks if check.change is Change.FIXED)
    return f"{difference.after} since {difference.before}: {', '.join(parts)}, {fixed} fixed"


def draw(difference: RunDiff) -> RenderableType:
    """Return the differences as a tree for rich: new errors first, then other changes, values and hosts."""
    tree = Tree(Text(f"{difference.before} to {difference.after}", "bold"))
    for change, checks in groupby(difference.checks, key=lambda item: item.change):
        branch = tree.add(Text(str(change), STYLES[change]))
        for check in checks:
            leaf = branch.add(
                Text.assemble(f"{check.title} ({check.check})  ", (_names(check.hosts), "bold"))
            )
            leaf.add(Text(f"{check.before} > {check.after}"))
            if check.remedy:
                leaf.add(Text(check.remedy, "italic"))
    if difference.values:
        branch = tree.add("values")
        for value in difference.values:
            name = f"{value.name} of {value.subject}" if value.subject else value.name
            text = f"{name} ({value.check}): {value.before} > {value.after}  "
            branch.add(Text.assemble(text, (_names(value.hosts), "bold")))
    for line in _host_lines(difference):
        tree.add(Text(line))
    return Group(tree, Text(sentence(difference), "bold"))


def _host_lines(difference: RunDiff) -> Iterator[str]:
    for hosts, run in ((difference.hosts_gone, difference.before), (difference.hosts_new, difference.after)):
        if hosts:
            yield f"only in {run}: {_names(hosts)}"


def _names(hosts: tuple[str, ...]) -> str:
    names = folded(hosts)
    short = names if len(names) <= MAX_NAMES else f"{names[:MAX_NAMES]}…"
    return short if len(hosts) == 1 else f"{counted(len(hosts), 'host')} {short}"


def main(before: str, after: str, log: Callable[[], KafkaSettings], *, as_json: bool) -> int:
    """Print the differences between two runs; return 1 if an error is new, else 0. Raises ValueError."""
    difference = diff(load(before, log), load(after, log))
    if as_json:
        print(json.dumps(asdict(difference)))
    else:
        Console().print(draw(difference), highlight=False)
    return int(difference.is_worse)
