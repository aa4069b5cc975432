"""The clock bench runs and prints every figure that it promises."""

from __future__ import annotations

import math

import pytest

from fabrictime.bench import clock, evaluate
from fabrictime.bench._parts import targets_of


@pytest.mark.slow("runs a bench")
def test_quick_run_gives_every_figure_of_its_own(monkeypatch):
    """Parts with a module of their own are measured by their own tests."""
    elsewhere = targets_of(clock.MODULES)
    monkeypatch.setattr(clock, "MODULES", {})
    lines = []
    figures = evaluate(clock.TARGETS, clock.run(lines.append, quick=True))
    assert set(clock.TARGETS) <= set(figures)
    assert len(lines) >= 7
    for key, figure in figures.items():
        if key in elsewhere or (figure["value"] is None and "scikit-learn" in figure["reason"]):
            continue
        assert figure["value"] is not None, (key, figure)
        assert math.isfinite(figure["value"]), key
        assert figure["value"] >= 0, key


def test_one_scenario_from_the_command_line(capsys):
    assert clock.run_cli([]) == 0
    assert "load80_500pps_asymmetry10" in capsys.readouterr().out
    assert clock.run_cli(["idle", "--windows", "5", "--nics", "12", "--each"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("  5 idle fabrictime: p50 ")
    assert len(printed) == 1 + 5 + 1
