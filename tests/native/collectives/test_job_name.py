"""The name of a job under each scheduler and launcher, equal at all its processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.collectives.job_name import job_name

VARIABLES = (
    *("FABRICTIME_JOB", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    *("SLURM_STEP_ID", "SLURM_RESTART_COUNT", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD"),
    *("PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX", "KUBERNETES_SERVICE_HOST", "JOB_NAME", "POD_NAMESPACE"),
    *("HOSTNAME", "JOB_COMPLETION_INDEX", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RAY_JOB_ID"),
)
SLURM = {"SLURM_JOB_ID": "1240", "SLURM_CLUSTER_NAME": "alps"}
ARRAY = {"SLURM_ARRAY_JOB_ID": "1234", "SLURM_ARRAY_TASK_ID": "7"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAMESPACE": "ml"}


@pytest.fixture(scope="module")
def program(built) -> Path:
    return built("names.c", ("job_name.c",))


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, ""),
        ({"FABRICTIME_JOB": "训练", **SLURM}, "训练"),
        ({"FABRICTIME_JOB": "", **SLURM}, "alps:1240"),
        ({"SLURM_JOB_ID": "1240"}, "1240"),
        (SLURM | {"SLURM_STEP_ID": "0"}, "alps:1240.0"),
        (SLURM | ARRAY | {"SLURM_STEP_ID": "2"}, "alps:1234_7.2"),
        (SLURM | {"SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}, "alps:1240.0-r1"),
        (SLURM | {"SLURM_RESTART_COUNT": "0"}, "alps:1240"),
        (SLURM | {"OMPI_COMM_WORLD_SIZE": "8"}, "alps:1240"),
        (SLURM | {"OMPI_COMM_WORLD_SIZE": "8", "SLURM_STEP_ID": "0"}, "alps:1240"),
        (
            SLURM | {"SLURM_STEP_ID": "0", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2"},
            "alps:1240.0-r2",
        ),
        ({"PBS_JOBID": "1234[7].pbs01"}, "1234[7].pbs01"),
        ({"LSB_JOBID": "77", "LSB_JOBINDEX": "0"}, "77"),
        ({"LSB_JOBID": "77", "LSB_JOBINDEX": "3"}, "77[3]"),
        ({"JOB_NAME": "a Jenkins job"}, ""),
        (POD | {"JOB_NAME": "llm", "JOB_COMPLETION_INDEX": "3"}, "ml:llm"),
        (POD | {"HOSTNAME": "llm-13", "JOB_COMPLETION_INDEX": "13"}, "ml:llm"),
        (POD | {"HOSTNAME": "llm-worker"}, ""),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"TORCHELASTIC_RUN_ID": "llm", "TORCHELASTIC_RESTART_COUNT": "0"}, "llm"),
        ({"TORCHELASTIC_RUN_ID": "llm", "TORCHELASTIC_RESTART_COUNT": "1"}, "llm-r1"),
        ({"RAY_JOB_ID": "02000000"}, "ray-02000000"),
    ],
)
def test_a_job_has_the_name_of_its_scheduler(program: Path, variables: dict[str, str], name: str) -> None:
    printed = subprocess.run([program], env=variables, capture_output=True, text=True, check=True)
    assert printed.stdout == f"{name}\n"
    assert job_name(variables) == name


@settings(max_examples=60, deadline=None)
@given(variables=st.dictionaries(st.sampled_from(VARIABLES), st.text("0123a-é训 ", max_size=150), max_size=6))
def test_a_job_without_a_profiler_has_the_same_name(program: Path, variables: dict[str, str]) -> None:
    printed = subprocess.run([program], env=variables, capture_output=True, text=True, check=True)
    assert printed.stdout == f"{job_name(variables)}\n"


def test_ranks_of_an_indexed_job_have_one_name(program: Path) -> None:
    names = {
        subprocess.run(
            [program],
            env=POD | {"HOSTNAME": f"llm-{index}", "JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for index in range(12)
    }
    assert names == {"ml:llm\n"}
