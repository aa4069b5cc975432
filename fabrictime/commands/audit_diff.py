"""Prints the difference of two runs of a fleet audit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from fabrictime.audit.diff import Change, RunDiff, diff
from fabrictime.audit.host_names import folded
from fabrictime.audit.stored import load
from fabrictime.state.units import counted
from schemas.kafka.settings import KafkaSettings

MAX_NAMES: Final = 200
"""Characters of host names."""
STYLES: Final = {
    Change.NEW_ERROR: "red",
    Change.NEW_WARNING: "yellow",
    Change.NEW_UNKNOWN: "yellow",
    Change.OTHER_CAUSE: "yellow",
    Change.FIXED: "green",
    Change.OTHER: "dim",
}


def sentence(found: RunDiff) -> str:
    """Return the difference in one line."""
    if not (found.checks or found.values or found.hosts_gone or found.hosts_new):
        return f"{found.after}: no change since {found.before}"
    parts = [
        f"{counted(sum(len(each.hosts) for each in found.checks if each.change is change), str(change))}"
        for change in (Change.NEW_ERROR, Change.NEW_WARNING)
    ]
    fixed = sum(len(each.hosts) for each in found.checks if each.change is Change.FIXED)
    return f"{found.after} since {found.before}: {', '.join(parts)}, {fixed} fixed"


def draw(found: RunDiff) -> RenderableType:
    """Return the tree for rich: new errors first, then the other changes, values and hosts."""
    tree = Tree(Text(f"{found.before} to {found.after}", "bold"))
    for change, checks in groupby(found.checks, key=lambda each: each.change):
        branch = tree.add(Text(str(change), STYLES[change]))
        for each in checks:
            leaf = branch.add(Text.assemble(f"{each.title} ({each.check})  ", (_names(each.hosts), "bold")))
            leaf.add(Text(f"{each.before} > {each.after}"))
            if each.remedy:
                leaf.add(Text(each.remedy, "italic"))
    if found.values:
        branch = tree.add("values")
        for value in found.values:
            name = f"{value.name} of {value.subject}" if value.subject else value.name
            text = f"{name} ({value.check}): {value.before} > {value.after}  "
            branch.add(Text.assemble(text, (_names(value.hosts), "bold")))
    for line in _host_lines(found):
        tree.add(Text(line))
    return Group(tree, Text(sentence(found), "bold"))


def _host_lines(found: RunDiff) -> Iterator[str]:
    for hosts, run in ((found.hosts_gone, found.before), (found.hosts_new, found.after)):
        if hosts:
            yield f"only in {run}: {_names(hosts)}"


def _names(hosts: tuple[str, ...]) -> str:
    names = folded(hosts)
    short = names if len(names) <= MAX_NAMES else f"{names[:MAX_NAMES]}…"
    return short if len(hosts) == 1 else f"{counted(len(hosts), 'host')} {short}"


def main(before: str, after: str, cluster: KafkaSettings | str, *, as_json: bool) -> int:
    """Print the difference, and return the exit code: 1 if there is a new error.

    Raises ValueError for a run that cannot be read.
    """
    found = diff(load(before, cluster), load(after, cluster))
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        Console().print(draw(found), highlight=False)
    return int(found.is_worse)
