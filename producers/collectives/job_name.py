"""Derives the name of a job from a process's environment, as native/collectives/job_name.c does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

NAME_BYTES: Final = 128
"""Size of a name with the zero byte that ends it: FT_JOB_NAME."""
_CHECKSUM_BYTES: Final = 9
_LAUNCHED: Final = ("OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD", "MPI_LOCALNRANKS")
"""Variables of ranks that mpirun starts: their step is not the same for all."""
Environment = Mapping[str, str]


def job_name(environment: Environment) -> str:
    """Return the configured job name, else the scheduler's or launcher's name; empty if none is set."""
    given = environment.get("FABRICTIME_JOB")
    if given:
        return _shortened(given)
    name = next((name for source in _SOURCES if (name := source(environment))), "")
    return _shortened(name + _restart(environment, "TORCHELASTIC_RESTART_COUNT")) if name else ""


def _value(environment: Environment, variable: str, before: str = "", after: str = "") -> str:
    value = environment.get(variable)
    return f"{before}{value}{after}" if value else ""


def _restart(environment: Environment, variable: str) -> str:
    return "" if environment.get(variable) == "0" else _value(environment, variable, "-r")


def _slurm(environment: Environment) -> str:
    """Return a Slurm job's name, cluster:1234_7.0-r1: cluster, job or array, task, step and restart."""
    job, array = environment.get("SLURM_JOB_ID"), environment.get("SLURM_ARRAY_JOB_ID")
    if not job:
        return ""
    task = _value(environment, "SLURM_ARRAY_TASK_ID", "_") if array else ""
    is_launched = any(environment.get(variable) for variable in _LAUNCHED)
    step = "" if is_launched else _value(environment, "SLURM_STEP_ID", ".")
    cluster = _value(environment, "SLURM_CLUSTER_NAME", after=":")
    return f"{cluster}{array or job}{task}{step}{_restart(environment, 'SLURM_RESTART_COUNT')}"


def _pbs(environment: Environment) -> str:
    return _value(environment, "PBS_JOBID")


def _lsf(environment: Environment) -> str:
    job, index = _value(environment, "LSB_JOBID"), environment.get("LSB_JOBINDEX")
    return f"{job}[{index}]" if job and index and index != "0" else job


def _kubernetes(environment: Environment) -> str:
    """Return namespace:name of a Kubernetes Job; the name is the pod's without its index for indexed Jobs."""
    if not environment.get("KUBERNETES_SERVICE_HOST"):
        return ""
    job, pod = environment.get("JOB_NAME"), environment.get("HOSTNAME", "")
    ending = _value(environment, "JOB_COMPLETION_INDEX", "-")
    if not job:
        is_indexed = bool(ending) and len(pod) > len(ending) and pod.endswith(ending)
        job = pod.removesuffix(ending) if is_indexed else ""
    return f"{_value(environment, 'POD_NAMESPACE', after=':')}{job}" if job else ""


def _torchrun(environment: Environment) -> str:
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    return "" if run == "none" else run


def _ray(environment: Environment) -> str:
    return _value(environment, "RAY_JOB_ID", "ray-")


_SOURCES: Final[tuple[Callable[[Environment], str], ...]] = (_slurm, _pbs, _lsf, _kubernetes, _torchrun, _ray)


def _shortened(name: str) -> str:
    """Return a name unchanged if it is short enough, else its beginning and the name's FNV-1a checksum."""
    data = name.encode("utf-8", "surrogateescape")
    if len(data) < NAME_BYTES:
        return data.decode("utf-8", "replace")
    checksum = 2166136261
    for byte in data:
        checksum = (checksum ^ byte) * 16777619 & 0xFFFFFFFF
    size = NAME_BYTES - 1 - _CHECKSUM_BYTES
    while size and data[size] & 0xC0 == 0x80:
        size -= 1
    return f"{data[:size].decode('utf-8', 'replace')}~{checksum:08x}"
