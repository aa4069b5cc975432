"""Slow hosts among 64 with noise, slow links between hosts, suspects that another pass clears."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.audit.traffic.isolation import Measured, confirming, isolate
from streams.audit.traffic.rounds import tournament

HOSTS = [f"h{number:02}" for number in range(64)]
TOLERANCE = 0.1


def measure(slow: dict[str, float], chance: np.random.Generator, passes: int = 2) -> list[Measured]:
    """Return the rates of the first rounds. `slow`: host to the share of the rate that it reaches."""
    return [
        Measured(a, b, 100 * min(slow.get(a, 1.0), slow.get(b, 1.0)) * float(chance.lognormal(0, 0.02)))
        for pairs in tournament(HOSTS)[:passes]
        for a, b in pairs
    ]


@given(st.integers(0, 2**32 - 1), st.sampled_from(HOSTS), st.floats(0.05, 0.7))
def test_a_slow_host_is_found_and_no_other(seed: int, host: str, share: float) -> None:
    found = isolate(measure({host: share}, np.random.default_rng(seed)), TOLERANCE)
    assert found is not None
    assert (found.slow, found.suspects, found.pairs) == ((host,), (), ())
    assert len(found.outliers) == 2


@pytest.mark.parametrize("sigma", [0.0, 0.01, 0.1, 0.5])
def test_noise_accuses_nobody(sigma: float) -> None:
    for seed in range(200):
        chance = np.random.default_rng(seed)
        values = 100 * chance.lognormal(0, sigma, 64)
        pairs = [pair for each in tournament(HOSTS)[:2] for pair in each]
        measured = [Measured(a, b, float(value)) for (a, b), value in zip(pairs, values, strict=True)]
        for high_is_slow in (False, True):
            found = isolate(measured, TOLERANCE, high_is_slow=high_is_slow and sigma < 0.5)
            assert found is not None
            assert found.slow == ()


@given(st.integers(0, 2**32 - 1), st.sets(st.sampled_from(HOSTS), min_size=2, max_size=5))
def test_several_slow_hosts_are_found_after_a_confirming_pass(seed: int, hosts: set[str]) -> None:
    chance, slow = np.random.default_rng(seed), dict.fromkeys(hosts, 0.5)
    measured = measure(slow, chance)
    found = isolate(measured, TOLERANCE)
    assert found is not None
    assert set(found.slow) <= hosts <= {*found.slow, *found.suspects}
    for a, b in confirming(found, HOSTS):
        measured.append(Measured(a, b, 100 * min(slow.get(a, 1.0), slow.get(b, 1.0))))
    found = isolate(measured, TOLERANCE)
    assert found is not None
    assert (set(found.slow), found.suspects) == (hosts, ())


def test_a_slow_link_accuses_no_host() -> None:
    measured = measure({}, np.random.default_rng(1))
    measured[5] = measured[5]._replace(value=20.0)
    found = isolate(measured, TOLERANCE)
    assert found is not None
    assert (found.slow, found.suspects, found.pairs) == ((), (), (5,))
    assert confirming(found, HOSTS) == []


def test_times_are_slow_above_a_limit() -> None:
    hops = [Measured(a, b, 7.0 if "c" in (a, b) else 0.2) for a, b in ("ab", "bc", "cd", "da", "ac", "bd")]
    found = isolate(hops, 0.0, high_is_slow=True, limit=5.0)
    assert found is not None
    assert (found.slow, found.limit) == (("c",), 5.0)


def test_few_measurements_have_no_majority() -> None:
    assert isolate([Measured("a", "b", 1.0)] * 2, TOLERANCE) is None
