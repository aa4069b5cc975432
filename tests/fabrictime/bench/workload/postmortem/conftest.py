"""Fixtures: simulated jobs with an incident, and their folders."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from fabrictime.bench.workload.postmortem.folders import write_folders
from fabrictime.bench.workload.postmortem.incident import draw_incident
from fabrictime.bench.workload.postmortem.run import Run, simulate
from fabrictime.bench.workload.postmortem.truth import Folder

KINDS = ("none", "hang_absent", "dead_oom", "mismatch_size", "sockets_host")


def run_of(kind: str) -> Run:
    rng = Random(f"5/{kind}")
    return simulate(rng, draw_incident(rng, kind))


@pytest.fixture(scope="session", params=KINDS)
def incident(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, dict[str, tuple[Path, Folder]]]:
    """A run and its folders by format."""
    run = run_of(request.param)
    target = tmp_path_factory.mktemp(request.param)
    return run, {folder.form: (path, folder) for path, folder in write_folders(target, run, Random(1))}


@pytest.fixture(scope="session")
def hang() -> Run:
    """A run in which a rank does not enter a collective."""
    return run_of("hang_absent")


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], list[bytes]]:
    """Reads all files of a folder."""

    def read(path: Path) -> list[bytes]:
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        return [
            gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            for file in files
        ]

    return read
