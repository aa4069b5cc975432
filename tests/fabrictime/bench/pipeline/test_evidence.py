"""Ages of evidence: of records, as readers see them, and on the clock of a slow simulated fleet."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench.pipeline._evidence import Ages, FleetClock

S = 1_000_000_000
REAL = FleetClock(())


def test_a_readers_age_grows_while_no_record_comes() -> None:
    ages = Ages.of([(3 * S, 2 * S), (1 * S, S // 2)], is_windowed=False)
    assert ages.record_ages_s(REAL, (0, 4 * S)).tolist() == [0.5, 1.0]
    seen_s = ages.reader_ages_s(REAL, (0, 4 * S))
    assert len(seen_s) == 300, "nothing is known in the first second"
    assert seen_s.max() == pytest.approx(2.49)
    assert seen_s[-1] == pytest.approx(1.99)


def test_an_older_record_makes_no_newer_evidence_older() -> None:
    ages = Ages.of([(1 * S, S), (2 * S, 0)], is_windowed=False)
    assert ages.reader_ages_s(REAL, (2 * S, 3 * S)).min() == pytest.approx(1.0)


def test_the_age_of_a_slow_fleets_content_is_on_its_own_clock_but_not_that_of_windows() -> None:
    clock = FleetClock([(10 * S, 10 * S), (20 * S, 15 * S)])
    assert clock.at(np.array([9 * S, 10 * S, 20 * S, 21 * S])).tolist() == [9 * S, 10 * S, 15 * S, 16 * S]
    rows = [(20 * S, 14 * S)]
    assert Ages.of(rows, is_windowed=False).record_ages_s(clock, (0, 30 * S)).tolist() == [1.0]
    assert Ages.of(rows, is_windowed=True).record_ages_s(clock, (0, 30 * S)).tolist() == [6.0]


def test_a_batch_that_came_late_does_not_set_the_fleets_clock() -> None:
    clock = FleetClock([(10 * S, 10 * S - S // 20), (10 * S + S // 100, 10 * S), (10 * S + S // 50, 9 * S)])
    assert clock.at(np.array([10 * S + S // 100])).tolist() == [10 * S]
