"""Measures robustness: the running pipeline against hostile records.

`fabrictime bench robust records [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "robust"
TARGETS: Final[Mapping[str, Target]] = {
    "hostile_records": Target("records", ">=", 1_000_000),
    "processes_ended": Target("processes", "<=", 0),
    "verdicts_changed": Target("subjects", "<=", 0),
    "figures_spoilt": Target("figures", "<=", 0),
}

PARTS: Final = {"records": ("hostile_records", "processes_ended", "verdicts_changed", "figures_spoilt")}
"""Parts, each a module with `measure(progress, quick)`, and the figures that each must return."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure some parts, or all, one after another."""
    return measure_parts(NAME, PARTS, parts, progress, quick)
