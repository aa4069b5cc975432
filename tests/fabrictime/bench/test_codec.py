"""The codec bench runs, prints every figure that it promises, and its two decoders agree."""

from __future__ import annotations

import math

from fabrictime.bench import evaluate, load


def test_quick_run_gives_every_figure():
    bench = load("codec")
    lines = []
    figures = evaluate(bench.TARGETS, bench.run(lines.append, quick=True))
    assert set(figures) == set(bench.TARGETS)
    assert lines
    for key, figure in figures.items():
        assert math.isfinite(figure["value"]), key
        assert figure["value"] > 0, key
    assert figures["decode_vs_fastavro"]["value"] > 5  # about 37
