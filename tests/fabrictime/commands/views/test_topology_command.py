"""`fabrictime topology import`: files in, a topology file out, one line for an error."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fabrictime.commands.views.topology_command import topology_app
from schemas.topology import load_topology
from tests.fabrictime.imports.samples import PTM, SLURM, SONIC


def test_a_file_is_written_that_the_services_read(tmp_path: Path) -> None:
    source, target = tmp_path / "topology.dot", tmp_path / "topology.json"
    source.write_text(PTM)
    done = CliRunner().invoke(topology_app, ["import", str(source), "-o", str(target), "--hosts", "h*"])
    assert done.exit_code == 0, done.output
    assert done.stderr == "1 hosts, 2 switches, 2 cables\n"
    topology = load_topology(target)
    assert topology.cable_ids() == {"h1:eth0<>leaf1:swp1", "leaf1:swp49<>spine1:swp1"}
    assert topology.tier("spine1") == 2


def test_nothing_is_written_over_a_file_if_no_cable_is_stated(tmp_path: Path) -> None:
    source, target = tmp_path / "leaf1.json", tmp_path / "topology.json"
    source.write_text(SONIC.replace('"DEVICE_NEIGHBOR":', '"DEVICE_OTHERS":'))
    target.write_text("mine")
    done = CliRunner().invoke(topology_app, ["import", str(source), "-o", str(target)])
    assert done.exit_code == 1
    line = f"fabrictime: {source}: no cable between two nodes of the fabric; nothing is written\n"
    assert (done.stderr, target.read_text()) == (line, "mine")


def test_nodes_and_conflicting_cables_are_left_out_on_request(tmp_path: Path) -> None:
    source = tmp_path / "topology.conf"
    source.write_text(SLURM + "SwitchName=leaf3 Nodes=h1\n")
    done = CliRunner().invoke(topology_app, ["import", str(source)])
    conflict = "h1:eth0 is wired to leaf1:h1 (topology.conf line 2) and to leaf3:h1 (topology.conf line 6)"
    assert (done.exit_code, done.stderr) == (2, f"fabrictime: {conflict}\n")
    options = ["--skip-conflicts", "--without", "leaf2", "--without", "h0*", "-o", str(tmp_path / "out.json")]
    done = CliRunner().invoke(topology_app, ["import", str(source), *options])
    assert done.stderr == f"left out: {conflict}\n3 hosts, 2 switches, 4 cables\n"


def test_an_unknown_format_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    done = CliRunner().invoke(topology_app, ["import", str(tmp_path / "x.txt")])
    assert done.exit_code == 2
    assert done.stderr.startswith("fabrictime: ")
    assert len(done.stderr.splitlines()) == 1
