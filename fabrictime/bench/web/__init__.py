"""Measures the page on recorded fleets: past moments, accessibility, words, a reader of the first screen.

The simulated fleet and the pipeline's operators make the records (`SimRunner`); the embedded log, the history
and the page's own process serve them to Chromium. `fabrictime bench web past|axe|night_shift|terms` runs one
part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "web"
TARGETS: Final[Mapping[str, Target]] = {
    "past_moment_ms": Target("ms", "<=", 1_000),
    "axe_violations": Target("1", "<=", 0),
    "night_shift_right": Target("1", ">=", 20),
    "words_without_entry": Target("1", "<=", 0),
}
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "past": ("past_moment_ms",),
    "axe": ("axe_violations",),
    "night_shift": ("night_shift_right",),
    "terms": ("words_without_entry",),
}


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure and return the figures of the given parts, or of all."""
    return measure_parts(NAME, PARTS, progress, quick, parts)
