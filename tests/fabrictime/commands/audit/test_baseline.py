"""`audit baseline`: save from a run's file, learn over files, show, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabrictime.audit.evaluate import load_baseline
from fabrictime.audit.report import AuditReport
from fabrictime.audit.stored import as_json
from fabrictime.commands.cli import app
from tests.streams.audit.facts import stated


def run_file(folder: Path, run: str, drivers: list[str]) -> Path:
    """Write a run of `--json`: a driver for each host."""
    results = {
        f"h{k}": stated(f"h{k}", {"driver": driver, "gpus": 8}, run=run) for k, driver in enumerate(drivers)
    }
    report = AuditReport(
        run, tuple(results), {host: {r["check"]: r} for host, r in results.items()}, (), 1, 2
    )
    path = folder / f"{run}.json"
    path.write_text("".join(as_json(report)), encoding="utf-8")
    return path


def invoke(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["audit", "baseline", *map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "b.toml"


def test_a_run_is_saved_and_shown(tmp_path: Path, file: Path) -> None:
    run = run_file(tmp_path, "r1", ["570.1", "570.1", "550.9"])
    code, text = invoke("save", run, "--file", file, "--dir", tmp_path)
    assert (code, text.splitlines()[-1]) == (0, f"{file}: 2 expected values of SKU h100")
    assert load_baseline(file).expected[0].texts == ("570.1",)
    code, text = invoke("show", "--file", file)
    assert code == 0
    assert "h100" in text
    assert "'570.1'" in text
    code, text = invoke("show", "--file", file, "--json")
    assert json.loads(text)["runs"] == ["r1"]


def test_a_golden_host_is_saved_and_several_runs_are_learned(tmp_path: Path, file: Path) -> None:
    first, second = run_file(tmp_path, "r1", ["570.1", "550.9"]), run_file(tmp_path, "r2", ["575.0"] * 2)
    assert invoke("save", first, "--golden", "h1", "--file", file, "--dir", tmp_path)[0] == 0
    assert load_baseline(file).expected[0].texts == ("550.9",)
    assert invoke("learn", first, second, "--file", file, "--dir", tmp_path)[0] == 0
    assert load_baseline(file).expected[0].texts == ("550.9", "570.1", "575.0")


def test_errors_are_one_line(tmp_path: Path, file: Path) -> None:
    run = run_file(tmp_path, "r1", ["570.1"])
    code, text = invoke("save", run, "--golden", "h9", "--file", file, "--dir", tmp_path)
    assert (code, text) == (2, "fabrictime: no value of host h9 can be saved: expected results with facts\n")
    assert invoke("show", "--file", tmp_path / "none.toml")[0] == 2
    assert invoke("save", tmp_path / "none.json", "--dir", tmp_path)[0] == 2
