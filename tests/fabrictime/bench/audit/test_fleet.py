"""Bench of the evaluation: an odd value counts as found only at its host and subject."""

from __future__ import annotations

import numpy as np

from fabrictime.bench.audit._results import fleet_results, host_results
from fabrictime.bench.audit.fleet import made_odd, outcome
from streams.audit.hosts.compare import compare


def test_an_odd_value_is_found_at_its_host_and_nowhere_else() -> None:
    results = fleet_results(8, np.random.default_rng(1))
    assert len(results) == 8 * len(host_results())
    at = next(number for number, result in enumerate(results) if result["facts"])
    fact = results[at]["facts"][0]
    assert outcome(compare(results), "h1", fact) == (False, 0)
    results[at] = made_odd(results[at], 0)
    assert outcome(compare(results), "h1", fact) == (True, 0)
    assert outcome(compare(results), "h2", fact) == (False, 1)
