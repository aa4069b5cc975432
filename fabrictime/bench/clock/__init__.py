"""Measures clock sync against known clocks: accuracy, bounds, recovery, cost, and rivals on the same samples.

The modules `now`, `solve`, `fabric` and `bursty` measure some of the figures. From the command line, ours
alone or with --rivals: `python -m fabrictime.bench.clock load80_500pps_asymmetry10 --windows 30 --each`;
`all` runs every scenario, no name lists the scenarios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

import numpy as np

from fabrictime.bench import Missing, Progress, Target, Value
from fabrictime.bench._parts import Parts, measure_parts, targets_of
from fabrictime.bench.clock.baselines import Huygens, MinimumFilter
from fabrictime.bench.clock.figures import GUARD_NS, accuracy, against_huygens, bounds, recovery, speed
from fabrictime.bench.clock.scenarios import HEADLINE, SCENARIOS
from fabrictime.bench.clock.score import STATES, Estimator, Fabrictime, Score, score

NAME: Final = "clock"
ACCURACY: Final = {
    "p99_ns_load40_symmetric": Target("ns", "<=", 3),
    "p99_ns_load40_asymmetry10": Target("ns", "<=", 12),
    "p99_ns_load80_500pps_asymmetry10": Target("ns", "<=", 25),
    "p99_ns_load80_4000pps_asymmetry10": Target("ns", "<=", 12),
    "p99_vs_huygens_load80": Target("1", "<=", 0.5),
    "bound_coverage": Target("1", ">=", 0.999),
    "bound_over_p99_error": Target("1", "<=", 4),
    "windows_to_sync": Target("windows", "<=", 2),
    "windows_to_sync_after_step": Target("windows", "<=", 2),
    "holdover_60s_error_ns": Target("ns", "<=", 1_500),
    "holdover_60s_error_over_bound": Target("1", "<=", 1),
    "fit_samples_per_second_one_core": Target("samples/s", ">=", 20e6),
    "fit_speed_vs_linearsvc": Target("x", ">=", 200),
}
"""Accuracy compares with the truth at the start, the middle and the end of every window after the third, over
all pairs of clocks in any state. `bound_coverage` compares each SYNCED or HOLDOVER clock with its domain's
own time (see `score`), at the windows' middles, for which bounds are stated. `windows_to_sync` and
`windows_to_sync_after_step` count the window of the start or of the step as the first. A window counts as
correct if its errors are within three times the steady 99th percentile at every instant.
`bound_over_p99_error` is the maximum over the headline scenarios of this ratio: the median over pairs of the
sum of both bounds, over the 99th percentile of the pairs' errors."""

MODULES: Final[Parts] = {
    "solve": {
        "solve_100k_nics_1m_edges_s": Target("s", "<=", 1.0),
        "solve_memory_mb": Target("MB", "<=", 1_000),
    },
    "now": {
        "now_ns_per_call_c": Target("ns", "<=", 60),
        "now_ns_per_call_python": Target("ns", "<=", 2_000),
    },
    "fabric": {
        "fabric_p99_ns_idle": Target("ns", "<=", 500),
        "fabric_p99_ns_loaded": Target("ns"),
        "fabric_p99_loaded_over_idle": Target("1", "<=", 3),
    },
    "bursty": {
        "p99_ns_load80_bursty": Target("ns", "<=", 40),
        "p99_load80_bursty_over_independent": Target("1", "<=", 2.5),
        "windows_to_100ns_load80_bursty": Target("windows", "<=", 4),
    },
}
"""Targets of the other modules, which measure by `measure(progress, quick)`."""
TARGETS: Final = ACCURACY | targets_of(MODULES)

RIVAL_WINDOWS: Final = 12
QUICK_FLEET: Final = (12, 4)
QUICK_WINDOWS: Final = 6
QUICK_RIVAL_WINDOWS: Final = 4


def run(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about ten minutes, or a quarter of one with `quick` (12 NICs,
    headline scenarios, step, holdover)."""
    figures: dict[str, Value] = {}
    scenario_names = (*HEADLINE, "clock_step", "holdover") if quick else tuple(SCENARIOS)
    scores: dict[str, Score] = {}
    for name in scenario_names:
        scenario = SCENARIOS[name]
        if quick:
            scenario = scenario.smaller(*QUICK_FLEET, QUICK_WINDOWS if name in HEADLINE else scenario.windows)
        progress(f"{name}: {scenario.story}")
        rivals = _rivals() if name in HEADLINE else []
        by_estimator = score(
            scenario, [Fabrictime(), *rivals], rival_windows=QUICK_RIVAL_WINDOWS if quick else RIVAL_WINDOWS
        )
        scores[name] = by_estimator.pop(Fabrictime.name)
        if name in HEADLINE:
            figures.update(accuracy(name, scores[name], by_estimator))
    figures["p99_vs_huygens_load80"] = against_huygens(figures)
    figures.update(bounds(scores))
    figures.update(recovery(scores))
    figures.update(speed(progress, quick))
    figures.update(measure_parts(NAME, MODULES, progress, quick))
    return {key: figures.get(key, Missing("not measured")) for key in [*TARGETS, *figures]}


def _rivals() -> list[Estimator]:
    rivals: list[Estimator] = [MinimumFilter()]
    if find_spec("sklearn") is not None:
        rivals += [Huygens(GUARD_NS), Huygens(None)]
    return rivals


def run_cli(arguments: Sequence[str]) -> int:
    """Run scenarios from the command line, print one line for each, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fabrictime.bench.clock")
    parser.add_argument("scenario", nargs="*", help="names, or all; none: list them")
    parser.add_argument("--windows", type=int, help="how many; default: as many as the scenario has")
    parser.add_argument("--nics", type=int, help="size of the fleet")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rivals", action="store_true", help="minimum filter and Huygens too")
    parser.add_argument("--each", action="store_true", help="a line a window")
    options = parser.parse_args(arguments)
    for name in options.scenario:
        if name not in SCENARIOS and name != "all":
            parser.error(f"scenario {name!r}: none of that name, expected all or {', '.join(SCENARIOS)}")
    if not options.scenario:
        for scenario in SCENARIOS.values():
            print(f"{scenario.number:3d} {scenario.name:28s} {scenario.story}")
        return 0
    for name in SCENARIOS if "all" in options.scenario else options.scenario:
        scenario = SCENARIOS[name] if options.nics is None else replace(SCENARIOS[name], nics=options.nics)
        ours = Fabrictime()
        rivals = _rivals() if options.rivals else []
        for by, result in score(scenario, [ours, *rivals], options.windows, options.seed).items():
            print(f"{scenario.number:3d} {name} {by}: {result.line()}", flush=True)
            if options.each:
                _print_windows(result)
        print(f"      ours: fit {ours.fit_s:.2f} s, solve {ours.solve_s:.2f} s")
    return 0


def _print_windows(result: Score) -> None:
    for w, state in enumerate(result.state):
        errors = result.pair_errors_ns(slice(w, w + 1))
        counts = ", ".join(
            f"{(state == code).sum()} {name}" for name, code in STATES.items() if code in state
        )
        if len(errors):
            middle, high, maximum = np.percentile(errors, [50, 99, 100], method="inverted_cdf")
            bound = float(np.nanmedian(result.bound_ns[w]))
            print(
                f"  {w:3d} p50 {middle:.1f} p99 {high:.1f} max {maximum:.1f} ns, bound {bound:.1f}, {counts}"
            )


if __name__ == "__main__":
    sys.exit(run_cli(sys.argv[1:]))
