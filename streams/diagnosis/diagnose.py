"""The explanation of a job's speed in an interval."""

from __future__ import annotations

from schemas.records import Diagnosis, Verdict
from streams.diagnosis.job_view import JobView
from streams.diagnosis.network_view import NetworkView
from streams.diagnosis.rules import DiagnosisRules

__all__ = ["diagnose", "learn"]


def diagnose(
    job: JobView, network: NetworkView, begin_ns: int, end_ns: int, rules: DiagnosisRules | None = None
) -> Diagnosis:
    """Return the verdict about a job in an interval of fabric time. It changes neither view.

    Pass the result to `learn`, so that the job's baseline, number and `since_ns` follow.
    """
    return {
        "job": job.job,
        "tenant": job.tenant,
        "shard": job.shard,
        "number": job.number,
        "begin_ns": begin_ns,
        "end_ns": end_ns,
        "since_ns": begin_ns,
        "verdict": Verdict.UNKNOWN,
        "confidence": 0.0,
        "blames_network": False,
        "subject": "",
        "subjects": [],
        "links": [],
        "nics": [],
        "ranks": [],
        "jobs": [],
        "text": "not enough evidence",
        "remedy": "",
        "loss_share": 0.0,
        "evidence": [],
        "alternatives": [],
        "missing": [],
        "ranks_seen": 0,
        "ranks_total": 0,
        "hosts": 0,
        "operations": 0,
        "bytes": 0,
        "iteration_ns": None,
        "expected_iteration_ns": None,
        "bus_bps": None,
        "expected_bus_bps": None,
        "bound_ns": 0.0,
        "time_splits": [],
        "flows": [],
    }


def learn(job: JobView, diagnosis: Diagnosis) -> None:
    """Note an evaluated interval in the job's view: its baseline, the number and begin of the verdict."""
    job.number = diagnosis["number"] + 1
