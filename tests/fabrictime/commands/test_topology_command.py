"""`fabrictime topology import`: files in, a topology file out, one line for an error."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fabrictime.commands.topology_command import topology_app
from schemas.topology import load_topology
from tests.fabrictime.imports.samples import PTM


def test_a_file_is_written_that_the_services_read(tmp_path: Path) -> None:
    source, target = tmp_path / "topology.dot", tmp_path / "topology.json"
    source.write_text(PTM)
    done = CliRunner().invoke(topology_app, ["import", str(source), "-o", str(target), "--hosts", "h*"])
    assert done.exit_code == 0, done.output
    assert done.stderr == "1 hosts, 2 switches, 2 cables\n"
    topology = load_topology(target)
    assert topology.cable_ids() == {"h1:eth0<>leaf1:swp1", "leaf1:swp49<>spine1:swp1"}
    assert topology.tier("spine1") == 2


def test_an_unknown_format_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    done = CliRunner().invoke(topology_app, ["import", str(tmp_path / "x.txt")])
    assert done.exit_code == 2
    assert done.stderr.startswith("fabrictime: ")
    assert len(done.stderr.splitlines()) == 1
