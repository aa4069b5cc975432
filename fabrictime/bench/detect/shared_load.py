"""Measures whether one worker keeps up with the probes of the shared fabric, and what a backlog costs.

The truth is `_truth`. The worker has one core of this machine for reduction and inference, with the records
between them encoded and decoded.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._truth import LeafSpine, Traffic
from fabrictime.bench.detect._shared_worker import Worker
from fabrictime.bench.detect.shared_fabric import EPOCH_NS, MS, SHARD, SLOT_NS, Scene, draw
from streams.delays.queueing import SourceQueueing
from streams.queues.inference import ShardQueues
from streams.runtime.pipeline_constants import SUB_SLOTS

NICS, RATE_PPS = 32, 4_000
WARM_UP_NS: Final = 300 * MS
"""Time until the first block."""
END_NS: Final = 200 * MS
"""Time at the end that is left out, since its data is incomplete when the last batch arrives."""
BEHIND_NS: Final = 1_000 * MS


def published_share(scene: Scene) -> Figure:
    """Return the share of slots that one worker publishes; the note has the slot lengths it chose."""
    there = np.zeros(len(scene.slots.depth_bytes), np.bool_)
    worker = Worker(scene)
    for _, record in worker.run():
        length_ns = record["slot_ns"] * record["slots"]
        if record["slots"] > 1:
            first = (record["window_start_ns"] - EPOCH_NS) // SLOT_NS
            there[max(0, first) : max(0, first + length_ns // SLOT_NS)] = True
    whole_ns = max(1, sum(worker.work.slots.values()))
    lengths = ", ".join(
        f"{100 * time_ns / whole_ns:.0f} % in slots of {fold} ms"
        for fold, time_ns in sorted(worker.work.slots.items())
    )
    seconds = len(there) * SLOT_NS / 1e9
    note = (
        f"{scene.fabric.nics} NICs: {lengths}; at most {worker.work.behind_ns / 1e6:.0f} ms after a block's "
        f"end, {worker.work.skipped} batches skipped, {worker.work.spent_s / seconds:.2f} cores"
    )
    return Figure(float(there[WARM_UP_NS // SLOT_NS : -END_NS // SLOT_NS].mean()), note=note)


def backlog_cost(scene: Scene) -> Figure:
    """Return the median ratio of the cost of solving a block with a backlog of 1 s to that without."""
    rate_bps = round(scene.fabric.rate_bps)
    shards = [ShardQueues(SHARD, lambda link: rate_bps) for _ in range(2)]
    costs: list[dict[int, float]] = [{}, {}]
    source = SourceQueueing("bench/0", scene.slot_ns // SUB_SLOTS)
    worker = Worker(scene)
    newest = 0

    def solve(which: int, until: int) -> None:
        shard = shards[which]
        while shard.ready():
            if which and shard.next_block_ns > until:
                return
            block_ns, began = shard.next_block_ns, time.thread_time()
            shard.solve(0)
            costs[which][block_ns] = time.thread_time() - began

    now = 0
    for offset, (when, batch) in enumerate(scene.batches()):
        if when != now:
            for record in source.take(worker.members):
                for shard in shards:
                    shard.take(record, scene.routes)
                newest = max(newest, record["complete_ns"])
            solve(0, newest)
            solve(1, newest - BEHIND_NS)
            now = when
        source.add(batch, when, offset, worker.lines(when))
    both = sorted(set(costs[0]) & set(costs[1]))[20:]
    ratios = [costs[1][block] / costs[0][block] for block in both]
    usual_ms = 1e3 * float(np.median([costs[0][block] for block in both]))
    return Figure(float(np.median(ratios)), note=f"{len(both)} blocks of 10 ms, {usual_ms:.1f} ms each")


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about half a minute, or a third of it with `quick`."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    progress(f"shared load: {NICS} NICs, {RATE_PPS}/s, one worker, seed {seed}")
    fabric, seconds = LeafSpine(NICS), 3.0 if quick else 8.0
    figures: dict[str, Value] = {
        "slots_published": published_share(draw(fabric, Traffic(), seed, seconds, RATE_PPS))
    }
    progress("shared load: the cost of a backlog of 1 s")
    scene = draw(LeafSpine(16), Traffic(), seed, 1.8 if quick else 3.0, 2_000)
    figures["cost_per_block_1s_behind_over_none"] = backlog_cost(scene)
    return figures
