"""Measures an incast in repeated iterations on the fabric of real packets: paced senders against OBSERVE.

The figures are ratios of paced to unpaced runs, seed by seed: a bystander's request latency at the same host,
the true queue at its last link, goodput and the time of a batch. Each seed draws new hosts and source ports.
To run only this part: `fabrictime bench control incast [--quick]`.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.control.failover import watched_fabric
from fabrictime.bench.control.live_fabric import (
    FRAME_BYTES,
    PAYLOAD_BYTES,
    JobRun,
    Loop,
    QueueLog,
    Span,
    configure,
    last_link,
)
from fabrictime.bench.control.watch import Watch
from fabrictime.commands.config import pause
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.testbed.control import ControlClient
from schemas.ids import host_of
from schemas.records import FlowAction

RATE_BPS: Final = 50_000_000
SENDERS, CONNECTIONS = 4, 4
"""Number of sending hosts, and of connections of each: 16 connections into one host."""
SIZE_BYTES: Final = 125_000
"""Bytes that each connection sends per iteration: 2 MB a batch, which takes 0.33 s at line rate."""
GAP_S: Final = 0.05
RPC_BYTES: Final = 1_000
RPC_GAP_S: Final = 0.004
SEEDS, QUICK_SEEDS = 10, 2
UNPACED_S: Final = 5.0
PACED_S: Final = 6.0
SETTLE_S: Final = 3.0
KNOWN_S: Final = 15.0
MAX_PACED_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Interval:
    """The figures measured over one interval."""

    rpc_p99_ms: float
    queue_p99_ms: float
    goodput_bps: float
    over_floor: float
    """Median time of a batch over its time at line rate."""
    cores: float

    @property
    def text(self) -> str:
        return (
            f"rpc p99 {self.rpc_p99_ms:.1f} ms, queue p99 {self.queue_p99_ms:.1f} ms,"
            f" {self.goodput_bps / 1e6:.1f} Mbit/s, batch {self.over_floor:.2f} of its floor"
        )


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about four minutes, or one with `quick`."""
    with watched_fabric(progress, RATE_BPS) as (control, bootstrap, _, watch):
        configure(bootstrap, "allowed_actions=REROUTE,RESTORE,PACE,UNPACE")
        return _seeds(control, bootstrap, watch, progress, QUICK_SEEDS if quick else SEEDS)


def _seeds(
    control: ControlClient, bootstrap: str, watch: Watch, progress: Progress, seeds: int
) -> dict[str, Value]:
    intervals: list[tuple[_Interval, _Interval]] = []
    paced_share, decisions = [], []
    hosts = sorted({nic["host"] for nic in control.ask("show")["nics"]})
    for number in range(seeds):
        seed = random.SystemRandom().randrange(2**31)
        chance = random.Random(seed)  # noqa: S311  # a draw that can be drawn again, no secret
        receiver, bystander, *senders = chance.sample(hosts, SENDERS + 2)
        pause.pause(LiveRecords(bootstrap), revert=False)
        total_s = KNOWN_S + UNPACED_S + MAX_PACED_S + SETTLE_S + PACED_S + 30
        link = last_link(control, receiver)
        incast = JobRun(
            control,
            kind="incast",
            hosts=[receiver, *senders],
            connections=CONNECTIONS,
            size_bytes=SIZE_BYTES,
            gap_s=GAP_S,
            duration_s=total_s,
            seed=seed,
            job=f"incast-{number}",
            slot_s=0,
        )
        rpc = JobRun(
            control,
            kind="rpc",
            hosts=[bystander, receiver],
            connections=1,
            size_bytes=RPC_BYTES,
            gap_s=RPC_GAP_S,
            duration_s=total_s,
            seed=seed,
            job=f"rpc-{number}",
            slot_s=0,
        )
        queue = QueueLog(control, [link], total_s)
        try:
            watch.until(lambda: len(_flows(watch, incast)) == len(incast.ports), KNOWN_S, "flows")  # noqa: B023  # used at once
            loop, decided, acted = Loop(), len(watch.decisions), len(watch.actions)
            began_s = time.monotonic()
            time.sleep(UNPACED_S)
            unpaced = _interval((began_s, time.monotonic()), incast, rpc, queue, loop.cores())
            pause.resume(LiveRecords(bootstrap))
            watch.soon(lambda: bool(_paced(watch, incast, acted)), MAX_PACED_S)  # noqa: B023  # used at once
            time.sleep(SETTLE_S)
            loop.cores()
            began_s = time.monotonic()
            time.sleep(PACED_S)
            paced = _interval((began_s, time.monotonic()), incast, rpc, queue, loop.cores())
            paced_share.append(len(_paced(watch, incast, acted)) / len(incast.ports))
            decisions.append(len(watch.decisions) - decided)
        finally:
            for running_flow in (incast, rpc, queue):
                running_flow.leave()
        intervals.append((unpaced, paced))
        progress(f"incast: seed {seed}, {receiver}: unpaced: {unpaced.text}")
        progress(
            f"incast: seed {seed}, {receiver}: paced: {paced.text}; {paced_share[-1]:.2f} of flows paced,"
            f" {decisions[-1]} decisions"
        )
        watch.soon(lambda: not _flows(watch, incast), 10)  # noqa: B023  # used at once
    return _figures(intervals, paced_share, decisions)


def _flows(watch: Watch, job: JobRun) -> list[str]:
    """Return the ids of the job's flows in the flow reports."""
    hosts = {host for host, _, _ in job.ports}
    peer_ports = {peer_port for _, _, peer_port in job.ports}
    return [
        name
        for name, flow in watch.flows.items()
        if host_of(flow["nic"]) in hosts and flow["peer_port"] in peer_ports
    ]


def _paced(watch: Watch, job: JobRun, since: int) -> set[str]:
    """Return the ids of the job's flows that an actuator paced, by reports from index `since` on."""
    return watch.applied(FlowAction.PACE, since, _flows(watch, job))


def _interval(span: Span, incast: JobRun, rpc: JobRun, queue: QueueLog, cores: float) -> _Interval:
    """Return the figures of an interval. Raises CannotRun if no batch or request ended in it."""
    time.sleep(1.0)  # iterations and samples are reported each half second
    batches, requests, queued = incast.took_s(span), rpc.took_s(span), queue.within(span)
    if not len(batches) or not len(requests) or not len(queued):
        raise CannotRun(f"{len(batches)} batches, {len(requests)} requests, {len(queued)} samples in a spell")
    floor_s = incast.bytes * 8 * FRAME_BYTES / PAYLOAD_BYTES / RATE_BPS
    return _Interval(
        1e3 * float(np.percentile(requests, 99)),
        8e3 * float(np.percentile(queued, 99)) / RATE_BPS,
        incast.bytes * 8 * len(batches) / float(batches.sum()),
        float(np.median(batches)) / floor_s,
        cores,
    )


def _figures(
    intervals: list[tuple[_Interval, _Interval]], paced_share: list[float], decisions: list[int]
) -> dict[str, Value]:
    def ratio(name: str, *, low: bool) -> Figure:
        ratios = [getattr(paced, name) / getattr(unpaced, name) for unpaced, paced in intervals]
        worst = min(ratios) if low else max(ratios)
        return Figure(float(np.median(ratios)), note=f"worst {worst:.3f} of {len(ratios)} seeds")

    def both(name: str, unit: str) -> dict[str, Any]:
        figures = {}
        for which, spells in zip(("unpaced", "paced"), zip(*intervals, strict=True), strict=True):
            values = [getattr(interval, name) for interval in spells]
            figures[which] = Figure(float(np.median(values)), unit, f"worst {max(values):.3g}")
        return figures

    floor, rpc, queue, cores = (
        both("over_floor", "1"),
        both("rpc_p99_ms", "ms"),
        both("queue_p99_ms", "ms"),
        both("cores", "cores"),
    )
    return {
        "incast_bystander_rpc_p99_vs_unpaced": ratio("rpc_p99_ms", low=False),
        "incast_queue_p99_vs_unpaced": ratio("queue_p99_ms", low=False),
        "incast_goodput_vs_unpaced": ratio("goodput_bps", low=True),
        "incast_batch_over_floor_unpaced": floor["unpaced"],
        "incast_batch_over_floor_paced": floor["paced"],
        "incast_bystander_rpc_p99_ms_unpaced": rpc["unpaced"],
        "incast_bystander_rpc_p99_ms_paced": rpc["paced"],
        "incast_queue_p99_ms_unpaced": queue["unpaced"],
        "incast_queue_p99_ms_paced": queue["paced"],
        "incast_flows_paced_share": Figure(
            float(np.median(paced_share)), "1", f"least {min(paced_share):.2f}"
        ),
        "incast_decisions": Figure(float(np.median(decisions)), "decisions", "of a seed, renewals too"),
        "incast_loop_cores_unpaced": cores["unpaced"],
        "incast_loop_cores_paced": cores["paced"],
    }
