"""Measures the guided tour on two cores beside a browser: faults named right in time, and the time to act.

Each run is `fabrictime demo` in a separate process, which draws places, sizes and moments at run time. A
fault counts if its verdict names the planted link and kind within 3 s. The time from detection to the first
move is over all detected faults of all runs; a fault without a move counts as infinite.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import CannotRun, address_of
from fabrictime.bench._waiting import end_child, wait_for
from fabrictime.bench.detect.web_reader import BrowserReader, browser_missing
from fabrictime.bench.pipeline._product import SETTINGS

RUNS, QUICK_RUNS = 5, 1
CORES: Final = 2
IN_TIME_MS: Final = 3_000.0
LIMIT_S: Final = 600.0
"""Longest time of a tour, its start included."""

Step = Mapping[str, Any]
"""A step in the output of `fabrictime demo --json`."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about fifteen minutes, or three with `quick`."""
    runs = QUICK_RUNS if quick else RUNS
    steps: list[Step] = []
    no_browser = browser_missing()
    with _on_cores(CORES):
        for number in range(runs):
            progress(f"tour {number + 1} of {runs}")
            for step in _tour(no_browser is None):
                steps.append(step)
                progress(f"tour {number + 1}: {_text(step)}")
    right = sum(map(right_in_time, steps))
    missed = [_text(step) for step in steps if not right_in_time(step)]
    beside = "beside Chromium" if no_browser is None else f"no browser: {no_browser}"
    moves = moves_s(steps)
    p95_s = move_s_p95(moves)
    moved = f"{sum(map(math.isfinite, moves))} of {len(moves)} detected faults had a move"
    return {
        "tour_right_within_3s": Figure(
            right / len(steps), "1", "; ".join([f"{right} of {len(steps)}, {beside}", *missed])
        ),
        "detection_to_first_move_s_p95": Figure(p95_s, "s", moved)
        if math.isfinite(p95_s)
        else Missing(moved),
    }


def right_in_time(step: Step) -> bool:
    """Return whether a fault was named correctly within 3 s; for a flapping link, its first drop counts."""
    if "right_in_time" in step:
        return bool(step["right_in_time"])
    in_time = step["detected_ms"] is not None and step["detected_ms"] <= IN_TIME_MS
    return in_time and bool(step.get("right", step["named"] == "yes"))


def _text(step: Step) -> str:
    text = f"{step['fault']} at {step['place']}: named {step['named']} after {step['detected_ms']} ms"
    return f"{text}, first drop {step['first_drop_ms']} ms" if step.get("first_drop_ms") is not None else text


def moves_s(steps: Sequence[Step]) -> list[float]:
    """Return the seconds from the detection of each fault to the first move; infinite without a move."""
    times = []
    for step in steps:
        if step["detected_ms"] is not None:
            move_ms = step.get("detection_to_first_move_ms")
            if "detection_to_first_move_ms" not in step and step["action_ms"] is not None:
                move_ms = max(0.0, step["action_ms"] - step["detected_ms"])  # of tours before that field
            times.append(math.inf if move_ms is None else move_ms / 1e3)
    return times


def move_s_p95(times: Sequence[float]) -> float:
    """Return the smallest time that at least 95 % of the times do not exceed; infinite if there are none."""
    return sorted(times)[math.ceil(0.95 * len(times)) - 1] if times else math.inf


@contextlib.contextmanager
def _on_cores(count: int) -> Iterator[None]:
    """Restrict this process, and all that it starts, to `count` processors while the block runs."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(usable)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def _tour(with_browser: bool) -> list[Step]:
    """Run one tour on a separate pipeline and return its steps. Raises CannotRun."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as name:
        folder = Path(name)
        config, data, output = folder / "fabrictime.toml", folder / "data", folder / "demo.json"
        config.write_text(SETTINGS, encoding="utf-8")
        command = [sys.executable, "-m", "fabrictime", "demo", "--json", "--dir", str(data)]
        with output.open("wb") as out, (folder / "demo.log").open("wb") as lines:
            command += ["--config", str(config)]
            demo = subprocess.Popen(command, stdout=out, stderr=lines, start_new_session=True)
        try:
            with contextlib.ExitStack() as stack:
                if with_browser:
                    _open_page(stack, demo, data)
                demo.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise CannotRun(f"fabrictime demo: not done after {LIMIT_S:g} s") from None
        finally:
            end_child(demo, signal.SIGTERM, 60)
        text = output.read_text(encoding="utf-8").strip()
        if not text:
            last = (folder / "demo.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise CannotRun(f"fabrictime demo: {last[-1] if last else f'ended with {demo.returncode}'}")
        steps: list[Step] = json.loads(text.splitlines()[-1])["steps"]
        return steps


def _open_page(stack: contextlib.ExitStack, demo: subprocess.Popen[bytes], data: Path) -> None:
    """Open the live page in a browser as soon as it is served; `stack` closes the browser."""
    wait_for(lambda: demo.poll() is not None or address_of(data, "web"), LIMIT_S / 2, poll_s=0.5)
    if url := address_of(data, "web"):
        page = BrowserReader(url)
        stack.callback(page.close)
        page.open("fabric")
