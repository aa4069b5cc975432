"""`fabrictime topology export`: from a file, from the traced fabric, and compared with an earlier export."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fabrictime.commands.views.topology_command import topology_app
from fabrictime.state.traced_fabric import file_of, picture_of
from tests.fabrictime.commands.views.test_topology import rails


def run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(topology_app, ["export", *map(str, arguments)])
    return done.exit_code, done.output


def measured(folder: Path) -> Path:
    """Write the topology that the traces of four hosts with two rails show."""
    path = folder / "topology.json"
    path.write_text(file_of(picture_of(*rails({}))).model_dump_json())
    return path


def test_the_traced_rails_are_a_group(tmp_path: Path) -> None:
    code, text = run("slurm-tree", "--file", measured(tmp_path))
    assert (code, text) == (0, "SwitchName=l0 Nodes=h[1-4]\n")


def test_a_difference_to_the_earlier_export_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    topology, earlier = measured(tmp_path), tmp_path / "topology.conf"
    assert run("slurm-tree", "--file", topology, "-o", earlier) == (0, "")
    assert run("slurm-tree", "--file", topology, "--check", earlier) == (0, "")
    earlier.write_text("SwitchName=l0 Nodes=h[1-5]\n")
    code, text = run("slurm-tree", "--file", topology, "--check", earlier)
    assert code == 1
    assert "exported: SwitchName=l0 Nodes=h[1-5]" in text
    assert "measured: SwitchName=l0 Nodes=h[1-4]" in text


def test_a_format_or_network_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    topology = measured(tmp_path)
    code, text = run("slurm", "--file", topology)
    names = "slurm-tree, slurm-block, slurm-yaml, kubernetes-labels, json"
    assert (code, text) == (2, f"fabrictime: format 'slurm': expected one of {names}\n")
    code, text = run("json", "--file", topology, "--network", "storage")
    assert code == 2
    assert "network 'storage': expected one of" in text


def test_without_a_running_pipeline_one_line_is_printed(tmp_path: Path) -> None:
    code, text = run("json", "--dir", tmp_path)
    assert code == 1
    assert len(text.splitlines()) == 1
