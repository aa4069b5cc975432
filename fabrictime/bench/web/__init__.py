"""Measures the page on simulated fleets: past moments, load, accessibility, words, its first screen.

The simulated fleet and the pipeline's operators make the records (`SimRunner`); the embedded log, the history
and the page's own process serve them to Chromium. `fabrictime bench web past|load|axe|night_shift|terms` runs
one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "web"
TARGETS: Final[Mapping[str, Target]] = {
    "past_moment_ms": Target("ms", "<=", 1_000),
    "first_paint_times_8": Target("x", "<=", 3),
    "first_paint_times_1024": Target("x", "<=", 3),
    "tab_change_times_8": Target("x", "<=", 3),
    "tab_change_times_1024": Target("x", "<=", 3),
    "browser_cpu_percent": Target("%", "<=", 25),
    "server_cpu_percent": Target("%", "<=", 25),
    "search_ms": Target("ms", "<=", 100),
    "axe_violations": Target("1", "<=", 0),
    "night_shift_right": Target("1", ">=", 20),
    "words_without_entry": Target("1", "<=", 0),
}
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "past": ("past_moment_ms",),
    "load": (
        "first_paint_times_8",
        "first_paint_times_1024",
        "tab_change_times_8",
        "tab_change_times_1024",
        "browser_cpu_percent",
        "server_cpu_percent",
        "search_ms",
    ),
    "axe": ("axe_violations",),
    "night_shift": ("night_shift_right",),
    "terms": ("words_without_entry",),
}


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure and return the figures of the given parts, or of all."""
    return measure_parts(NAME, PARTS, progress, quick, parts)
