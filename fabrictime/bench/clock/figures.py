"""Computes the figures of the clock bench from `Score`s by scenario and from measured run times.

The result has figures by key, both figures with a target and figures for context.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.clock.baselines import Huygens, PairSamples, pairs_of
from fabrictime.bench.clock.samples import simulate
from fabrictime.bench.clock.scenarios import HEADLINE, SCENARIOS, Dark, Step
from fabrictime.bench.clock.score import MIDDLE, STATES, WARM_UP, Score
from native.core import NicWindow
from streams.clock.solver import HOLDOVER

LOAD80: Final = "load80_500pps_asymmetry10"
GUARD_NS: Final = 25.0
"""Guard of Huygens' coded-probe filter: three times the noise of the stamps in a difference of spacings."""
STEADY: Final = 3.0
"""A window is correct if its errors are at most this many times the steady 99th percentile."""
TRIES: Final = 7
NO_SKLEARN: Final = "scikit-learn is not installed: pip install fabrictime[bench]"


def accuracy(name: str, ours: Score, rivals: Mapping[str, Score]) -> Iterator[tuple[str, Value]]:
    """Yield our figures of a headline scenario and, on the rivals' windows, the rivals' figures and ours."""
    yield f"p99_ns_{name}", ours.p99_ns()
    yield f"p99_live_ns_{name}", Figure(ours.p99_ns(live=True), "ns", "the line before, carried on")
    windows = min((len(other.state) for other in rivals.values()), default=0)
    note = f"windows {WARM_UP + 1} to {windows}"
    yield f"p99_same_windows_ns_{name}", Figure(ours.p99_ns(until=windows), "ns", note)
    for rival, rival_score in rivals.items():
        key = f"{_key(rival)}_p99_ns_{name}"
        yield key, Figure(rival_score.p99_ns(), "ns", note)


def against_huygens(figures: Mapping[str, Value]) -> Value:
    """Return the ratio of our error to the better Huygens variant's, on the same windows of `LOAD80`."""
    huygens = {
        key: value.value
        for key, value in figures.items()
        if key.startswith("huygens") and key.endswith(LOAD80) and isinstance(value, Figure)
    }
    ours = figures[f"p99_same_windows_ns_{LOAD80}"]
    if not huygens or not isinstance(ours, Figure):
        return Missing(NO_SKLEARN)
    best = min(huygens, key=lambda key: huygens[key])
    return Figure(ours.value / huygens[best], note=f"against {best}, {ours.note}")


def bounds(scores: Mapping[str, Score]) -> dict[str, Value]:
    """Return the figures about the error bounds over all scenarios."""
    clocks = {name: score.covered() for name, score in scores.items()}
    pairs = [score.pairs_covered() for score in scores.values()]
    shares = {name: covered / stated for name, (covered, stated) in clocks.items() if stated}
    worst = min(shares, key=lambda name: shares[name])
    stated = sum(count for _, count in clocks.values())
    ratios = {name: scores[name].bound_over_p99() for name in HEADLINE}
    figures: dict[str, Value] = {
        "bound_coverage": Figure(
            sum(covered for covered, _ in clocks.values()) / stated,
            note=f"{stated} bounds of {len(scores)} scenarios, the worst {worst} {shares[worst]:.5f}",
        ),
        "bound_coverage_pairs": Figure(
            sum(covered for covered, _ in pairs) / sum(count for _, count in pairs),
            "1",
            "sums of two clocks' bounds",
        ),
        "bound_over_p99_error": max(ratios.values()),
    }
    return figures | {f"bound_over_p99_error_{name}": Figure(ratio, "1") for name, ratio in ratios.items()}


def recovery(scores: Mapping[str, Score]) -> dict[str, Value]:
    """Return the figures of cold start, step and holdover."""
    never = "not within the scenario"
    figures: dict[str, Value] = {}
    took = {name: scores[name].windows_to_sync(STEADY * scores[name].p99_ns()) for name in HEADLINE}
    figures["windows_to_sync"] = (
        Missing(f"{', '.join(name for name, count in took.items() if count is None)}: {never}")
        if None in took.values()
        else Figure(
            max(count for count in took.values() if count is not None), note="the slowest headline scenario"
        )
    )
    stepped = scores["clock_step"]
    step = next(event for event in stepped.scenario.events if isinstance(event, Step))
    nic, first = stepped.scenario.member(step.nic), int(step.at_s // stepped.scenario.window_s)
    after = stepped.windows_to_recover(nic, first, STEADY * scores["load40_symmetric"].p99_ns())
    figures["windows_to_sync_after_step"] = Missing(never) if after is None else float(after)
    return figures | _holdover(scores["holdover"])


def _holdover(score: Score) -> dict[str, Value]:
    """Return the largest error of the NICs without probes after 60 s, and the largest error over its bound.

    After those 60 s a reader still has the record of the previous window.
    """
    scenario = score.scenario
    dark = next(event for event in scenario.events if isinstance(event, Dark))
    nics = scenario.members(dark.nics)
    published = slice(int(dark.at_s // scenario.window_s), -1)
    covered = score.state[published, nics] == STATES[HOLDOVER]
    if not covered.all():
        lost = Missing(f"{int((~covered).sum())} of {covered.size} states in the dark are not HOLDOVER")
        return {"holdover_60s_error_ns": lost, "holdover_60s_error_over_bound": lost}
    seconds = scenario.windows * scenario.window_s - dark.at_s
    last = np.abs(score.against_fleet_ns(nics, live=True)[-1, -1])
    over = np.abs(score.against_fleet_ns(nics)[published, MIDDLE]) / score.bound_ns[published, nics]
    return {
        "holdover_60s_error_ns": Figure(
            float(last.max()), note=f"worst of {len(nics)} NICs, {seconds:.0f} s dark"
        ),
        "holdover_60s_error_over_bound": Figure(float(over.max()), note="worst of all windows in the dark"),
        "holdover_60s_bound_ns": Figure(float(np.median(score.bound_ns[-2, nics])), "ns"),
    }


def speed(progress: Progress, quick: bool) -> dict[str, Value]:
    """Return the time of a fit, ours and LinearSVC's, on one window of `load40_symmetric` on one core."""
    progress("speed of a fit, ours and LinearSVC's")
    scenario = SCENARIOS["load40_symmetric"]
    window_input = next(simulate(scenario.smaller(12, 4, 1) if quick else scenario))
    windows = []
    for name, columns in window_input.columns.items():
        window = NicWindow(name)
        window.add(columns)
        windows.append(window)
    pairs = sum(len(set(columns.peers)) for columns in window_input.columns.values())
    fit_s = math.inf
    for _ in range(TRIES):
        begin = time.perf_counter()
        for window in windows:
            window.fit()
        fit_s = min(fit_s, time.perf_counter() - begin)
    figures: dict[str, Value] = {
        "fit_samples_per_second_one_core": Figure(
            window_input.samples / fit_s,
            note=f"{window_input.samples / pairs:.0f} samples a pair, best of {TRIES}",
        ),
        "fit_us_per_pair": Figure(fit_s / pairs * 1e6, "us"),
    }
    if find_spec("sklearn") is None:
        figures["fit_speed_vs_linearsvc"] = Missing(NO_SKLEARN)
        return figures
    prober, columns = next(iter(window_input.columns.items()))
    for rival in (Huygens(GUARD_NS), Huygens(None)):
        each_s = [
            _best_fit_s(rival, pair, window_input.truth.index[prober])
            for pair in pairs_of(columns, window_input)
        ]
        key = _key(rival.name)
        figures[f"{key}_fit_us_per_pair"] = Figure(float(np.mean(each_s)) * 1e6, "us", f"{len(each_s)} pairs")
    rival_us = [
        value.value
        for key, value in figures.items()
        if key.startswith("huygens") and isinstance(value, Figure)
    ]
    figures["fit_speed_vs_linearsvc"] = Figure(
        min(rival_us) / (fit_s / pairs * 1e6),
        note="against the faster way to run it, each the best of several",
    )
    return figures


def _best_fit_s(rival: Huygens, pair: PairSamples, prober: int) -> float:
    shortest = math.inf
    for _ in range(3):
        begin = time.perf_counter()
        rival.fit(pair, prober)
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def _key(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_")
