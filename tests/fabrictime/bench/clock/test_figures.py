"""Figures of the clock bench from scores of known errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictime.bench import Figure, Missing
from fabrictime.bench.clock import figures
from fabrictime.bench.clock.figures import LOAD80, accuracy, against_huygens, bounds, recovery
from fabrictime.bench.clock.scenarios import HEADLINE, SCENARIOS
from fabrictime.bench.clock.score import STATES
from streams.clock.solver import HOLDOVER


class Scored:
    """A score with given figures."""

    def __init__(self, p99_ns: float = 10.0, **given: Any) -> None:
        self._p99_ns, self.state = p99_ns, np.zeros((5, 2))
        vars(self).update(given)

    def p99_ns(self, live: bool = False, until: int | None = None) -> float:
        return self._p99_ns + live

    def covered(self) -> tuple[int, int]:
        return (98, 100)

    pairs_covered = covered

    def bound_over_p99(self) -> float:
        return 3.0

    def windows_to_sync(self, limit_ns: float) -> int | None:
        return 4 if limit_ns >= 30 else None

    def windows_to_recover(self, nic: int, first: int, limit_ns: float) -> int | None:
        return 2


def test_ours_is_compared_with_the_better_rival_on_the_same_windows() -> None:
    rivals = {"huygens": Scored(40.0), "huygens, no filter": Scored(20.0)}
    found = dict(accuracy(LOAD80, Scored(5.0), rivals))  # type: ignore[arg-type]
    assert found[f"p99_ns_{LOAD80}"] == 5
    ratio = against_huygens(found)
    assert isinstance(ratio, Figure)
    assert ratio.value == 0.25
    assert ratio.note is not None
    assert ratio.note.startswith(f"against huygens_no_filter_p99_ns_{LOAD80}")
    assert against_huygens(dict(accuracy(LOAD80, Scored(), {}))) == Missing(figures.NO_SKLEARN)  # type: ignore[arg-type]


def test_coverage_counts_bounds_and_not_scenarios() -> None:
    class Empty(Scored):
        def covered(self) -> tuple[int, int]:
            return (0, 0)

        def pairs_covered(self) -> tuple[int, int]:
            return (2, 100)

    found = bounds({**{name: Scored() for name in HEADLINE}, "dark": Empty()})  # type: ignore[dict-item]
    coverage, pairs = found["bound_coverage"], found["bound_coverage_pairs"]
    assert isinstance(coverage, Figure)
    assert isinstance(pairs, Figure)
    assert coverage.value == 0.98
    assert pairs.value < 0.98
    assert found["bound_over_p99_error"] == 3


def scores(**changes: Any) -> dict[str, Any]:
    dark = SCENARIOS["holdover"]
    state = np.full((dark.windows, dark.nics), STATES[HOLDOVER])
    error = np.full((dark.windows, 3, dark.nics), 30.0)
    holdover = Scored(
        scenario=dark,
        state=state,
        bound_ns=np.full(state.shape, 60.0),
        against_fleet_ns=lambda nics, live=False: error[:, :, nics],
    )
    return {
        **{name: Scored() for name in HEADLINE},
        "clock_step": Scored(scenario=SCENARIOS["clock_step"]),
        "holdover": holdover,
        **changes,
    }


def test_recovery_is_the_slowest_scenario_and_never_is_no_number() -> None:
    found = recovery(scores())
    assert found["windows_to_sync"] == Figure(4, note="the slowest headline scenario")
    assert found["windows_to_sync_after_step"] == 2
    late = recovery(scores(**{HEADLINE[0]: Scored(1.0)}))["windows_to_sync"]
    assert late == Missing(f"{HEADLINE[0]}: not within the scenario")


def test_holdover_is_the_worst_error_and_states_that_are_lost_are_counted() -> None:
    found = recovery(scores())
    error, over = found["holdover_60s_error_ns"], found["holdover_60s_error_over_bound"]
    assert isinstance(error, Figure)
    assert isinstance(over, Figure)
    assert (error.value, over.value) == (30.0, 0.5)
    lost = scores()
    lost["holdover"].state[:, :] = 0
    missing = recovery(lost)["holdover_60s_error_ns"]
    assert isinstance(missing, Missing)
    assert "are not HOLDOVER" in missing.reason


def test_keys_have_no_spaces() -> None:
    assert figures._key("huygens, no filter") == "huygens_no_filter"
