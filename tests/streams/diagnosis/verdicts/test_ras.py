"""Verdicts about jobs without our profiler."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import Diagnosis, HealthKind, LinkState, Verdict
from streams.diagnosis.job.view import JobView
from streams.diagnosis.network.view import NetworkView
from tests.records import make
from tests.streams.diagnosis.job.test_ras_history import record, state
from tests.streams.diagnosis.scenario import S, evaluate

BEGIN_S = 1_700_000_000


class Reported:
    """A job that RAS services report each two seconds; 10.0.0.5 is an address of h5."""

    def __init__(self) -> None:
        self.view, self.network = JobView("train"), NetworkView()
        self.second = BEGIN_S
        self.network.take_nic(
            make("Nic", nic="h5/n0", host="h5", device="n0", shard="fabric", addresses=["10.0.0.5"])
        )
        for step in range(8):
            self.next({"a": 1000 * step})

    def next(self, launched: dict[str, int], *states: dict[str, Any]) -> Diagnosis:
        """Report once more; return the diagnosis."""
        self.second += 2
        one = record(self.second, launched, *states)
        self.view.take(one, one["end_ns"])
        self.view.forget(one["end_ns"])
        return evaluate(self.view, self.network, one["end_ns"] - 5 * S, one["end_ns"])

    def wait(self, seconds: int, *states: dict[str, Any]) -> list[Diagnosis]:
        """Report the same counts for some time; return the diagnoses."""
        return [self.next({"a": 7001}, *states) for _ in range(seconds // 2 + 1)]


@pytest.fixture
def job() -> Reported:
    return Reported()


def late(**fields: Any) -> dict[str, Any]:
    text = "launched 99 ALL_REDUCE, others 100, process 12"
    return state(2, 1, host="10.0.0.5", function="ALL_REDUCE", text=text, **fields)


def test_a_job_that_goes_on_is_healthy_without_times(job: Reported) -> None:
    diagnosis = job.next({"a": 9000})
    assert (diagnosis["verdict"], diagnosis["ranks_total"]) == (Verdict.HEALTHY, 4)
    assert "no profiler in the job" in diagnosis["missing"][0]


def test_a_late_rank_stalls_the_job_within_seconds_and_hangs_it_after_minutes(job: Reported) -> None:
    diagnoses = job.wait(190, late())
    first = next(at for at, one in enumerate(diagnoses) if one["verdict"] == Verdict.STALLED)
    assert 2 * first <= 4
    assert (diagnoses[first]["subject"], diagnoses[first]["ranks"]) == ("h5", [2])
    assert "did not enter the ALL_REDUCE in which the others wait" in diagnoses[first]["text"]
    assert {one["verdict"] for one in diagnoses[first:60]} == {Verdict.STALLED}
    assert diagnoses[-1]["verdict"] == Verdict.HANG


def test_the_jobs_own_pauses_delay_its_hang(job: Reported) -> None:
    job.wait(170, late())
    job.next({"a": 9000})
    job.next({"a": 9500})
    assert job.wait(200, late())[-1]["verdict"] != Verdict.HANG


def test_a_service_that_does_not_answer_is_evidence(job: Reported) -> None:
    gone = state(2, state="UNRESPONSIVE", operations=-1, host="10.0.0.5", text="unresponsive, process 12")
    hang = job.wait(14, gone)[-1]
    assert (hang["verdict"], hang["ranks"], hang["subject"]) == (Verdict.HANG, [2], "h5")
    assert "does not answer NCCL's RAS service" in hang["text"]
    assert "process 12 on 10.0.0.5" in hang["remedy"]


def test_a_host_that_is_down_explains_the_rank(job: Reported) -> None:
    down = {"kind": HealthKind.HOST, "state": LinkState.DOWN, "before": "UP", "shard": "fabric", "seq": 1}
    job.network.take_health(
        make("LinkHealth", subject="h5", since_ns=job.second * S, text="h5 is down", **down)
    )
    gone = state(2, state="UNRESPONSIVE", operations=-1, host="10.0.0.5", text="unresponsive")
    dead = job.wait(4, gone)[-1]
    assert (dead["verdict"], dead["subject"]) == (Verdict.DEAD_RANK, "h5")
    assert "h5 is down" in [one["text"] for one in dead["evidence"]]


def test_a_failed_check_of_the_late_ranks_gpu_is_evidence(job: Reported) -> None:
    job.network.take_audit(
        make("AuditResult", host="h5", check="gpu.xid", category="GPU", status="FAILED", text="GPU 0: Xid 79")
    )
    stalled = job.wait(6, late())[-1]
    assert "gpu.xid: GPU 0: Xid 79" in [one["text"] for one in stalled["evidence"]]


def test_a_job_without_operations_for_long_stalls_and_names_nobody(job: Reported) -> None:
    stalled = job.wait(30)[-1]
    assert (stalled["verdict"], stalled["ranks"]) == (Verdict.STALLED, [])
    assert "all ranks launched the same operations" in stalled["text"]
    assert "our profiler in its ranks would show" in stalled["remedy"]
