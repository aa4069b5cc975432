"""The command: JSON of the contract, text, exit codes."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from fabrictime.commands.cli import app
from tests.fabrictime.postmortem.job_files import call, waiting, write_dumps

KEYS = ["folder", "formats", "unread", "ranks", "verdict", "confidence", "culprits", "text", "evidence"]


def run(*arguments):
    nowhere = ["--dir", "/nonexistent/fabrictime"]
    return CliRunner().invoke(app, ["explain", *map(str, arguments), *nowhere])


def test_the_command_prints_one_json_object_and_a_text(tmp_path):
    done = [call(seq) for seq in range(1, 5)]
    write_dumps(tmp_path, lambda rank: done if rank == 3 else [*done, waiting()])
    result = run("--folder", tmp_path, "--json")
    assert result.exit_code == 0
    assert list(json.loads(result.stdout)) == [*KEYS, "also_possible", "missing", "transports", "network"]
    assert "/nonexistent/fabrictime" in json.loads(result.stdout)["network"]["missing"]
    text = run("--folder", tmp_path).stdout
    assert "HANG" in text
    assert "network: not compared: " in text
    assert "culprits: rank 3" in text
    assert run("--folder", tmp_path, "--check").exit_code == 1


def test_check_passes_for_a_healthy_job(tmp_path):
    write_dumps(tmp_path, lambda rank: [call(seq) for seq in range(1, 9)])
    assert run("--folder", tmp_path, "--check").exit_code == 0


def test_a_folder_of_no_known_form_ends_with_code_2(tmp_path):
    (tmp_path / "notes.md").write_text("nothing here")
    result = run("--folder", tmp_path)
    assert result.exit_code == 2
    assert "expected one of flight-recorder-json" in result.stderr
    assert run().exit_code == 2
