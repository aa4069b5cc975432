"""How the clock bench judges: a perfect estimator has no error, a wrong one just its own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fabrictime.bench.clock.baselines import Huygens, MinimumFilter
from fabrictime.bench.clock.samples import EPOCH_NS
from fabrictime.bench.clock.scenarios import SCENARIOS
from fabrictime.bench.clock.score import Line, score
from streams.clock.solver import HOLDOVER, SYNCED, UNSYNCED

FLEET = replace(SCENARIOS["idle"].smaller(8, 3, 6), wander_ppb_per_sqrt_s=0.0)


class Oracle:
    """Knows the truth, and says it with errors that a test asks for."""

    name = "oracle"

    def __init__(self, gauge_ns=0.0, off_ns=None, bound_ns=5.0, state=None, leave_out=()):
        self.gauge_ns, self.off_ns, self.bound_ns = gauge_ns, off_ns or {}, bound_ns
        self.state, self.leave_out = state or {}, leave_out

    def window(self, given):
        middle = given.start_ns + given.window_ns / 2
        lines = {}
        for i, name in enumerate(given.truth.names):
            if i not in self.leave_out:
                ahead = float(given.truth.ahead_ns(i, np.array([middle]))[0])
                rate = float(given.truth.ppb[i][0])
                lines[name] = Line(
                    EPOCH_NS + round(middle + ahead),
                    -ahead + self.gauge_ns + self.off_ns.get(i, 0.0),
                    -rate / (1 + rate * 1e-9),
                    self.bound_ns,
                    self.state.get(i, SYNCED),
                    "all",
                )
        return lines


def scored(oracle, scenario=FLEET):
    return score(scenario, [oracle])["oracle"]


def test_an_estimator_that_knows_the_truth_has_no_error_for_any_gauge():
    for gauge_ns in (0.0, 1e6):
        found = scored(Oracle(gauge_ns))
        assert found.p99_ns() < 0.01
        assert found.p99_ns(live=True) < 0.01
        assert np.nanmax(np.abs(found.clock_errors_ns())) < 0.01
        assert found.covered() == (48, 48)
        assert found.windows_to_sync(1.0) == 1


def test_one_clock_that_is_off_is_off_against_all_others():
    found = scored(Oracle(off_ns={2: 40.0}))
    errors = found.pair_errors_ns(slice(3, None))
    assert len(errors) == 3 * 3 * 28
    assert (errors > 39).mean() == pytest.approx(7 / 28)
    assert errors.max() == pytest.approx(40.0, abs=0.01)
    assert found.covered() == (42, 48)
    assert found.pairs_covered() == (6 * 21, 6 * 28)
    assert found.windows_to_recover(2, 0, 1.0) is None
    assert found.windows_to_recover(1, 0, 1.0) == 1
    assert found.bound_over_p99() == pytest.approx(10.0 / 40.0, rel=0.01)


def test_a_clock_without_a_line_is_infinitely_wrong_and_one_that_warns_states_no_bound():
    assert math.isinf(scored(Oracle(leave_out=(3,))).pair_errors_ns(slice(3, None)).max())
    unsynced = scored(Oracle(off_ns={3: 1e6}, state={3: UNSYNCED}))
    assert unsynced.p99_ns() == pytest.approx(1e6, rel=1e-3)
    assert unsynced.covered() == (42, 42)
    assert unsynced.windows_to_sync(1.0) is None
    holdover = scored(Oracle(off_ns={3: 1e3}, state={3: HOLDOVER}))
    assert holdover.covered() == (42, 48)


def test_the_peers_find_the_clocks():
    """Quiet paths and 1,000 samples: offsets to a few ns, also at the window's ends."""
    scenario = replace(SCENARIOS["load40_symmetric"].smaller(8, 4, 7))
    found = score(scenario, [MinimumFilter()])["minimum filter"]
    assert found.p99_ns() < 30
    pytest.importorskip("sklearn", reason="scikit-learn, of the extra `bench`, is not installed")
    for rival in (Huygens(25.0), Huygens(None)):
        found = score(scenario, [rival], windows=4)[rival.name]
        assert found.p99_ns() < 15
        assert rival.fitted == 4 * 32
        assert rival.not_converged == 0
