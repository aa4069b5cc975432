"""`replay alerts` and `replay decisions` on the command line: intervals, exit codes, text and JSON."""

import json

import pytest
from typer.testing import CliRunner

from fabrictime.commands import replay_decisions
from fabrictime.commands.cli import app
from fabrictime.commands.replay_decisions import Difference, Replayed


def run(*arguments):
    return CliRunner().invoke(app, ["replay", *arguments, "--log", "127.0.0.1:1"])


@pytest.mark.parametrize("command", ["alerts", "decisions"])
@pytest.mark.parametrize(
    ("interval", "fragment"),
    [
        (("--from", "10m", "--to", "20m"), "--to 20m: expected later than --from 10m"),
        (("--from", "now"), "expected later than"),
        (("--from", "yesterday"), "yesterday"),
    ],
)
def test_an_interval_that_is_none_is_one_line(command, interval, fragment):
    done = run(command, *interval)
    assert done.exit_code == 2
    assert fragment in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("differences", "exit_code"), [([], 0), ([Difference("d", "differs", {"to_path": (1, 2)})], 1)]
)
def test_a_difference_is_an_exit_code(monkeypatch, differences, exit_code):
    def replay(bootstrap, span, **_):
        return Replayed(span, [], differences, 1, 1, 1, 1, 0.1)

    monkeypatch.setattr(replay_decisions, "main", replay)
    done = run("decisions", "--from", "10m")
    assert done.exit_code == exit_code, done.stderr
    assert ("DIFFERENT d: differs: to_path 1, replayed 2" in done.stdout) == bool(differences)
    found = json.loads(run("decisions", "--from", "10m", "--json").stdout)
    assert found["to_ns"] - found["from_ns"] == pytest.approx(600e9)
