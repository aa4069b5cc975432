"""`fabrictime replay`: on the command line, and of alerts on a real log.

A replay equals the alerts of a worker that was killed. It reports forged alerts, with an exit code for
scripts. The replays of decisions and diagnoses are in tests/streams/policy and tests/streams/diagnosis.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fabrictime.bench._pipeline import Service, embedded_log, stream_worker
from fabrictime.commands.cli import app
from fabrictime.commands.replay.command import as_json, lines_of
from fabrictime.commands.replay.compare import Difference
from fabrictime.commands.replay.reader import Span
from fabrictime.commands.replay.run import Replayed
from schemas import codec
from schemas.topics import ALERTS, CONFIG, LINKS
from tests.streams.test_pipeline import Log

S = 1_000_000_000
SETTINGS: dict[str, Any] = {"stages": ["links"], "session_timeout_s": 2}


def replayed(bootstrap: str, start: str, *more: str) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(app, ["replay", "alerts", "--from", start, "--json", "--log", bootstrap, *more])
    return done.exit_code, json.loads(done.stdout)["stages"][0] if done.stdout else {}, done.stderr


def test_a_replay_equals_the_published_alerts_and_reports_forged_ones(tmp_path: Path) -> None:
    with embedded_log(tmp_path, 2) as bootstrap:
        log = Log(bootstrap)
        producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
        config = {
            "host": "*",
            "version": 1,
            "at_ns": 0,
            "by": "test",
            "mode": "UNKNOWN",
            "thresholds": [{"name": "alert_clear_s", "value": 0.5}],
            "latency_rules": [],
        }
        begin_s = time.time() - 1
        producer.produce(CONFIG.name, codec.encode(CONFIG.record, config), "*")
        numbers = {"h1/eth1": 0, "h2/eth1": 0}

        def port(nic: str, up: bool) -> None:
            event = {
                "nic": nic,
                "shard": "fabric",
                "run": 7,
                "event": numbers[nic],
                "kind": "CARRIER",
                "clock_ns": 0,
                "system_ns": 0,
                "interval_ns": 0,
                "carrier": up,
            }
            numbers[nic] += 1
            producer.produce(LINKS.name, codec.encode(LINKS.record, event), "fabric")
            assert producer.flush(10) == 0

        def alerts() -> list[tuple[str, str]]:
            return [(r["subject"], r["state"]) for r in log.records(ALERTS.name)]

        first = Service("streams", {"kafka": {"bootstrap": bootstrap}, **SETTINGS}, tmp_path)
        try:
            first.wait_ready()
            port("h1/eth1", False)
            log.wait(lambda: len(alerts()) == 1)
            amid_s = time.time()
            port("h2/eth1", False)
            log.wait(lambda: len(alerts()) == 2)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(10)
        finally:
            first.stop()
        port("h1/eth1", True)
        with stream_worker(bootstrap, tmp_path, **SETTINGS):
            port("h2/eth1", True)
            log.wait(lambda: len(alerts()) == 4)
        for start_s, count in ((begin_s, 4), (amid_s, 3)):
            code, found, _ = replayed(bootstrap, f"{start_s:.3f}")
            assert (code, found["differences"], found["published"]) == (0, [], count), found
            assert found["replay_same"] == 1.0
            assert [a["state"] for a in found["records"]][-2:] == ["CLEARED", "CLEARED"]
        code, found, _ = replayed(bootstrap, f"{begin_s:.3f}", "--rule", "alert_clear_s=600")
        assert (code, len(found["records"])) == (1, 2), "nothing would have been cleared yet"
        assert {each["kind"] for each in found["differences"]} == {"was published, and is not replayed"}

        raised, cleared = log.records(ALERTS.name)[0], log.records(ALERTS.name)[-1]
        forged = cleared | {"text": "something else"}
        extra = raised | {"alert_id": "LINK_DOWN:nothing:1", "subject": "nothing"}
        for record in (forged, extra):
            producer.produce(ALERTS.name, codec.encode(ALERTS.record, record), record["alert_id"])
        assert producer.flush(10) == 0
        code, found, _ = replayed(bootstrap, f"{begin_s:.3f}")
        assert code == 1
        assert {d["identity"][0]: d["kind"] for d in found["differences"]} == {
            cleared["alert_id"]: "differs",
            "LINK_DOWN:nothing:1": "was published, and is not replayed",
        }
        text = (
            CliRunner()
            .invoke(app, ["replay", "alerts", "--from", f"{begin_s:.3f}", "--log", bootstrap])
            .stdout.splitlines()
        )
        assert any("text 'something else', replayed" in line for line in text)
        assert text[-1].endswith("5 published, 4 replayed, replay_same 60.0%: 2 differ")
        log.close()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["replay", *arguments, "--log", "127.0.0.1:1"])


@pytest.mark.parametrize("stage", ["alerts", "policy", "diagnosis", "all"])
@pytest.mark.parametrize(
    ("interval", "fragment"),
    [
        (("--from", "10m", "--to", "20m"), "--to 20m: expected later than --from 10m"),
        (("--from", "now"), "expected later than"),
        (("--from", "yesterday"), "yesterday"),
    ],
)
def test_an_interval_that_is_none_is_one_line(stage: str, interval: tuple[str, ...], fragment: str) -> None:
    done = run(stage, *interval)
    assert done.exit_code == 2
    assert fragment in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_stage_is_one_line_that_names_the_others() -> None:
    done = run("decisions")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "contention, alerts, diagnosis, policy or all" in done.stderr


def result(differences: list[Difference]) -> Replayed:
    span, records = Span(0, 60 * S), [{"signature": b"\xff"}]
    return Replayed("policy", span, records, differences, 1, 1234, 0.5, 1, covered_s=60.0)


@pytest.mark.parametrize(
    ("differences", "exit_code"),
    [([], 0), ([Difference("fabric.decisions", ("d",), "differs", {"to_path": (1, 2)})], 1)],
)
def test_a_difference_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, differences: list[Difference], exit_code: int
) -> None:
    monkeypatch.setattr("fabrictime.commands.replay.run.replay", lambda names, given: [result(differences)])
    done = run("policy", "--from", "10m")
    assert done.exit_code == exit_code, done.stderr
    assert ("DIFFERENT d: differs: to_path 1, replayed 2" in done.stdout) == bool(differences)


def test_an_operator_that_cannot_be_replayed_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = result([])
    failed.failed.append("links/0 cannot be replayed: steps 3 to 4 are not in the log")
    monkeypatch.setattr("fabrictime.commands.replay.run.replay", lambda names, given: [failed])
    done = run("links", "--from", "10m")
    assert done.exit_code == 1, done.stderr
    assert "links/0 cannot be replayed" in done.stdout


def test_the_total_states_messages_speed_and_the_share_that_is_the_same() -> None:
    assert lines_of(result([])) == [
        "policy: 60 s of the log, 1,234 messages in 0.5 s, 120 times real time: 1 published, 1 replayed, "
        "replay_same 100.0%: all the same"
    ]


def test_json_has_bytes_as_text() -> None:
    found = json.loads(as_json([result([Difference("t", ("d",), "differs", {"x": (b"\x01", 2)})])]))
    (stage,) = found["stages"]
    assert stage["records"] == [{"signature": "ff"}]
    assert stage["differences"][0]["fields"] == {"x": {"published": "01", "replayed": 2}}
    assert found["to_ns"] - found["from_ns"] == 60 * S
