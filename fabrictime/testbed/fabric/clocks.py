"""Draws the clocks of the testbed's NICs, whose errors are known exactly.

Each NIC gets one ClockTruth, drawn by seed. Its prober applies it and the truth recorder stores it. Without
wander the clock's reading is linear, and `error_ns` is exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from fabrictime.testbed.settings import UNSTABLE_PPB_PER_SQRT_S, FabricSettings


@dataclass(frozen=True, slots=True)
class ClockTruth:
    """The true error of a NIC's clock.

    It reads true + offset_ns + drift_ppb * 1e-9 * (true - epoch_ns), plus its wander. If epoch_ns is 0, the
    drift starts with the prober. `wander_ppb_per_sqrt_s` is a random walk of the rate, drawn from `seed`.
    """

    offset_ns: int
    drift_ppb: float
    wander_ppb_per_sqrt_s: float = 0.0
    epoch_ns: int = 0
    seed: int = 0


def draw_clock(settings: FabricSettings, nic: str, epoch_ns: int = 0) -> ClockTruth | None:
    """Return a NIC's clock, None if clocks have no error; equal settings give equal clocks."""
    wander = settings.clock_wander_ppb_per_sqrt_s
    if nic in settings.unstable_clocks:
        wander = UNSTABLE_PPB_PER_SQRT_S
    if not (settings.clock_offset_max_ns or settings.clock_drift_max_ppb or wander):
        return None
    draw = random.Random(f"{settings.clock_seed}/{nic}")  # noqa: S311  # reproducible, nothing secret
    return ClockTruth(
        offset_ns=draw.randint(-settings.clock_offset_max_ns, settings.clock_offset_max_ns),
        drift_ppb=draw.uniform(-settings.clock_drift_max_ppb, settings.clock_drift_max_ppb),
        wander_ppb_per_sqrt_s=wander,
        epoch_ns=epoch_ns,
        seed=draw.getrandbits(63),
    )
