"""Measures `up` on a simulated fleet of 256 NICs."""

from __future__ import annotations

from fabrictime.bench import Progress, Value
from fabrictime.bench.pipeline._fleet_run import measure_fleet


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or one with `quick`."""
    return measure_fleet(progress, quick, "sim:256", "_sim256")
