"""`top`: the fleet on one screen."""

from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from fabrictime.commands.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_top_prints_the_problem_once_as_text_and_as_json(fleet_log: str) -> None:
    shown = run("top", "--once", "--log", fleet_log)
    assert shown.exit_code == 0, shown.output
    assert "leaf31:swp3 ⇄ spine1:swp31" in shown.stdout
    record = json.loads(run("top", "--json", "--log", fleet_log).stdout)
    assert "leaf31:swp3 ⇄ spine1:swp31" in [problem["place"] for problem in record["problems"]]
