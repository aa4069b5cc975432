"""Measures the speed of the simulated fleet over real time on one core, including its messages for the log.

The figure is `sim_realtime_factor` at 1,024 NICs with its components.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Final

from fabrictime.bench import Figure, Progress, Value

NICS: Final = 1_024
SECONDS: Final = 6
QUICK_NICS: Final = 64
"""Number of NICs in a quick run.

Traffic: each NIC sends a fifth of its rate in two flows to random others, and a quarter of the NICs run a
ring all-reduce whose flows collide. Probes: 200/s per NIC, ten peers, four paths each.
"""


def measure(progress: Progress, quick: bool = False) -> Mapping[str, Value]:
    """Return simulated over real time by the shortest of several processor times, all messages made."""
    from producers.sim.settings import JobSettings, SimSettings
    from producers.sim.simulation import TICK_NS, Simulation

    nics = QUICK_NICS if quick else NICS
    progress(f"simulated fleet of {nics} NICs, fluid")
    job = JobSettings(name="train", kind="allreduce", nics=nics // 4, bytes=1e8, compute_ms=5)
    run = Simulation(SimSettings(nics=nics, jobs=(job,)))
    for out in run.tick():  # paths and inventory, once
        out.value()
    gc.collect()
    gc.freeze()
    took_s: list[float] = []
    messages = size = 0
    try:
        for _ in range(2 if quick else SECONDS):
            begin = time.process_time()
            for _ in range(10**9 // TICK_NS):
                for out in run.tick():
                    size += len(out.value() or b"")
                    messages += 1
            took_s.append(time.process_time() - begin)
    finally:
        gc.unfreeze()
    sent, _, _, _ = run.kernel.totals()
    seconds = len(took_s)
    flows, links = run.kernel.working
    note = (
        f"{nics} NICs, {sent / (seconds + 0.01):,.0f} probes/s, {len(run.book.flows):,} flows, steps of "
        f"{run.settings.step_ns // 1000} us, {messages / seconds:,.0f} messages/s of "
        f"{size / seconds / 1e6:.1f} MB/s; processor time, least of {seconds} s"
    )
    return {
        "sim_realtime_factor": Figure(1 / min(took_s), note=note),
        "sim_realtime_factor_mean": Figure(
            seconds / sum(took_s), "1", f"{flows} flows, {links} links at work"
        ),
    }
