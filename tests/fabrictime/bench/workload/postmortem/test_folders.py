"""Tests that an incident is written in each format."""

from __future__ import annotations

from pathlib import Path

from fabrictime.bench.workload.postmortem.folders import WRITERS
from fabrictime.bench.workload.postmortem.run import Run
from fabrictime.bench.workload.postmortem.truth import Folder

Incident = tuple[Run, dict[str, tuple[Path, Folder]]]


def test_each_incident_is_written_in_each_format(incident: Incident) -> None:
    _, folders = incident
    assert set(WRITERS) <= set(folders)
    assert all(any(file.stat().st_size for file in path.rglob("*")) for path, _ in folders.values())
