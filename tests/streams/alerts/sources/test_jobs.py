"""Alerts about jobs: raised once, updated with the cause, cleared when the cause or the job is over."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import Diagnosis
from schemas.topics import DIAGNOSES
from streams.alerts.ordered_inputs import AlertInputs
from streams.alerts.shard_alerts import ShardAlerts
from streams.alerts.sources.jobs import kind_of
from tests.records import make

S = 1_000_000_000
T = 1_900_000_000 * S


def head(second: int, verdict: str = "HEALTHY", *, since: int | None = None, **fields: Any) -> Any:
    """Return the diagnosis of the 5 s up to a second."""
    return make(
        Diagnosis,
        **{
            "job": "train",
            "shard": "fabric",
            "number": T // S + second,
            "begin_ns": T + (second - 5) * S,
            "end_ns": T + second * S,
            "since_ns": T + (second - 5 if since is None else since) * S,
            "verdict": verdict,
            "text": f"{verdict} it is",
            **fields,
        },
    )


def slow(second: int, link: str = "a:1>b:1", **fields: Any) -> Any:
    return head(
        second,
        "CONTENTION",
        blames_network=True,
        subject=link,
        links=[link],
        jobs=["B"],
        **{"since": 10, **fields},
    )


class Jobs:
    """The alerts of one shard, fed with diagnoses."""

    def __init__(self, past: tuple[Any, ...] = ()) -> None:
        self.shard = ShardAlerts("fabric")
        self.shard.recover(past)
        self.published: list[Any] = []

    def take(self, *records: Any) -> Jobs:
        for record in records:
            self.published += [a for _, a in self.shard.ingest_diagnosis(record, record["end_ns"] + S // 2)]
        return self

    def wait(self, second: int) -> Jobs:
        self.published += [alert for _, alert in self.shard.evaluate(T + second * S)]
        return self

    def lines(self) -> list[tuple[str, str, str]]:
        return [(str(each["kind"]), each["subject"], str(each["state"])) for each in self.published]


@pytest.mark.parametrize(
    ("verdict", "blames", "kind"),
    [
        ("HANG", False, "JOB_HANG"),
        ("DEAD_RANK", False, "JOB_HANG"),
        ("STRAGGLER", False, "JOB_STRAGGLER"),
        ("GREY_LINK", True, "JOB_SLOW"),
        ("SLOW_SENDER", False, None),
        ("HEALTHY", False, None),
        ("UNKNOWN", False, None),
    ],
)
def test_each_verdict_has_its_kind(verdict: str, blames: bool, kind: str | None) -> None:
    assert kind_of(head(5, verdict, blames_network=blames)) == kind


def test_a_hang_is_raised_at_once_and_cleared_after_it_is_over() -> None:
    jobs = Jobs().take(head(5), head(11, "HANG", since=6, ranks=[3]))

    assert jobs.lines() == [("JOB_HANG", "train", "RAISED")]
    alert = jobs.published[0]
    assert (alert["severity"], alert["raised_ns"], alert["jobs"]) == ("CRITICAL", T + 6 * S, ["train"])
    assert alert["text"] == "job train: HANG: HANG it is"
    assert alert["evidence"][0]["topic"] == DIAGNOSES.name

    jobs.take(head(16, "HANG", since=6), head(21)).wait(24)
    assert len(jobs.published) == 1, "cleared after alert_clear_s"
    jobs.wait(30)
    assert jobs.lines()[1:] == [("JOB_HANG", "train", "CLEARED")]
    assert jobs.published[-1]["cleared_ns"] == T + 16 * S


def test_a_slow_job_is_raised_once_it_lasts_and_updated_with_another_cause() -> None:
    jobs = Jobs().take(slow(15), slow(19))
    assert jobs.lines() == []

    jobs.take(slow(20), slow(25), slow(30, "b:2>c:2"), slow(35, "b:2>c:2"))

    assert jobs.lines() == [("JOB_SLOW", "train", "RAISED")] * 2
    first, second = jobs.published
    assert first["raised_ns"] == T + 10 * S
    assert (second["update"], second["links"]) == (1, ["a:1>b:1", "b:2>c:2"])
    assert second["jobs"] == ["train", "B"]


def test_an_interrupted_cause_keeps_its_alert_within_the_hold_down() -> None:
    jobs = Jobs().take(slow(20), head(22), slow(24, since=20), slow(29, since=20)).wait(40)

    assert jobs.lines() == [("JOB_SLOW", "train", "RAISED")]


def test_another_kind_of_cause_has_an_alert_of_its_own() -> None:
    jobs = Jobs().take(slow(20), head(25, "STRAGGLER", since=10), head(30, "STRAGGLER", since=10)).wait(40)

    assert jobs.lines() == [
        ("JOB_SLOW", "train", "RAISED"),
        ("JOB_STRAGGLER", "train", "RAISED"),
        ("JOB_SLOW", "train", "CLEARED"),
    ]


def test_a_job_that_publishes_no_more_loses_its_alert() -> None:
    jobs = Jobs().take(head(11, "HANG", since=6)).wait(71)
    assert len(jobs.published) == 1

    jobs.wait(72)

    assert jobs.lines()[1:] == [("JOB_HANG", "train", "CLEARED")]
    assert jobs.published[-1]["cleared_ns"] == T + 11 * S


def test_a_new_owner_raises_nothing_twice_and_clears_a_silent_alert() -> None:
    before = Jobs().take(slow(20), slow(25))
    after = Jobs(tuple(before.published)).take(slow(20), slow(25), slow(30))
    assert after.published == []
    after.wait(95)
    assert after.lines() == [("JOB_SLOW", "train", "CLEARED")]

    third = Jobs((*before.published, *after.published)).take(slow(20), slow(25), slow(30))
    assert third.published == []
    silent = Jobs(tuple(before.published)).wait(90)
    assert silent.lines() == [("JOB_SLOW", "train", "CLEARED")]


def test_diagnoses_come_from_the_log_and_invalid_ones_are_rejected() -> None:
    inputs = AlertInputs()
    values = [codec.encode(Diagnosis, slow(second)) for second in (20, 25)]
    for at, (key, value) in enumerate([("train", values[0]), ("other", values[1]), ("train", b"\xc3\x01")]):
        inputs.add(Message(T + (20 + at) * S, DIAGNOSES.name, 0, at, key, value))
    inputs.add(Message(T + 24 * S, DIAGNOSES.name, 0, 9, "train", None))

    out = inputs.evaluate(T + 30 * S)

    [(key, alert)] = out
    assert (key, alert["subject"], str(alert["kind"])) == (alert["alert_id"], "train", "JOB_SLOW")
    assert len(inputs.rejected) == 2
