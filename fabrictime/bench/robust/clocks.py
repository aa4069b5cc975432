"""Measures clocks that count from power-on against the same clocks near Unix time, and the bounds of all
scenarios of the clock bench.

Time is simulated, so the machine's load changes no figure. No rival runs here: `bench clock` has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.clock.figures import bounds
from fabrictime.bench.clock.scenarios import HEADLINE, SCENARIOS, Scenario
from fabrictime.bench.clock.score import Fabrictime, Score, score

UNIX: Final = "load40_symmetric"
POWER_ON: Final = "power_on"
"""Name of a scenario like `UNIX`, but with clocks that count from power-on."""
QUICK_FLEET: Final = (12, 4, 6)
"""Numbers of NICs, peers and windows in a quick run."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure all scenarios in about five minutes; with `quick` only the headline ones, with few NICs."""
    names = (*HEADLINE, POWER_ON) if quick else tuple(SCENARIOS)
    scenarios = [_wanted(SCENARIOS[name], quick) for name in names]
    scores: dict[str, Score] = {}
    for name, result in zip(names, side_by_side(_score, scenarios), strict=True):
        progress(f"clocks: {name}: {result.line()}")
        scores[name] = result
    figures = bounds(scores)
    return compared(scores) | {key: figures[key] for key in ("bound_coverage", "bound_over_p99_error")}


def compared(scores: Mapping[str, Score]) -> dict[str, Value]:
    """Return the errors of clocks that count from power-on divided by those of clocks near Unix time."""
    unix, free = scores[UNIX].p99_ns(), scores[POWER_ON].p99_ns()
    note = f"{free:.2f} ns with offsets of 1.8e18 ns, {unix:.2f} ns near Unix time"
    return {"free_running_p99_over_unix_p99": Figure(free / unix, note=note)}


def _wanted(scenario: Scenario, quick: bool) -> Scenario:
    return scenario.smaller(*QUICK_FLEET) if quick else scenario


def _score(scenario: Scenario) -> Score:
    return score(scenario, [Fabrictime()])[Fabrictime.name]
