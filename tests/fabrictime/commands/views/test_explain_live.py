"""Real MPI jobs on a running fabric of real packets: `fabrictime explain` names what was planted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabrictime.bench._fabric import CannotRun, running_fabric
from fabrictime.bench.workload._incidents import INCIDENTS, SETTINGS, JobFabric
from fabrictime.bench.workload._jobs import compiled
from fabrictime.testbed.processes.userns import namespaces_allowed

UNRELIABLE = pytest.mark.xfail(
    reason="two processors: the second job does not always fill the link, named in 3 of 4 runs"
)
NAMES = (
    "slow_host",
    "own_pacing",
    "straggler",
    "grey_link",
    pytest.param("collision", marks=UNRELIABLE),
)
READY_S = 120.0

pytestmark = [
    pytest.mark.fabric,
    pytest.mark.pipeline,
    pytest.mark.slow("runs every service and jobs"),
    pytest.mark.timeout(500),
]


@pytest.fixture(scope="module")
def fabric() -> Iterator[JobFabric]:
    reason = namespaces_allowed()
    if reason is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="fabrictime-") as folder:
        try:
            program = compiled(Path(folder))
        except CannotRun as missing:
            pytest.skip(str(missing))
        with running_fabric(print, SETTINGS, minutes=15) as running:
            found = JobFabric(running, program)
            found.wait_ready(READY_S)
            yield found


@pytest.mark.parametrize("name", NAMES)
def test_explain_names_the_planted_cause(fabric: JobFabric, name: str) -> None:
    [incident] = [each for each in INCIDENTS if each.name == name]
    found = incident.run(fabric)
    assert found.right_after_s is not None, found.text
    if not incident.network:
        assert not found.answers[-1]["blames_network"], found.text
