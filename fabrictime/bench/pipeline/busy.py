"""Measures `up` with 16 simulated NICs of 4,000 probes/s each, beside three processes that never rest."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import Final

from fabrictime.bench import Progress, Value
from fabrictime.bench.pipeline._fleet_run import measure_fleet

FLEET: Final = "sim:16,rate_pps=4000"
BUSY: Final = 3
SPIN: Final = "import time\nend_s = time.monotonic() + 900\nwhile time.monotonic() < end_s: pass"
"""A program that keeps a processor busy for at most 15 minutes, even if the bench was killed."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or one with `quick`."""
    return measure_fleet(progress, quick, FLEET, "_busy", _spin)


def _spin(stack: ExitStack) -> None:
    """Start the busy processes; they end with the stack."""
    for _ in range(BUSY):
        spinning = subprocess.Popen([sys.executable, "-c", SPIN])
        stack.callback(spinning.wait)
        stack.callback(spinning.kill)
