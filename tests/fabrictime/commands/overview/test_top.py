"""`top` shows the fleet on one screen, and `status` states the health of the fleet in the same sentence."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fabrictime.commands.cli import app
from fabrictime.runtime import status
from fabrictime.runtime.holder import boot_s


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_top_prints_the_problem_once_as_text_and_as_json(fleet_log: str) -> None:
    shown = run("top", "--once", "--log", fleet_log)
    assert shown.exit_code == 0, shown.output
    assert "leaf31:swp3 ⇄ spine1:swp31" in shown.stdout
    record = json.loads(run("top", "--json", "--log", fleet_log).stdout)
    assert "leaf31:swp3 ⇄ spine1:swp31" in [problem["place"] for problem in record["problems"]]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Return a data directory whose lock is held, as by a running `up`."""
    lock = status.Lock(tmp_path / "data")
    yield tmp_path / "data"
    lock.release()


def write_state(directory: Path, log: str) -> None:
    state = {
        "pid": 1,
        "fleet": "none",
        "directory": str(directory),
        "started_s": 5,
        "started_boot_s": boot_s(),
    }
    status.write(directory, {**state, "addresses": {"log": log}, "children": [], "missing_evidence": []})


def test_status_states_the_sentence_of_top(fleet_log: str, directory: Path) -> None:
    write_state(directory, fleet_log)
    health = json.loads(run("top", "--json", "--log", fleet_log).stdout)["health"]
    shown = run("status", "--check", "--dir", str(directory))
    assert (shown.exit_code, shown.output.splitlines()[0]) == (0, health["sentence"]), shown.output
    assert "leaf31:swp3 ⇄ spine1:swp31" in health["sentence"]
    assert json.loads(run("status", "--json", "--dir", str(directory)).stdout)["health"] == health


def test_status_without_an_answer_of_the_log_knows_no_health(directory: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        write_state(directory, f"127.0.0.1:{closed.getsockname()[1]}")
        shown = run("status", "--dir", str(directory))
        assert shown.exit_code == 0
        assert shown.output.startswith("Health is not known now.\n")
        assert "\nhealth is not known: log 127.0.0.1:" in shown.output
        assert run("status", "--check", "--dir", str(directory)).exit_code == 1
