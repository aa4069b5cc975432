"""`fabrictime replay alerts` on a real log.

A replay equals the alerts of a worker that was killed. It reports forged alerts, with an exit code for
scripts.
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
from fabrictime.commands.replay_alerts import Span, compare, parse_time
from schemas import codec
from schemas.topics import ALERTS, CONFIG, LINKS
from tests.streams.test_pipeline import Log

S = 1_000_000_000
SETTINGS: dict[str, Any] = {"stages": ["links"], "session_timeout_s": 2}


def replayed(bootstrap: str, start: str, *more: str) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(app, ["replay", "alerts", "--from", start, "--json", "--log", bootstrap, *more])
    return done.exit_code, json.loads(done.stdout) if done.stdout else {}, done.stderr


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
            assert [a["state"] for a in found["alerts"]][-2:] == ["CLEARED", "CLEARED"]

        raised, cleared = log.records(ALERTS.name)[0], log.records(ALERTS.name)[-1]
        forged = cleared | {"text": "something else"}
        extra = raised | {"alert_id": "LINK_DOWN:nothing:1", "subject": "nothing"}
        for record in (forged, extra):
            producer.produce(ALERTS.name, codec.encode(ALERTS.record, record), record["subject"])
        assert producer.flush(10) == 0
        code, found, _ = replayed(bootstrap, f"{begin_s:.3f}")
        assert code == 1
        assert {d["alert_id"]: d["kind"] for d in found["differences"]} == {
            cleared["alert_id"]: "differs",
            "LINK_DOWN:nothing:1": "was published, and is not replayed",
        }
        text = (
            CliRunner()
            .invoke(app, ["replay", "alerts", "--from", f"{begin_s:.3f}", "--log", bootstrap])
            .stdout.splitlines()
        )
        assert any("text 'something else', replayed" in line for line in text)
        assert (
            text[-1].endswith("5 records of alerts were published, 4 replayed: 2 differ")
            or "2 differ" in text[-1]
        )
        log.close()


def test_a_time_is_parsed_as_people_write_it_and_a_wrong_one_is_one_line() -> None:
    assert parse_time("10m", 1000.0) == 400 * S
    assert parse_time("now", 1000.0) == 1000 * S
    assert parse_time("1700000000.5", 0.0) == 1_700_000_000 * S + S // 2
    assert parse_time("2026-03-01T12:00:00", 0.0) == 1_772_366_400 * S
    assert parse_time("2026-03-01T12:00:00+01:00", 0.0) == (1_772_366_400 - 3600) * S
    with pytest.raises(ValueError, match=r"time 'soon': expected 2026-"):
        parse_time("soon", 0.0)
    done = CliRunner().invoke(app, ["replay", "alerts", "--from", "1m", "--to", "2m", "--log", "127.0.0.1:1"])
    assert (done.exit_code, done.stderr) == (2, "fabrictime: --to 2m: expected later than --from 1m\n")


def test_alerts_on_an_edge_of_the_span_are_no_difference() -> None:
    span = Span(100 * S, 200 * S)
    a, b = {"text": "a"}, {"text": "b"}
    one = ("X:y:1", 0)
    assert compare(span, {one: (a, 150 * S)}, {one: (a, 90 * S)}) == []
    assert compare(span, {one: (a, 90 * S)}, {}) == []  # of before
    assert compare(span, {}, {one: (a, 199 * S)}) == []  # not published yet
    assert [d.kind for d in compare(span, {}, {one: (a, 150 * S)})] == ["is replayed, and was not published"]
    [difference] = compare(span, {one: (a, 150 * S)}, {one: (b, 150 * S)})
    assert difference.line() == "X:y:1 update 0: differs: text 'a', replayed 'b'"
