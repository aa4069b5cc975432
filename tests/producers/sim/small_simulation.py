"""Settings of a small simulation, and its records by topic."""

from __future__ import annotations

from collections import defaultdict

from producers.sim.settings import SimSettings


def settings(**more):
    return SimSettings(**{"nics": 16, "load": 0.0, "rate_pps": 2000, **more})


def by_topic(run, seconds):
    found = defaultdict(list)
    for out in run.advance(seconds):
        found[out.topic].append(out)
    return found
