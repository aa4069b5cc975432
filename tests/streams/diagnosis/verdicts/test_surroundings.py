"""Troubles of the hosts for which a job waits: failed checks, alerts, health."""

from __future__ import annotations

from schemas.records import AlertKind, AlertState
from tests.records import make
from tests.streams.diagnosis.scenario import Job, S, World
from tests.streams.diagnosis.verdicts.test_progress import stop


def test_a_stall_names_the_trouble_of_the_late_ranks_host() -> None:
    world = World(Job())
    world.learn()
    world.network.take_audit(
        make("AuditResult", host="h5", check="gpu.xid", category="GPU", status="FAILED", text="GPU 0: Xid 79")
    )
    found = stop(world, {5})
    assert [each["text"] for each in found["evidence"] if each["topic"] == "fabric.audit"] == [
        "gpu.xid: GPU 0: Xid 79"
    ]


def test_alerts_about_the_late_ranks_host_are_evidence_and_those_about_jobs_are_not() -> None:
    world = World(Job())
    world.learn()
    for kind, host in ((AlertKind.AGENT, "h5"), (AlertKind.JOB_HANG, "h5"), (AlertKind.AGENT, "h6")):
        world.network.take_alert(
            make(
                "Alert",
                alert_id=f"{kind}:{host}",
                kind=kind,
                subject=host,
                state=AlertState.RAISED,
                raised_ns=world.job.at_ns - S,
                text=f"{kind} of {host}",
            )
        )
    texts = [one["text"] for one in stop(world, {5})["evidence"] if one["topic"] == "fabric.alerts"]
    assert texts == ["AGENT of h5"]
