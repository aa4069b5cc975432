"""Measures two tenants at one link on the fabric of real packets: a guarantee, and the use of idle bandwidth.

The figures are the error of the guarantee beside a greedy tenant, and the greedy tenant's share of the link
once the other tenant is idle. Hosts alone enforce the slices. Both are also measured before, in OBSERVE. Each
seed draws new hosts and source ports. To run only this part: `fabrictime bench control slices [--quick]`.
"""

from __future__ import annotations

import random
import time
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench.control.failover import watched_fabric
from fabrictime.bench.control.live_fabric import FlowRun, Loop, configure
from fabrictime.bench.control.watch import Watch
from fabrictime.commands.config import pause
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.testbed.control import ControlClient
from schemas.records import FlowAction

RATE_BPS: Final = 50_000_000
GUARANTEE_BPS: Final = 20_000_000
"""Guaranteed rate of a tenant, and also its ceiling, as too much is as wrong as too little."""
GREEDY: Final = 4
"""Number of flows that the other tenant, which has no limit, sends to the same host."""
SEEDS, QUICK_SEEDS = 10, 2
OBSERVE_S: Final = 3.0
SETTLE_S: Final = 3.0
STEADY_S: Final = 4.0
AFTER_S: Final = 2.0
"""Pause between the end of the guaranteed tenant's traffic and the measurement of the other tenant's rate."""
IDLE_S: Final = 4.0
KNOWN_S: Final = 15.0
PORTS: Final = range(20_000, 32_000)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about four minutes, or one with `quick`."""
    with watched_fabric(progress, RATE_BPS) as (control, bootstrap, _, watch):
        configure(
            bootstrap,
            "allowed_actions=REROUTE,RESTORE,SLICE,UNPACE",
            f"slice.gold={GUARANTEE_BPS}:{GUARANTEE_BPS}",
        )
        return _seeds(control, bootstrap, watch, progress, QUICK_SEEDS if quick else SEEDS)


def _seeds(
    control: ControlClient, bootstrap: str, watch: Watch, progress: Progress, seeds: int
) -> dict[str, Value]:
    errors, before, reused, after, sliced, decisions = [], [], [], [], [], []
    cores: tuple[list[float], list[float]] = ([], [])
    hosts = sorted({nic["host"] for nic in control.ask("show")["nics"]})
    for number in range(seeds):
        seed = random.SystemRandom().randrange(2**31)
        chance = random.Random(seed)  # noqa: S311  # a draw that can be drawn again, no secret
        receiver, own, *others = chance.sample(hosts, 4)
        pause.pause(LiveRecords(bootstrap), revert=False)
        steady_s = KNOWN_S / 3 + OBSERVE_S + SETTLE_S + STEADY_S + 2
        ports = chance.sample(PORTS, 1 + GREEDY)
        jobs = (f"gold-{number}", f"greedy-{number}")
        decided, acted = len(watch.decisions), len(watch.actions)
        gold = FlowRun(
            control,
            source=own,
            destination=receiver,
            rate_bps=0,
            sport=ports[0],
            duration_s=steady_s,
            tenant="gold",
            job=jobs[0],
        )
        ends_s = time.monotonic() + steady_s
        greedy = [
            FlowRun(
                control,
                source=others[i % len(others)],
                destination=receiver,
                rate_bps=0,
                sport=port,
                duration_s=steady_s + AFTER_S + IDLE_S + 1,
                tenant="greedy",
                job=jobs[1],
            )
            for i, port in enumerate(ports[1:])
        ]
        count = 1 + len(greedy)
        watch.until(lambda: len(watch.flows_of(*jobs)) == count, KNOWN_S / 3, "flows")  # noqa: B023  # used at once
        loop = Loop()
        observed = _span(OBSERVE_S)
        cores[0].append(loop.cores())
        pause.resume(LiveRecords(bootstrap))
        time.sleep(SETTLE_S)
        loop.cores()
        paced = (time.monotonic(), ends_s - 0.2)
        time.sleep(max(0.0, ends_s - time.monotonic()))
        names = watch.flows_of(*jobs)
        cores[1].append(loop.cores())
        time.sleep(AFTER_S)
        idle = _span(IDLE_S)
        for flow in (gold, *greedy):
            flow.join()
        sliced.append(len(watch.applied(FlowAction.SLICE, acted, names)) / count)
        decisions.append(len(watch.decisions) - decided)
        got, total_bps = gold.frames_bps(paced), sum(flow.frames_bps(paced) for flow in (gold, *greedy))
        left = sum(flow.frames_bps(idle) for flow in greedy)
        errors.append(abs(got - GUARANTEE_BPS) / GUARANTEE_BPS)
        before.append(abs(gold.frames_bps(observed) - GUARANTEE_BPS) / GUARANTEE_BPS)
        reused.append(left / RATE_BPS)
        after.append(total_bps / RATE_BPS)
        progress(
            f"slices: seed {seed}, {receiver}: guaranteed {GUARANTEE_BPS / 1e6:g} Mbit/s, in OBSERVE"
            f" {gold.frames_bps(observed) / 1e6:.2f}, held {got / 1e6:.2f}, "
            f"all together {total_bps / 1e6:.2f};"
            f" idle: the other {left / 1e6:.2f}; {sliced[-1]:.2f} of flows held, {decisions[-1]} decisions"
        )
        watch.soon(lambda: not watch.flows_of(*jobs), 10)  # noqa: B023  # used at once
    return {
        "slice_guarantee_error": Figure(
            float(np.median(errors)), note=f"worst {max(errors):.3f} of {seeds} seeds"
        ),
        "idle_bandwidth_reused": Figure(float(np.median(reused)), note=f"worst {min(reused):.3f}"),
        "slice_guarantee_error_observe": Figure(float(np.median(before)), "1", f"worst {max(before):.3f}"),
        "slice_link_used": Figure(float(np.median(after)), "1", f"while both send; least {min(after):.3f}"),
        "slice_flows_held_share": Figure(float(np.median(sliced)), "1", f"least {min(sliced):.2f}"),
        "slice_decisions": Figure(float(np.median(decisions)), "decisions", "of a seed, renewals too"),
        "slice_loop_cores_observe": Figure(float(np.median(cores[0])), "cores"),
        "slice_loop_cores": Figure(float(np.median(cores[1])), "cores"),
    }


def _span(seconds: float) -> tuple[float, float]:
    begin_s = time.monotonic()
    time.sleep(seconds)
    return begin_s, time.monotonic()
