"""Benches in parts: each part a module `_<bench>_<part>` with `measure(progress, quick)`.

In: the bench's name, its parts with the figures that they owe, the parts wanted. Out: their figures; what a
part that was measured owes and did not say is named missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from fabrictime.bench import Missing, Progress, Value

__all__ = ["measure_parts"]

Parts = Mapping[str, Sequence[str]]


def measure_parts(
    bench: str, parts: Parts, wanted: Sequence[str], progress: Progress, quick: bool
) -> dict[str, Value]:
    """Measure the parts `wanted` one after another, in the bench's own order; all where none is named."""
    figures: dict[str, Value] = {}
    for part in parts:
        if not wanted or part in wanted:
            measure = import_module(f"{__package__}._{bench}_{part}").measure
            figures.update(dict.fromkeys(parts[part], Missing(f"{part} did not measure it")))
            figures.update(measure(progress, quick))
    return figures
