"""Tests that the records of calls can be read by parsers of their own, and are complete."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from fabrictime.bench.workload.postmortem.run import Run
from fabrictime.bench.workload.postmortem.truth import Folder

Incident = tuple[Run, dict[str, tuple[Path, Folder]]]
Contents = Callable[[Path], list[bytes]]


@pytest.mark.parametrize("form", ["flight-recorder-pickle", "flight-recorder-json"])
def test_dumps_have_every_living_rank_and_its_groups(
    incident: Incident, contents: Contents, form: str
) -> None:
    run, folders = incident
    path, folder = folders[form]
    load = pickle.loads if form.endswith("pickle") else json.loads
    dumps = [load(content) for content in contents(path)]
    assert len(dumps) == len(set(run.job.world.ranks) - folder.missing - set(run.dead))
    for dump in dumps:
        assert dump["pg_config"]["0"]["desc"] == "default_pg"
        stuck = [entry for entry in dump["entries"] if entry["state"] != "completed"]
        assert bool(stuck) <= run.incident.stops
        ids = [entry["record_id"] for entry in dump["entries"]]
        assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_inspector_writes_a_line_for_each_completed_call(incident: Incident, contents: Contents) -> None:
    run, folders = incident
    path, folder = folders["nccl-inspector"]
    files = contents(path)
    assert len(files) == run.job.size - len(folder.missing)
    lines = [json.loads(line) for line in files[0].splitlines()]
    assert {line["metadata"]["inspector_output_format_version"] for line in lines} == {"v4.0"}
    assert max(line["header"]["n_ranks"] for line in lines) == run.job.size


def test_kineto_traces_have_kernels_of_each_rank(incident: Incident, contents: Contents) -> None:
    run, folders = incident
    path, folder = folders["kineto"]
    traces = [json.loads(content) for content in contents(path)]
    assert {trace["distributedInfo"]["rank"] for trace in traces} == set(run.job.world.ranks) - folder.missing
    kernels = [event for event in traces[0]["traceEvents"] if event.get("cat") == "kernel"]
    assert any("ncclDevKernel_AllReduce" in kernel["name"] for kernel in kernels)
    assert all(kernel["dur"] > 0 for kernel in kernels)
