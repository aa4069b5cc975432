"""Measures the page on simulated fleets: past moments, load, accessibility, vocabulary, first screen.

The simulated fleet and the pipeline's operators make the records (`SimRunner`); the embedded log, the history
and a page process serve them to Chromium. `fabrictime bench web past|load|axe|night_shift|terms` runs one
part.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "web"
PARTS: Final[Parts] = {
    "past": {
        "past_moment_ms": Target("ms", "<=", 1_000),
    },
    "load": {
        "first_paint_times_8": Target("x", "<=", 3),
        "first_paint_times_1024": Target("x", "<=", 3),
        "tab_change_times_8": Target("x", "<=", 3),
        "tab_change_times_1024": Target("x", "<=", 3),
        "browser_cpu_percent": Target("%", "<=", 25),
        "server_cpu_percent": Target("%", "<=", 25),
        "search_ms": Target("ms", "<=", 100),
    },
    "axe": {
        "axe_violations": Target("1", "<=", 0),
    },
    "night_shift": {
        "night_shift_right": Target("1", ">=", 20),
    },
    "terms": {
        "words_without_entry": Target("1", "<=", 0),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
