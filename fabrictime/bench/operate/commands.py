"""Measures how soon each command fails without a pipeline, and for an address without a listener.

The command lines are those of `bench field elsewhere`, derived from the command line itself. The figure is
the largest median over the command lines, with its name. `fabrictime --version` measures the start alone.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench.field.elsewhere import LIMIT_S, command_lines, commands
from schemas.run_module import module_command

NOBODY: Final = "127.0.0.1:1"
_RUNS: Final = 3


def measure(progress: Progress, quick: bool) -> dict[str, Value]:
    """Return the longest time of a command without a pipeline, and that of a start alone, s."""
    runs = 1 if quick else _RUNS
    with tempfile.TemporaryDirectory(prefix="fabrictime-commands-") as name:
        folder = Path(name)
        lines = command_lines(folder / "missing")
        with_log = {key for key, command in commands() if any("--log" in p.opts for p in command.params)}
        lines |= {f"{key} --log": [*lines[key], "--log", NOBODY] for key in with_log & set(lines)}
        names = sorted(lines)[:: 8 if quick else 1]
        start_s = _median_s(["--version"], folder, runs)
        worst_s, worst = 0.0, ""
        for key in names:
            median_s = _median_s(lines[key], folder, runs)
            progress(f"{key}: {median_s:.2f} s")
            worst_s, worst = max((worst_s, worst), (median_s, key))
    return {
        "command_without_pipeline_s": Figure(worst_s, "s", f"{worst}; of {len(names)} lines"),
        "command_start_s": start_s,
    }


def _median_s(arguments: Sequence[str], folder: Path, runs: int) -> float:
    times_s = []
    for _ in range(runs):
        began_s = time.monotonic()
        subprocess.run(
            [*module_command("fabrictime", *arguments)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        times_s.append(time.monotonic() - began_s)
    return statistics.median(times_s)
