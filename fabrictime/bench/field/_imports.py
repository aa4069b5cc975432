"""Runs `fabrictime topology import` on the files of a case; compares topology, text and exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typer.testing import CliRunner

from fabrictime.bench.field._cases import BadCase, Case, Table, text_fault
from fabrictime.commands.views.topology_command import topology_app

OPTIONS = ("format", "host", "device", "hosts")


@dataclass(frozen=True, slots=True)
class Imported:
    """The exit code, topology and text of an import command."""

    exit_code: int
    text: str
    nodes: dict[str, str]
    """Node to its kind."""
    cables: set[frozenset[str]]
    ports: int
    """Number of ports of hosts."""

    @property
    def is_silent_and_empty(self) -> bool:
        """Whether the command succeeds although it states neither a cable nor a NIC."""
        return self.exit_code == 0 and not self.cables and not self.ports


def import_case(case: Case) -> Imported:
    """Run the command on the files of a case. Raises BadCase."""
    table = case.table
    if not table.get("files"):
        raise BadCase(f"{case.case_id}: expected a table of files")
    with TemporaryDirectory() as folder:
        paths = []
        for name, content in table["files"].items():
            path = Path(folder) / name
            path.write_text(content, encoding="utf-8")
            paths.append(str(path))
        output = Path(folder) / "imported.json"
        arguments = ["import", *paths, "--output", str(output), *_options(table.get("options", {}))]
        done = CliRunner().invoke(topology_app, arguments)
        topology = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else {}
    return _imported(done.exit_code, done.output, topology)


def _options(table: Table) -> Iterable[str]:
    for name in OPTIONS:
        if name in table:
            yield from (f"--{name}", table[name])
    for pattern in table.get("without", ()):
        yield from ("--without", pattern)
    if table.get("skip_conflicts"):
        yield "--skip-conflicts"


def _imported(exit_code: int, text: str, topology: dict[str, Any]) -> Imported:
    nodes = topology.get("nodes", [])
    return Imported(
        exit_code,
        text,
        {node["name"]: node.get("kind", "switch") for node in nodes},
        {frozenset(link["ends"]) for link in topology.get("links", [])},
        sum(len(node.get("ports", {})) for node in nodes if node.get("kind") == "host"),
    )


def fault_of(case: Case) -> str:
    """Return an error text if the import of a case is wrong; empty if it is right. Raises BadCase."""
    return imported_fault(case, import_case(case))


def imported_fault(case: Case, imported: Imported) -> str:
    """Return an error text if an import is wrong; empty if it is right."""
    expect = case.table["expect"]
    hosts = {name for name, kind in imported.nodes.items() if kind == "host"}
    compared: list[tuple[str, Any, Any]] = [
        ("hosts", sorted(hosts), sorted(expect["hosts"]) if "hosts" in expect else None),
        ("number of hosts", len(hosts), expect.get("host_count")),
        ("number of switches", len(imported.nodes) - len(hosts), expect.get("switch_count")),
        ("number of cables", len(imported.cables), expect.get("cable_count")),
        ("number of ports of hosts", imported.ports, expect.get("port_count")),
        ("cables", _sorted(imported.cables), _cables(expect)),
    ]
    compared += [(f"kind of {name}", imported.nodes.get(name), kind) for name, kind in _kinds(expect)]
    allowed = expect.get("exit_code", 0)
    if imported.exit_code not in (allowed if isinstance(allowed, list) else [allowed]):
        return f"exit code: {imported.exit_code}, expected {allowed}: {imported.text.strip()[:200]}"
    for name, value, right in compared:
        if right is not None and value != right:
            return f"{name}: {value}, expected {right}: {imported.text.strip()[:200]}"
    return text_fault(expect.get("contains", ()), expect.get("lacks", ()), imported.text)


def _kinds(expect: Table) -> Iterable[tuple[str, str]]:
    yield from expect.get("kinds", {}).items()


def _cables(expect: Table) -> list[list[str]] | None:
    if "cables" not in expect:
        return None
    return _sorted({frozenset(cable.split()) for cable in expect["cables"]})


def _sorted(cables: Iterable[frozenset[str]]) -> list[list[str]]:
    return sorted(sorted(cable) for cable in cables)
