"""Measures the probe rate of one prober thread over the fabric, and the cost of a probe against irtt's.

It builds a leaf-spine-leaf fabric of network namespaces, with prober and responder in processes of their own.
A probe is a request and its reply with all four kernel timestamps, t3 by follow-up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from fabrictime.bench import Figure, Missing, Progress, Target, Value

NAME: Final = "probe"

TARGETS: Final[Mapping[str, Target]] = {
    "probes_per_second_one_thread": Target("1/s", ">=", 60_000),
    "cpu_per_probe_vs_irtt": Target("1", "<=", 0.25),
}

_UNITS: Final = {"_us": "us", "_pps": "1/s", "_ns": "ns"}


def _unit(key: str) -> str:
    stem = key.removesuffix("_at_its_fastest")
    return next((unit for end, unit in _UNITS.items() if stem.endswith(end)), "1")


def run(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in short runs if `quick`.

    Raises RuntimeError if a part fails.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "fabrictime.bench.probe.run", json.dumps({"quick": quick})],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        values: dict[str, Value] = {}
        for line in process.stdout or ():
            lines = json.loads(line)
            if "progress" in lines:
                progress(lines["progress"])
            elif "missing" in lines:
                values = {key: Missing(lines["missing"]) for key in TARGETS}
            else:
                values = _values(lines["figures"], lines["versus"])
    if process.returncode:
        raise RuntimeError(f"bench probe: its fabric process ended with {process.returncode}")
    return values


def _values(speed: Mapping[str, float], versus: Mapping[str, float | str]) -> dict[str, Value]:
    figures: dict[str, Value] = {
        key: Figure(float(value), _unit(key))
        for key, value in {**speed, **versus}.items()
        if key != "missing"
    }
    if "missing" in versus:
        figures["cpu_per_probe_vs_irtt"] = Missing(str(versus["missing"]))
    return figures
