"""Measures the explanations of jobs with programs and faults of others, on a fabric of real packets.

Its author read the documents of the verdicts, and not the diagnosis. `fabrictime bench foreign runs` draws 60
runs, and prints the seed; `hangs` and `pauses` are the other parts. All three take about three hours, so
environment variables can divide the bench. `FABRICTIME_FOREIGN_RESULTS` names a file of JSON lines to which
each run is added. A later call uses the file's seed, skips the runs in the file, and scores the whole file.
`FABRICTIME_FOREIGN_CASES` is the largest number of runs per call, or a text in the names or causes to run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabrictime.bench import Missing, Progress, Target, Value

if TYPE_CHECKING:
    from fabrictime.bench.foreign import _results

NAME: Final = "foreign"
TARGETS: Final = {
    "foreign_right": Target("1", ">=", 0.9),
    "first_right_s": Target("s", "<=", 10),
    "cleared_after_end_s": Target("s", "<=", 15),
    "second_named_s": Target("s", "<=", 15),
    "verdict_changes_per_minute": Target("1/min", "<=", 1),
    "foreign_calibration_error": Target("1", "<=", 0.15),
    "network_blamed_s_per_hour": Target("s/h", "<=", 1),
    "foreign_runs": Target("runs", ">=", 60),
    "foreign_healthy_runs": Target("runs", ">=", 20),
    "foreign_programs": Target("programs and sizes"),
    "foreign_load": Target("runnable processes"),
    "hang_rank_right": Target("1", ">=", 0.98),
    "stalled_s": Target("s", "<=", 10),
    "false_hangs": Target("pauses", "<=", 0),
}
PARTS: Final = {
    "runs": tuple(key for key in TARGETS if key not in ("hang_rank_right", "stalled_s", "false_hangs")),
    "hangs": ("hang_rank_right", "stalled_s"),
    "pauses": ("false_hangs",),
}
"""Keys of the figures of each part. The network's blame counts in all runs of the results."""
SETTINGS: Final = """
[up]
act = "off"
web = false
clock_pages = true
[log]
port = 0
[history]
port = 0
[audit]
every_s = 0
[fabric]
hosts = 8
leaves = 2
spines = 1
host_rate_bps = 20000000
fabric_rate_bps = 50000000
[probes]
peers = 7
rate_pps = 100
flow_pps = 100
singles = 1
"""
"""Settings with few probes, so that two processors keep up.

A job of four hosts cannot fill a link between switches alone, and has no choice of paths. So its own flows
are never a fault of the network, and those of a second job on the other hosts are one."""
RESULTS: Final = "FABRICTIME_FOREIGN_RESULTS"
CASES: Final = "FABRICTIME_FOREIGN_CASES"


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all; return the figures by key, over all results of the file."""
    from fabrictime.bench._fabric import CannotRun
    from fabrictime.bench.foreign import _results, _score

    selected = [part for part in PARTS if not parts or part in parts]
    keys = [key for part in selected for key in PARTS[part]]
    with tempfile.TemporaryDirectory() as folder:
        results = _results.Results(
            Path(os.environ.get(RESULTS) or Path(folder, "runs")), secrets.randbits(32)
        )
        progress(f"seed {results.seed}, {len(results.outcomes)} runs in {results.path}")
        try:
            _measure(progress, results, selected, quick)
        except CannotRun as reason:
            return {key: Missing(str(reason)) for key in keys}
        values = _score.figures(results.outcomes)
    return {key: values[key] for key in keys}


def _measure(progress: Progress, results: _results.Results, parts: Sequence[str], quick: bool) -> None:
    """Measure the selected cases without a result, and add their outcomes to the results.

    Raises CannotRun.
    """
    from fabrictime.bench._fabric import CannotRun, running_fabric
    from fabrictime.bench.field._mpi_kinds import OPEN_MPI
    from fabrictime.bench.foreign import _hosts, _live, _programs, _score
    from fabrictime.bench.foreign._draw import draw

    selection = os.environ.get(CASES, "")
    if selection == "0":
        return
    if not OPEN_MPI.is_installed or shutil.which("nsenter") is None:
        raise CannotRun(f"no Open MPI or no nsenter (Debian: apt-get install {OPEN_MPI.packages} util-linux)")
    with running_fabric(progress, SETTINGS, minutes=600) as fabric, tempfile.TemporaryDirectory() as name:
        missing = _hosts.possible(_hosts.namespaces_of(fabric.control))
        for cause, reason in missing.items():
            progress(f"no {cause}: {reason}")
        installed = _programs.installed() - set(missing)
        cases = [case for part in parts for case in draw(results.seed, part, installed, quick=quick)]
        with _live.Watch(fabric.bootstrap) as watch:
            for case in results.left(cases, selection):
                progress(f"{case.name}: {case.program} {case.size}: {case.cause}")
                run_case = _live.Run(case, fabric, watch, Path(name))
                outcome = run_case.measure()
                results.add(outcome)
                progress(f"{case.name}: {outcome.error or _score.summary(outcome)}")
