"""Measures the speed of the whole pipeline in one process: 64 simulated NICs, all operators, no Kafka.

The fleet is that of `up --fleet sim:64`. Every message passes the log as bytes, and decisions change the
fleet. A second fleet has a job and faults, so that health, contention, policy and diagnosis have work. Speed
is simulated time over processor time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from fabrictime.bench import Figure, Progress, Target, Value
from fabrictime.bench._sim_pipeline import FLEET_TOPICS, SimPipeline, all_stages
from producers.sim.settings import SimSettings
from producers.sim.simulation import TICK_NS, Simulation

NAME: Final = "sim"
TARGETS: Final[Mapping[str, Target]] = {
    "sim_speed_64": Target("x", ">=", 2),
    "sim_speed_64_faults": Target("x"),
}

NICS: Final = 64
WARM_UP_S: Final = 3
"""Simulated seconds, not measured, in which routes are traced and clocks are synchronised."""
SECONDS: Final = 30
QUICK_SECONDS: Final = 5
FAULTS: Final = (
    "blackhole leaf1>spine2 after 4s for 2s",
    "incast 12 h2/eth1 after 5s for 2s",
    "grey 20% leaf2>spine1 after 7s for 20s",
)


def run(progress: Progress, quick: bool = False) -> Mapping[str, Value]:
    """Measure and return the figures by key, in about 50 s, or 10 s with `quick`."""
    seconds = QUICK_SECONDS if quick else SECONDS
    job = {"name": "train", "kind": "allreduce", "nics": 16}
    fleets = {
        "sim_speed_64": SimSettings(nics=NICS),
        "sim_speed_64_faults": SimSettings.model_validate({"nics": NICS, "jobs": [job], "faults": FAULTS}),
    }
    figures: dict[str, Value] = {}
    for key, settings in fleets.items():
        progress(f"{key}: {settings.nics} NICs for {seconds} s, after {WARM_UP_S} s")
        figures |= measured(key, settings, seconds)
    return figures


def measured(key: str, settings: SimSettings, seconds: int) -> dict[str, Value]:
    """Return the speed of a fleet with its pipeline, and the share of a core that each part uses."""
    pipeline = SimPipeline(
        Simulation(settings, topics=FLEET_TOPICS), all_stages(), clock=time.process_time_ns
    )
    _advance(pipeline, WARM_UP_S)
    runner = pipeline.runner
    runner.busy_ns.clear()
    fleet_ns, count = pipeline.fleet_ns, runner.messages.total()
    busy_s = _advance(pipeline, seconds)
    if runner.failed or runner.rejected:
        raise RuntimeError(f"bench sim: {[*runner.failed, *runner.rejected][0]}")
    shares_s = {stage: busy_ns / 1e9 for stage, busy_ns in runner.busy_ns.items()}
    shares_s["fleet"] = (pipeline.fleet_ns - fleet_ns) / 1e9
    shares_s["runner"] = busy_s - sum(shares_s.values())
    messages = (runner.messages.total() - count) / seconds
    note = f"one process, {messages:.0f} messages a simulated second, {len(pipeline.decisions)} decisions"
    figures: dict[str, Value] = {key: Figure(seconds / busy_s, note=note)}
    for name, share_s in shares_s.items():
        figures[f"{key}_{name}"] = Figure(share_s / busy_s, unit="1")
    return figures


def _advance(pipeline: SimPipeline, seconds: int) -> float:
    """Advance simulated time by `seconds`; return the processor time, s, that this took."""
    begin_s = time.process_time()
    for _ in range(seconds * 1_000_000_000 // TICK_NS):
        pipeline.tick()
    return time.process_time() - begin_s
