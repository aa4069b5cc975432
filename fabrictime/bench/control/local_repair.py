"""Measures failover while the log is stopped, by the host's own probes and local repair alone.

The figures are ms from a silent blackhole until the flows on it have 90 % of their throughput again. The
log's process is stopped before the fault. To run only this part: `fabrictime bench control local_repair`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.control.failover import (
    RATE_BPS,
    Steady,
    crossed,
    fault,
    flow_of,
    over,
    regained_ms,
    steady_flows,
    watched_fabric,
)
from fabrictime.bench.control.watch import Watch
from fabrictime.runtime import status
from fabrictime.testbed.control import ControlClient

LOCAL_REPAIR_MS: Final = 30
TRIALS, QUICK_TRIALS = 12, 4
FAULT_S: Final = 1.2
REST_S: Final = 3.0
"""Pause in which the log's readers reconnect and new links of flows become known."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in a minute and a half, or less with `quick`."""
    with watched_fabric(progress, RATE_BPS, LOCAL_REPAIR_MS) as (control, _, data, watch):
        return _trials(control, watch, data, progress, QUICK_TRIALS if quick else TRIALS)


def _trials(
    control: ControlClient, watch: Watch, data: Path, progress: Progress, trials: int
) -> dict[str, Value]:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)  # noqa: S311  # a draw that can be drawn again, no secret
    log = next(row["pid"] for row in status.read(data)["children"] if row["name"] == "log")
    faults: list[tuple[float, list[str], str]] = []
    with steady_flows(control, watch, chance, 12 + trials * (FAULT_S + REST_S + 1.5), progress) as flows:
        for _ in range(trials):
            link = chance.choice(crossed(watch, flows))
            hit = over(watch, flows, link)
            os.kill(log, signal.SIGSTOP)
            try:
                time.sleep(0.3)
                began_s = fault(control, link)
                time.sleep(FAULT_S)
            finally:
                os.kill(log, signal.SIGCONT)
            control.ask("clear")
            faults.append((began_s, hit, link))
            time.sleep(REST_S)
    took, lost = _regained(flows, faults, progress)
    if not took:
        raise CannotRun("no fault hit a flow")
    reflexes = sum(action["outcome"] == "LOCAL_REPAIR" for action in watch.actions)
    return {
        "local_repair_failover_ms_p99": Figure(
            float(np.percentile(took, 99)),
            note=f"p50 {np.median(took):.0f}, {len(took)} flows hit in {trials} blackholes, {lost} not back "
            f"within the fault, {reflexes} reflexes, seed {seed}",
        )
    }


def _regained(
    flows: list[Steady], faults: list[tuple[float, list[str], str]], progress: Progress
) -> tuple[list[float], int]:
    took = []
    for began_s, hit, link in faults:
        regained = [ms for name in hit if (ms := regained_ms(flow_of(flows, name), began_s)) is not None]
        progress(f"reflex: blackhole {link}: {', '.join(f'{ms:.0f}' for ms in regained)} ms")
        took += regained
    return took, sum(ms >= FAULT_S * 1e3 for ms in took)
