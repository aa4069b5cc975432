"""Writes the folders of an incident: one for each format, and sometimes one with several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from fabrictime.bench.workload.postmortem.checks import nccl_tests, slurm
from fabrictime.bench.workload.postmortem.logs import Layout, nccl_lines, write_logs
from fabrictime.bench.workload.postmortem.program_log import program_lines
from fabrictime.bench.workload.postmortem.records import flight_recorder, inspector, kineto
from fabrictime.bench.workload.postmortem.run import Run
from fabrictime.bench.workload.postmortem.truth import Folder

MISSING_SHARE: Final = 0.35
"""Share of the folders with files per rank in which some ranks left none."""
MIXED_SHARE: Final = 0.3
"""Share of the incidents with a folder of several formats."""


def write_folders(target: Path, run: Run, rng: Random) -> Iterator[tuple[Path, Folder]]:
    """Write the folders of an incident; yield each with its description."""
    for form, write in WRITERS.items():
        path = target / form
        path.mkdir(parents=True)
        yield path, write(path, run, rng)
    if rng.random() < MIXED_SHARE:
        path = target / "several"
        parts = []
        for form in rng.sample(list(WRITERS), rng.choice((2, 2, 3, 4))):
            (path / form).mkdir(parents=True)
            parts.append(WRITERS[form](path / form, run, rng))
        yield path, Folder("several", parts=tuple(parts))


def _draw_missing(run: Run, rng: Random) -> frozenset[int]:
    """Draw the ranks without files: usually none, else up to a quarter, sometimes with the culprit."""
    if rng.random() > MISSING_SHARE:
        return frozenset()
    ranks = run.job.world.ranks
    missing = set(rng.sample(ranks, rng.randrange(1, len(ranks) // 4 + 1)))
    culprits = set(run.incident.ranks)
    if len(culprits) == 1:
        missing = missing | culprits if rng.random() < 0.35 else missing - culprits
    return frozenset(missing)


def _dumps(path: Path, run: Run, rng: Random, as_json: bool) -> Folder:
    missing = _draw_missing(run, rng)
    timing = flight_recorder(path, run, rng, set(missing), as_json)
    return Folder("flight-recorder-json" if as_json else "flight-recorder-pickle", missing, timing)


def _pickles(path: Path, run: Run, rng: Random) -> Folder:
    return _dumps(path, run, rng, False)


def _json(path: Path, run: Run, rng: Random) -> Folder:
    return _dumps(path, run, rng, True)


def _inspector(path: Path, run: Run, rng: Random) -> Folder:
    missing = _draw_missing(run, rng)
    inspector(path, run, rng, set(missing))
    return Folder("nccl-inspector", missing)


def _kineto(path: Path, run: Run, rng: Random) -> Folder:
    missing = _draw_missing(run, rng)
    kineto(path, run, rng, set(missing))
    return Folder("kineto", missing)


def _nccl_log(path: Path, run: Run, rng: Random) -> Folder:
    layout: Layout = rng.choice(("one", "host", "rank", "debug-file"))
    lines = list(nccl_lines(run, rng))
    if layout != "debug-file":
        lines += program_lines(run, rng)
    folder = Folder(
        "nccl-debug-log",
        _missing_files(run, rng, layout),
        watchdog=layout != "debug-file",
        srun=layout == "one",
    )
    write_logs(path, run, rng, set(folder.missing), lines, layout)
    return folder


def _python_log(path: Path, run: Run, rng: Random) -> Folder:
    layout: Layout = rng.choice(("one", "host", "rank"))
    folder = Folder("python-log", _missing_files(run, rng, layout), srun=layout == "one")
    write_logs(path, run, rng, set(folder.missing), list(program_lines(run, rng)), layout)
    return folder


def _missing_files(run: Run, rng: Random, layout: Layout) -> frozenset[int]:
    return _draw_missing(run, rng) if layout in ("rank", "debug-file") else frozenset()


def _nccl_tests(path: Path, run: Run, rng: Random) -> Folder:
    nccl_tests(path, run, rng)
    return Folder("nccl-tests")


def _slurm(path: Path, run: Run, rng: Random) -> Folder:
    state, steps_by_host = slurm(path, run, rng)
    return replace(Folder("slurm-accounting"), state=state, steps_by_host=steps_by_host)


WRITERS: Final[dict[str, Callable[[Path, Run, Random], Folder]]] = {
    "flight-recorder-pickle": _pickles,
    "flight-recorder-json": _json,
    "nccl-inspector": _inspector,
    "nccl-debug-log": _nccl_log,
    "kineto": _kineto,
    "python-log": _python_log,
    "nccl-tests": _nccl_tests,
    "slurm-accounting": _slurm,
}
"""The writer of each format."""
