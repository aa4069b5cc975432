"""`links`, `alerts` and `config get|set|diff` on a real log, for people and scripts."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fabrictime.commands.cli import app
from schemas import codec
from schemas.messages import key_of
from schemas.topics import ALERTS, LINK_HEALTH, Topic
from tests.fabrictime.evidence import FreshEvidence

ROOT = Path(__file__).resolve().parents[4]
S = 1_000_000_000
NOW = 1_760_000_000 * S


def health(subject: str, state: str, seq: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "subject": subject,
        "kind": "LINK",
        "shard": "fabric",
        "seq": seq,
        "state": state,
        "before": "UP",
        "links": [subject.replace("<>", ">")],
        "since_ns": NOW,
        "evaluated_ns": NOW + seq,
        "flaps_hour": 1,
        "flaps_total": 1,
        "detected_by": "PROBES",
        "text": f"{subject} is {state}",
        **more,
    }


def alert(subject: str, state: str, update: int = 0, severity: str = "CRITICAL") -> dict[str, Any]:
    return {
        "alert_id": f"LINK_DOWN:{subject}:{NOW}",
        "subject": subject,
        "kind": "LINK_DOWN",
        "state": state,
        "severity": severity,
        "shard": "fabric",
        "update": update,
        "raised_ns": NOW,
        "updated_ns": NOW,
        "cleared_ns": NOW if state == "CLEARED" else None,
        "text": f"alert on {subject}",
    }


def produce(log: str, topic: Topic, records: Iterable[Mapping[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": log, "partitioner": "murmur2_random", "log_level": 0})
    for record in records:
        producer.produce(topic.name, codec.encode(topic.record, record), key_of(topic, record))
    assert producer.flush(10) == 0


def fabrictime(log, *arguments):
    return CliRunner().invoke(app, [*arguments, "--log", log])


@pytest.fixture
def evidence(log):
    with FreshEvidence(log) as found:
        yield found


@pytest.mark.parametrize(
    ("command", "source", "phrase"),
    [
        ("links", "probes", r"no fresh probe results for \S+ s \(probers stopped\?\)"),
        (
            "links",
            "clocks",
            r"no fresh clock window for \S+ s \(stream worker or its topics gone\?\)",
        ),
        ("links", "links", r"no fresh evaluation of link health for \S+ s \(links service stopped\?\)"),
        ("alerts", "links", r"no fresh evaluation of link health for \S+ s \(links service stopped\?\)"),
    ],
)
def test_without_fresh_evidence_health_is_unknown(evidence, log, command, source, phrase):
    evidence.running.discard(source)
    done = fabrictime(log, command, "nothing-here", "--check")
    assert done.exit_code == 1
    assert re.fullmatch(f"health is not known: {phrase}\n", done.stdout)
    assert re.search(phrase, done.stderr)


def test_missing_evidence_stands_above_the_last_known_state_and_in_json(evidence, log):
    subject = "leaf5:swp3<>spine1:swp5"
    produce(log, LINK_HEALTH, [health(subject, "DOWN")])
    evidence.running.clear()
    shown = fabrictime(log, "links", "leaf5").stdout.splitlines()
    assert shown[0].startswith("health is not known: no fresh probe results for")
    assert shown[1:3] == ["the last known state:", "1 DOWN"]
    found = json.loads(fabrictime(log, "links", "leaf5", "--json").stdout)
    assert [row["subject"] for row in found["rows"]] == [subject]
    assert found["missing"][0].startswith("no fresh probe results for")
    produce(log, LINK_HEALTH, [health(subject, "UP", 2)])


def test_with_fresh_evidence_the_absence_of_faults_is_stated(evidence, log):
    done = fabrictime(log, "links", "nothing-here", "--check")
    assert (done.exit_code, done.stdout) == (0, "no link, NIC or host is known to be anything but UP\n")
    done = fabrictime(log, "alerts", "nothing-here", "--check")
    assert (done.exit_code, done.stdout) == (0, "no alert is active\n")


def test_links_shows_the_newest_that_are_not_up_and_check_is_an_exit_code(evidence, log):
    assert fabrictime(log, "links", "nothing-here", "--check").exit_code == 0
    produce(
        log,
        LINK_HEALTH,
        [
            health("leaf1:swp3<>spine1:swp1", "DOWN"),
            health("leaf1:swp3<>spine1:swp1", "UP", 2),
            health("leaf2:swp3<>spine1:swp2", "DOWN"),
            health(
                "leaf3:swp3<>spine1:swp3",
                "GREY",
                loss_rate=0.05,
                loss_rate_low=0.04,
                loss_rate_high=0.06,
                classes=[
                    {
                        "dscp": 26,
                        "loss_rate": 0.05,
                        "loss_rate_low": 0.04,
                        "loss_rate_high": 0.06,
                        "is_lossy": True,
                    }
                ],
            ),
        ],
    )
    done = fabrictime(log, "links", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(r["subject"], r["state"]) for r in rows] == [
        ("leaf2:swp3<>spine1:swp2", "DOWN"),
        ("leaf3:swp3<>spine1:swp3", "GREY"),
    ]
    text = fabrictime(log, "links", "--all").stdout
    assert text.splitlines()[1].split()[-2:] == ["or", "text"]
    assert "1 DOWN, 1 GREY, 2 UP" in text
    assert "5.0% (4.0% to 6.0%) of DSCP 26" in text
    checked = fabrictime(log, "links", "leaf2", "--check")
    assert (checked.exit_code, checked.stderr) == (1, "fabrictime: leaf2:swp3<>spine1:swp2 is DOWN\n")
    assert fabrictime(log, "links", "leaf1", "--check").exit_code == 0


def test_alerts_shows_those_that_stand_by_severity_though_one_subject_has_several(evidence, log):
    older = {
        **alert("spine9", "RAISED"),
        "alert_id": "CONTENTION:spine9:5",
        "kind": "CONTENTION",
        "severity": "WARNING",
    }
    produce(
        log,
        ALERTS,
        [
            older,
            alert("spine9", "RAISED"),
            alert("spine8", "RAISED"),
            alert("spine8", "CLEARED", 1),
        ],
    )
    rows = json.loads(fabrictime(log, "alerts", "--json").stdout)["rows"]
    assert [(r["kind"], r["subject"]) for r in rows] == [("LINK_DOWN", "spine9"), ("CONTENTION", "spine9")]
    assert "1 CRITICAL, 1 WARNING, 1 CLEARED" in fabrictime(log, "alerts", "--all").stdout
    assert fabrictime(log, "alerts", "--check").exit_code == 1


def test_watch_prints_each_change_as_it_comes(log):
    child = subprocess.Popen(
        [sys.executable, "-m", "fabrictime", "links", "leaf7", "--watch", "--log", log],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        subject = "leaf7:swp3<>spine1:swp7"
        produce(log, LINK_HEALTH, [health(subject, "DOWN")])
        assert child.stdout is not None
        assert f"DOWN {subject} is DOWN" in child.stdout.readline()
        produce(log, LINK_HEALTH, [health("leaf6:swp1<>spine1:swp6", "DOWN"), health(subject, "UP", 2)])
        assert f"UP {subject} is UP" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.communicate()
