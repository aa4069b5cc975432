"""Bisection over simulated groups: no, one and two slow members, noise, slow paths, the limit of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streams.audit.traffic.bisection import bisect, run_limit

FULL, LOW = 440.0, 200.0


class Group:
    """A group as a collective sees it: the slowest member, and noise that only lowers."""

    def __init__(self, slow, noise=0.0, seed=1, spikes=0.0, paths=()):
        self.slow, self.noise, self.spikes = set(slow), noise, spikes
        self.paths = [set(each) for each in paths]
        self.chance = np.random.default_rng(seed)
        self.runs = 0

    def __call__(self, members):
        assert len(set(members)) == len(members) >= 2
        self.runs += 1
        value = LOW if self.slow & set(members) else FULL
        if any(path <= set(members) for path in self.paths):
            value = LOW
        if self.chance.random() < self.spikes:
            value *= 0.5
        return value * (1 - self.noise * abs(self.chance.standard_normal()))


def names(count):
    return [f"h{number}" for number in range(count)]


@pytest.mark.parametrize("has_minimum", [True, False])
@pytest.mark.parametrize("count", [3, 4, 5, 7, 8, 16, 31, 64])
def test_one_slow_member_is_found_wherever_it_is(count, has_minimum):
    members = names(count)
    for slow in members:
        group = Group([slow], noise=0.02)
        found = bisect(members, group, 0.9 * FULL if has_minimum else None)
        assert found.slow == (slow,)
        assert found.suspects == ()
        assert found.is_complete
        assert found.runs == group.runs <= run_limit(count, has_minimum=has_minimum)


@pytest.mark.parametrize("has_minimum", [True, False])
@pytest.mark.parametrize("count", [6, 8, 16, 64, 256])
def test_two_slow_members_are_found_within_the_limit(count, has_minimum):
    members, chance = names(count), np.random.default_rng(count)
    for draw in range(100):
        slow = {members[each] for each in chance.choice(count, 2, replace=False)}
        group = Group(slow, noise=0.02, seed=draw)
        found = bisect(members, group, 0.9 * FULL if has_minimum else None)
        assert (set(found.slow), found.suspects, found.is_complete) == (slow, (), True)
        assert found.runs <= run_limit(count, has_minimum=has_minimum)


def test_no_slow_member_is_named_without_one():
    for count in (2, 3, 4, 9, 64):
        for draw in range(50):
            found = bisect(names(count), Group([], noise=0.02, seed=draw))
            assert (found.slow, found.suspects) == ((), ())
    found = bisect(names(8), Group([]), 0.9 * FULL)
    assert (found.slow, found.suspects) == ((), ())
    assert found.together == (tuple(names(8)),)


def test_single_low_measurements_accuse_nobody():
    """One measurement of twenty is halved by other traffic."""
    wrong = missed = 0
    for draw in range(200):
        found = bisect(names(32), Group(["h9"], noise=0.02, seed=draw, spikes=0.05), 0.9 * FULL)
        missed += "h9" not in found.slow
        wrong += len(set(found.slow) - {"h9"})
    assert wrong == 0
    assert missed <= 2


def test_a_slow_path_between_halves_accuses_no_member():
    found = bisect(names(8), Group([], paths=[("h1", "h6")]), 0.9 * FULL)
    assert (found.slow, found.suspects) == ((), ())
    assert found.together == (tuple(names(8)),)


def test_a_slow_path_to_one_partner_leaves_at_best_a_suspect():
    found = bisect(names(4), Group(["h2"], paths=[("h0", "h3")]), 0.9 * FULL)
    assert found.slow == ("h2",)
    assert set(found.suspects) <= {"h3"}


def test_slow_members_in_every_half_are_found_by_mixed_pairs():
    found = bisect(names(4), Group(["h0", "h2"]), 0.9 * FULL)
    assert (found.slow, found.suspects) == (("h0", "h2"), ())


def test_two_members_alone_and_all_slow_ones_are_suspects():
    found = bisect(["a", "b"], Group(["a"]), 0.9 * FULL)
    assert (found.slow, found.suspects) == ((), ("a", "b"))
    found = bisect(["a", "b"], Group(["a"]))
    assert (found.slow, found.suspects, found.minimum) == ((), (), 0.0)
    found = bisect(names(16), Group(names(16)), 0.9 * FULL)
    assert found.slow == ()
    assert set(found.suspects) == set(names(16))
    assert found.runs <= run_limit(16, has_minimum=True)


def test_a_collective_that_fails_is_slow():
    found = bisect(names(8), lambda members: 0.0 if "h5" in members else FULL, 0.9 * FULL)
    assert found.slow == ("h5",)


def test_the_limit_grows_with_the_logarithm():
    assert run_limit(64, has_minimum=True) == 8 * 6 + 8
    assert run_limit(1024, has_minimum=True) == 8 * math.log2(1024) + 8
    assert run_limit(64, has_minimum=False) == 32 + 8 * 6 + 8


@pytest.mark.parametrize("members", [[], ["a"], ["a", "a"]])
def test_too_few_members_are_refused(members):
    with pytest.raises(ValueError, match="expected at least two different ones"):
        bisect(members, Group([]))
