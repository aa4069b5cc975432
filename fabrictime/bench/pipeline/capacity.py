"""Searches the largest number of simulated NICs that one worker carries in real time, with slots of 1 ms.

A fleet counts as carried if it keeps the pace of real time, its worker takes at most one core, no slots of
queues were combined, and the evidence about queues is younger than a second. The number is doubled until a
fleet is not carried, then the interval is halved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.pipeline._fleet_run import FULL_PACE, Lengths, Observed, observe
from fabrictime.bench.pipeline._product import running_product
from schemas.topics import QUEUES

KEY: Final = "nics_per_worker_core"
FIRST, MAX_NICS = 32, 1024
RESOLUTION: Final = 16
"""Largest difference, in NICs, between the largest fleet that is carried and the smallest that is not."""
LENGTHS: Final = Lengths(warm_s=30.0, calm_s=15.0, profile_s=0.0)
"""Step lengths. A worker that starts behind combines slots and takes up to 20 s of calm to recover."""
QUICK_RESOLUTION: Final = 64
MAX_AGE_S: Final = 1.0
SLOTS: Final = "[streams]\nqueue_slot_us = 1000\n"


@dataclass(frozen=True, slots=True)
class Trial:
    """The result for one fleet: whether it was carried, and if not, the first reason."""

    nics: int
    text: str
    carried: bool


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about eight minutes, or four with `quick`; each fleet takes a
    minute."""
    trials = search(lambda nics: _try(nics, progress), QUICK_RESOLUTION if quick else RESOLUTION)
    note = "; ".join(trial.text for trial in trials)
    carried = [trial.nics for trial in trials if trial.carried]
    return {KEY: Figure(float(max(carried)), "NICs", note) if carried else Missing(note)}


def search(attempt: Callable[[int], Trial], resolution: int) -> list[Trial]:
    """Return the trials in order: sizes double until one is not carried, then bisect the interval."""
    trials = [attempt(FIRST)]
    while trials[-1].carried and trials[-1].nics < MAX_NICS:
        trials.append(attempt(2 * trials[-1].nics))
    if trials[-1].carried or len(trials) == 1:
        return trials
    low, high = trials[-2].nics, trials[-1].nics
    while high - low > resolution:
        trials.append(attempt((low + high) // 2))
        low, high = (trials[-1].nics, high) if trials[-1].carried else (low, trials[-1].nics)
    return trials


def _try(nics: int, progress: Progress) -> Trial:
    with running_product(progress, f"sim:{nics}", SLOTS) as product:
        observed = observe(product, LENGTHS, progress)
    reason = _reason(observed)
    text = f"{nics}: {reason or 'carried'}"
    progress(text)
    return Trial(nics, text, reason is None)


def _reason(observed: Observed) -> str | None:
    """Return why a fleet is not carried; None if it is."""
    interval, pace = observed.interval, observed.pace or 0.0
    workers = sum(row.cores for row in observed.cores if row.kind == "worker")
    if pace < FULL_PACE:
        return f"{pace:.2f} of real time"
    if workers > 1:
        return f"{workers:.2f} cores"
    if QUEUES.name not in interval.ages:
        return "no queues"
    if max(interval.folds, default=1) > 1:
        return f"{max(interval.folds)} slots combined"
    ages_s = interval.ages[QUEUES.name].reader_ages_s(interval.clock, (interval.begin_ns, interval.end_ns))
    age_s = float(np.percentile(ages_s, 99)) if len(ages_s) else np.inf
    return f"queues {age_s:.1f} s old" if age_s > MAX_AGE_S else None
