"""Measures `up` on the default fabric of real packets."""

from __future__ import annotations

from fabrictime.bench import Progress, Value
from fabrictime.bench.pipeline._fleet_run import measure_fleet


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or one with `quick`."""
    return measure_fleet(progress, quick, None, "")
