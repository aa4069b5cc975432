"""Tests that NCCL's lines name the network in use."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fabrictime.bench.workload.postmortem.run import Run
from fabrictime.bench.workload.postmortem.truth import Folder

Incident = tuple[Run, dict[str, tuple[Path, Folder]]]
Contents = Callable[[Path], list[bytes]]


def test_logs_name_the_network_of_each_host(incident: Incident, contents: Contents) -> None:
    run, folders = incident
    path, _ = folders["nccl-debug-log"]
    text = b"".join(contents(path)).decode()
    hosts = set(re.findall(r"([\w.-]+):\d+:\d+ \[\d\] NCCL INFO Using network Socket", text))
    affected = {run.job.host(rank).name for rank in run.incident.ranks}
    assert hosts == (affected if run.incident.cause == "sockets" else set())
