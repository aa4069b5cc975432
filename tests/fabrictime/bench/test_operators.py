"""The bench of the map stage's operators prints every figure, and its steps add up."""

from __future__ import annotations

import pytest

from fabrictime.bench import Figure, evaluate, load


def test_quick_run_gives_every_figure():
    bench = load("operators")
    values = bench.run(lambda line: None, quick=True)
    figures = evaluate(bench.TARGETS, values)
    assert set(bench.TARGETS) <= set(figures)
    assert all(figure["value"] > 0 for figure in figures.values())
    for key in ("us_per_message", "us_per_message_19_samples", "us_per_message_8_nics"):
        steps = [
            value.value
            for step in ("decode", "windows", "queueing", "fits", "delays")
            if isinstance(value := values[f"{key}_{step}"], Figure)
        ]
        assert sum(steps) == pytest.approx(figures[key]["value"])
