"""Two all-to-alls at once on a non-blocking fabric: ECMP against steering, in one run, seed by seed.

In: nothing. Out: goodput with decisions carried out over that without (OBSERVE), and over the best that there
is (fabrictime/testbed/best.py); flows that were steered back onto links that they had left; how soon
`fabrictime hold` stops all. Each seed draws the source ports anew. By hand:
`fabrictime bench act alltoall [--quick]`.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from fabrictime import hold
from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._act_failover import NEVER_MS, SETTINGS
from fabrictime.bench._act_watch import Watch
from fabrictime.bench._clock_fabric import CannotRun, running_fabric
from fabrictime.live_config import LiveRecords
from fabrictime.testbed.control import ControlClient

__all__ = ["KEYS", "measure"]

RATE_BPS: Final = 20_000_000
SIZE_BYTES: Final = 500_000
CONNECTIONS: Final = 4
SEEDS, QUICK_SEEDS = 10, 2
BEFORE_S: Final = 9.0
STEER_S: Final = 10.0
AFTER_S: Final = 9.0
READY_S: Final = 60.0
KEYS: Final = (
    "two_alltoall_throughput_vs_ecmp", "two_alltoall_vs_best", "oscillations_10min", "hold_stops_within_ms",
)  # fmt: skip


class _Job:
    """An all-to-all that runs, its iterations as they end."""

    def __init__(self, control: ControlClient, name: str, seed: int, duration_s: float) -> None:
        self._stream = control.stream(
            "job", kind="alltoall", connections=CONNECTIONS, size_bytes=SIZE_BYTES, duration_s=duration_s,
            seed=seed, job=name, slot_s=0,
        )  # fmt: skip
        started = next(self._stream)
        self.best_bps: float = started["best_goodput_bps"]
        self.bytes: int = started["iteration_bytes"]
        self.connections = len(started["connections"])
        self.ends_s: list[float] = []
        self.result: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for said in self._stream:
            if "ended" in said:
                self.result = said
            else:
                self.ends_s += [each["end_ns"] / 1e9 for each in said["iterations"]]

    def bps(self, from_s: float, to_s: float) -> float:
        """Return goodput of whole iterations between two moments of the monotonic clock."""
        ends = [end for end in self.ends_s if from_s <= end <= to_s]
        return (len(ends) - 1) * self.bytes * 8 / (ends[-1] - ends[0]) if len(ends) > 1 else 0.0

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(120)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure; some seven minutes, or two where `quick`."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as folder:
        try:
            settings = SETTINGS.format(rate=RATE_BPS, reflex_ms=NEVER_MS)
            with (
                running_fabric(Path(folder), progress, settings) as (control, bootstrap),
                Watch(bootstrap) as watch,
            ):
                return _seeds(control, bootstrap, watch, progress, QUICK_SEEDS if quick else SEEDS)
        except CannotRun as reason:
            return {key: Missing(str(reason)) for key in KEYS}


def _seeds(
    control: ControlClient, bootstrap: str, watch: Watch, progress: Progress, seeds: int
) -> dict[str, Value]:
    gains, ecmp, best, stopped, moved = [], [], [], [], []
    for number in range(seeds):
        seed = random.SystemRandom().randrange(2**31)
        stopped.append(hold.hold(LiveRecords(bootstrap), revert=False).took_ms)
        total_s = READY_S + BEFORE_S + STEER_S + AFTER_S
        jobs = [_Job(control, f"a2a-{number}-{which}", seed + which, total_s) for which in range(2)]
        flows = sum(job.connections for job in jobs)
        watch.until(lambda flows=flows: watch.movable >= flows, READY_S / 2, "ways of all connections")  # type: ignore[misc]
        began_s = time.monotonic()
        time.sleep(BEFORE_S)
        decided = len(watch.decisions)
        hold.resume(LiveRecords(bootstrap))
        time.sleep(STEER_S)
        acted_s = time.monotonic()
        time.sleep(AFTER_S)
        stopped.append(hold.hold(LiveRecords(bootstrap), revert=False).took_ms)
        hold.resume(LiveRecords(bootstrap))
        before = sum(job.bps(began_s, began_s + BEFORE_S) for job in jobs)
        after = sum(job.bps(acted_s, acted_s + AFTER_S) for job in jobs)
        most = sum(job.best_bps for job in jobs) / len(jobs)
        moves = len(watch.decisions) - decided
        gains.append(after / before if before else 0.0)
        ecmp.append(before / most)
        best.append(after / most)
        moved.append(moves / flows)
        progress(
            f"alltoall: seed {seed}: ECMP {before / 1e6:.1f} Mbit/s, steered {after / 1e6:.1f}, "
            f"{gains[-1]:.3f} times, best {most / 1e6:.1f}; {moves} decisions on {flows} flows"
        )
        for job in jobs:
            job.join()
        watch.soon(lambda: not watch.movable, 15)
    back = _steered_back(watch)
    return {
        "two_alltoall_throughput_vs_ecmp": Figure(
            float(np.median(gains)), note=f"worst {min(gains):.3f}, best {max(gains):.3f} of {seeds} seeds"
        ),
        "two_alltoall_vs_best": Figure(float(np.median(best)), note=f"worst {min(best):.3f}"),
        "two_alltoall_ecmp_vs_best": Figure(float(np.median(ecmp)), "1", f"worst {min(ecmp):.3f}"),
        "flows_moved_share": Figure(float(np.median(moved)), "1"),
        "oscillations_10min": Figure(
            float(len(back)),
            note=f"in {seeds * (STEER_S + AFTER_S) / 60:.1f} min of acting",
        ),
        "hold_stops_within_ms": Figure(float(max(stopped)), note=f"median {np.median(stopped):.0f}"),
    }


def _steered_back(watch: Watch) -> list[str]:
    """Return flows that were steered from some links to others and then to the first again."""
    seen: dict[str, set[int]] = defaultdict(set)
    found = []
    for decision in sorted(watch.decisions.values(), key=lambda each: (each["epoch"], each["seq"])):
        if decision["reason"]["kind"] == "COLLISION":
            seen[decision["flow_id"]].add(decision["from_path"])
            if decision["to_path"] in seen[decision["flow_id"]]:
                found.append(decision["flow_id"])
    return found
