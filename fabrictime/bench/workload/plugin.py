"""Measures the NCCL profiler plugin: cost of a call, events lost, and the error of measured waits.

`nccl-replay` loads the plugin and makes the calls of NCCL for rings of transfers. `nccl-split` makes the
calls in simulated time, where the true waits are known.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fabrictime.bench import Figure, Missing, Progress, Value
from native import nccl

THREADS: Final = 8
EVENTS_PER_S: Final = 2_000_000
TIMEOUT_S: Final = 600
"""Time limit of one program, s; on an idle machine each takes a few seconds."""


def _replay(program: str, *arguments: object, **environment: str) -> dict[str, Any]:
    """Run a program and return the JSON object that it prints. Raises RuntimeError if it fails."""
    path = nccl.program("nccl-split" if program == "split" else "nccl-replay")
    with tempfile.TemporaryDirectory(prefix="fabrictime-") as folder:
        done = subprocess.run(
            [path, program, nccl.library(), *map(str, arguments)],
            env=os.environ | {"TMPDIR": folder} | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    if done.returncode:
        raise RuntimeError(
            f"{path.name} {program}: ended with {done.returncode}: {done.stderr.strip()[-200:]}"
        )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _cost(quick: bool) -> dict[str, Value]:
    result = _replay("cost", THREADS, 50_000 if quick else 500_000)
    bare = result["bare_p50_ns"]
    note = f"{bare} ns for a clock read, timed alike; {result['calls']} calls"
    return {
        "plugin_ns_per_event_p50": Figure(result["p50_ns"] / bare, note=f"{result['p50_ns']} ns; {note}"),
        "plugin_ns_per_event_p99": Figure(result["p99_ns"] / bare, note=f"{result['p99_ns']} ns; {note}"),
    }


def _loss(quick: bool) -> dict[str, Value]:
    seconds = 2 if quick else 10
    result = _replay("rate", THREADS, EVENTS_PER_S, seconds)
    reached = result["made"] / seconds
    cores = len(os.sched_getaffinity(0))
    note = (
        f"{reached / 1e6:.2f} million events/s from {THREADS} threads, {cores} cores for writers and reader"
    )
    lost: Value = Figure(result["dropped"], note=note)
    if reached < 0.98 * EVENTS_PER_S:
        lost = Missing(f"this machine reached {note}, expected 2 million; {result['dropped']} lost")
    return {"plugin_events_lost": lost}


def _counted(quick: bool) -> dict[str, Value]:
    result = _replay("flood", THREADS, 200_000 if quick else 4_000_000)
    counted = result["read"] + result["dropped"]
    exact = min(counted, result["made"]) / max(counted, result["made"])
    note = f"{result['dropped']} of {result['made']} events dropped"
    return {"loss_counted_exactly": Figure(exact, note=note)}


def _split(quick: bool) -> dict[str, Value]:
    seed = secrets.randbelow(1 << 30)
    result = _replay("split", seed, 100 if quick else 1000)
    note = (
        f"95th percentile of {result['scripts']} collectives, seed {seed}; "
        f"rms {result['rms_points']:.2f}, median {result['p50_points']:.2f}, "
        f"largest {result['max_points']:.1f}"
    )
    return {"sampled_split_error": Figure(result["p95_points"], note=note)}


def measure(progress: Progress, quick: bool) -> Mapping[str, Value]:
    """Return the figures of the plugin by key."""
    figures: dict[str, Value] = {}
    parts: Mapping[str, tuple[Callable[[bool], dict[str, Value]], Sequence[str]]] = {
        "cost of a call": (_cost, ("plugin_ns_per_event_p50", "plugin_ns_per_event_p99")),
        f"{EVENTS_PER_S} events/s": (_loss, ("plugin_events_lost",)),
        "more events than the reader takes": (_counted, ("loss_counted_exactly",)),
        "error of measured waits": (_split, ("sampled_split_error",)),
    }
    for text, (part, keys) in parts.items():
        progress(f"plugin: {text}")
        try:
            figures.update(part(quick))
        except (RuntimeError, FileNotFoundError, subprocess.TimeoutExpired) as error:
            figures.update(dict.fromkeys(keys, Missing(f"{text}: {error}")))
    return figures
