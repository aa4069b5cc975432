"""Measures `up` with 16 simulated NICs of 4,000 probes/s each, next to three busy-looping processes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from fabrictime.bench import Progress, Value
from fabrictime.bench._machine import busy_processes
from fabrictime.bench.pipeline._fleet_run import measure_fleet

FLEET: Final = "sim:16,rate_pps=4000"
BUSY: Final = 3


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or one with `quick`."""
    return measure_fleet(progress, quick, FLEET, "_busy", _spin)


def _spin(stack: ExitStack) -> None:
    """Start the busy processes; they end with the stack."""
    stack.enter_context(busy_processes(BUSY))
