"""Measures false queues that a stepped clock causes on the shared fabric; the target is none.

The truth is `_truth`, with one clock that steps. The clock models follow it as the clock stage's do: the old
model until the window of the step is solved, none for the next window, then the right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._truth import Clocks, LeafSpine, Traffic
from fabrictime.bench.detect._shared_worker import Worker
from fabrictime.bench.detect.shared_fabric import CLOCK_BOUND_NS, EPOCH_NS, MS, SLOT_NS, Scene, draw
from fabrictime.bench.detect.shared_queues import depths
from fabrictime.bench.detect.standing_queues import Watch, is_there, present_queues
from native.core import ClockLine
from schemas.records import LinkQueues

STEPS_NS: Final = (1_000_000.0, -1_000_000.0, 100_000.0, -100_000.0)
STEP_AT_NS: Final = 2_300 * MS
WINDOW_NS: Final = 1_000 * MS
SOLVED_NS: Final = 200 * MS
"""Time from the end of a window until its clock models are known."""
DEEP_BYTES: Final = 50e3
"""Depth at which a queue on an idle link counts as false: that of contention."""


class SteppedModels:
    """The clock models by time; one of the clocks steps."""

    def __init__(self, names: list[str], stepped: str, by_ns: float) -> None:
        right = ClockLine(EPOCH_NS, 0, 0.0, CLOCK_BOUND_NS)
        after = ClockLine(EPOCH_NS, -round(by_ns), 0.0, CLOCK_BOUND_NS)
        unknown = {name: right for name in names if name != stepped}
        self._known = (unknown | {stepped: right}, unknown, unknown | {stepped: after})
        window_end_ns = EPOCH_NS + -(-STEP_AT_NS // WINDOW_NS) * WINDOW_NS
        self._unsynced_ns = window_end_ns + SOLVED_NS

    def at(self, when_ns: int) -> Mapping[str, ClockLine]:
        """Return the clock models by NIC that are valid at a time of the log."""
        passed = (when_ns - self._unsynced_ns) // WINDOW_NS
        return self._known[0 if passed < 0 else 1 if passed == 0 else 2]


def false_seconds(scene: Scene, worker: Worker) -> tuple[float, float]:
    """Return, after the step, the seconds of false contention windows and of deep slots on idle links."""
    watch, records = Watch(scene, None), []
    for now_ns, record in worker.run():
        watch.take(now_ns, record, 0.0)
        records.append(record)
    present, step_ns = present_queues(scene), EPOCH_NS + STEP_AT_NS
    end_ns = EPOCH_NS + len(present) * SLOT_NS
    open_ns = sum(
        (window.closed_ns or end_ns) - max(window.opened_ns, step_ns)
        for window in watch.windows.values()
        if (window.closed_ns or end_ns) > step_ns and not is_there(window, scene, present)
    )
    return open_ns / 1e9, _deep_seconds(scene, records)


def _deep_seconds(scene: Scene, records: list[LinkQueues]) -> float:
    depth, _, _ = depths(scene, records)
    idle = scene.crossed & (scene.load == 0)
    false = (depth[:, idle] > DEEP_BYTES) & (scene.slots.depth_bytes[:, idle] < DEEP_BYTES / 4)
    return float(false[STEP_AT_NS // SLOT_NS :].any(axis=1).sum()) * SLOT_NS / 1e9


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about half a minute, or half of it with `quick`."""
    steps, notes, worst = STEPS_NS[::2] if quick else STEPS_NS, [], 0.0
    for by_ns in steps:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        progress(f"clock steps: {by_ns / 1e3:.0f} us, seed {seed}")
        fabric, rng = LeafSpine(16), np.random.default_rng(seed)
        # without incasts, so that every deep queue of an idle link is false
        scene = draw(fabric, Traffic(incast_every_ns=0), seed, 5.5, 1_000)
        clocks = Clocks(np.zeros(fabric.nics), np.zeros((fabric.nics, 1)))
        stepped = int(rng.integers(fabric.nics))
        clocks.step(stepped, float(STEP_AT_NS), by_ns)
        scene.clocks = clocks
        names = fabric.nic_names()
        models = SteppedModels(names, names[stepped], by_ns)
        contention_s, deep_s = false_seconds(scene, Worker(scene, lines=models.at))
        worst = max(worst, contention_s, deep_s)
        notes.append(f"{by_ns / 1e3:+.0f} us: windows {contention_s:.2f} s, idle links {deep_s:.3f} s")
    return {"false_queue_after_clock_step_s": Figure(worst, note="; ".join(notes))}
