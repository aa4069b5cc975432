"""The pair tool: alternating runs, ratios with their spread, and figures that one side lacks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fabrictime.bench import Target, _compare
from fabrictime.bench._compare import compare, compared, order


def figure(value: float | None, unit: str = "s", **more: Any) -> dict[str, Any]:
    return {"value": value, "unit": unit, "target": None, "met": None, **more}


def test_runs_alternate_so_that_a_slowing_machine_favours_no_side() -> None:
    assert order(2) == [(0, "ours"), (0, "theirs"), (1, "theirs"), (1, "ours")]


def test_a_figure_has_the_median_ratio_of_its_pairs_with_the_spread_and_its_target() -> None:
    runs = {
        "ours": [{"cores": figure(1.0)}, {"cores": figure(1.2)}, {"cores": figure(0.9)}],
        "theirs": [{"cores": figure(2.0)}, {"cores": figure(2.0)}, {"cores": figure(1.0)}],
    }
    cores = compared(runs, {"cores": Target("x", "<=", 0.5)})["cores"]
    assert (cores["ratio"], cores["min"], cores["max"]) == (0.6, 0.5, 0.9)
    assert cores["ours"] == [1.0, 1.2, 0.9]
    assert cores["unit"] == "s"
    assert (cores["target"], cores["met"]) == ("<= 0.5", False)


def test_a_figure_that_the_other_tree_lacks_is_not_there_and_one_of_zero_has_no_ratio() -> None:
    runs = {
        "ours": [{"new": figure(1.0), "broken": figure(1.0), "none": figure(0.0)}],
        "theirs": [{"broken": figure(None, reason="no such module"), "none": figure(0.0)}],
    }
    figures = compared(runs, {"new": Target("x", "<=", 1)})
    assert figures["new"]["reason"] == "not there"
    assert figures["new"]["met"] is False
    assert figures["broken"]["reason"] == "not there: no such module"
    assert figures["none"]["ratio"] is None
    assert "ratio" in figures["none"]["reason"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a checkout of two commits whose bench prints a figure of the product, and take it for ours."""
    root = tmp_path / "checkout"
    for name, text in {
        "requirements.lock": "numpy\n",
        "clients/python/.keep": "",
        "tools/build_native.py": "open('built', 'w').close()\n",
        "fabrictime/__init__.py": "SPEED = 2\n",
        "fabrictime/bench/__init__.py": "SCALE = 1\n",
        "fabrictime/__main__.py": (
            "import json, os, sys\nimport fabrictime, fabrictime.bench as bench\n"
            "assert sys.argv[1:] == ['bench', 'stream', 'small', '--json', '--quick'], sys.argv\n"
            "print('small: step', file=sys.stderr)\n"
            "value = fabrictime.SPEED * bench.SCALE\n"
            "print(json.dumps({'figures': {'speed': {'value': value, 'unit': '1/s'}}}))\n"
        ),
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    (root / "fabrictime/__init__.py").write_text("SPEED = 6\n")
    (root / "fabrictime/bench/__init__.py").write_text("SCALE = 10\n")
    (root / "requirements.lock").write_text("numpy\npy-spy\n")
    monkeypatch.setattr(_compare, "ROOT", root)
    return root


def worktrees(root: Path) -> int:
    text = subprocess.run(
        ["git", "-C", str(root), "worktree", "list"], capture_output=True, text=True, check=True
    ).stdout
    return len(text.splitlines())


def test_both_products_run_under_our_bench_and_the_worktree_is_gone_afterwards(checkout: Path) -> None:
    lines: list[str] = []
    report = compare("HEAD", "stream", ["small"], lines.append, pairs=2, quick=True)
    speed = report["figures"]["speed"]
    assert (speed["ours"], speed["theirs"], speed["ratio"]) == ([60, 60], [20, 20], 3.0)
    assert report["remark"].startswith("requirements.lock differs")
    assert "pair 2 of 2, theirs: step" in lines
    assert worktrees(checkout) == 1


def test_the_other_commit_runs_its_own_bench_if_requested_and_its_build_can_stay(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_compare.signal, "signal", lambda *_: None)
    for _ in range(2):
        options: Any = {"pairs": 1, "quick": True, "as_json": True, "own_benches": True}
        assert _compare.main("HEAD", "stream", ["small"], **options, keep=tmp_path / "kept") == 0
        assert json.loads(capsys.readouterr().out)["figures"]["speed"]["theirs"] == [2]
    assert worktrees(checkout) == 2


def test_an_unknown_commit_is_one_line(checkout: Path) -> None:
    with pytest.raises(ValueError, match="git rev-parse: "):
        compare("nothing", "stream", [], print, pairs=1)
