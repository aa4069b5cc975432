"""Runs of an audit in files and in the log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from fabrictime.audit.html import page
from fabrictime.audit.stored import as_json, from_json, from_log, load
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.reader import LogUnavailable
from schemas.kafka.settings import KafkaSettings
from schemas.messages import key_of
from schemas.records import AuditRun
from schemas.topics import AUDIT, AUDIT_RUNS, Topic
from tests.fabrictime.audit.fleets import START_NS, F, fact, fleet, report, result


def test_a_report_survives_its_json() -> None:
    facts = [fact("kernel", "6.8"), fact("memory_gib", 2015.0)]
    before = report([*fleet(3), result("node.oom", "h9", F, "ä 1", facts=facts)], ["h10"])
    after = from_json("".join(as_json(before)))
    assert after == before
    assert list(page(after)) == list(page(before))
    assert json.loads("".join(as_json(before)))["exit_code"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"results": None}, "results: missing, expected the output"),
        ({"run": 3}, "run: missing, expected"),
        ({"results": [{"host": "h1"}]}, "results: .*expected records of AuditResult"),
        ({"results": [3]}, "results: .*expected records of AuditResult"),
    ],
)
def test_a_file_of_something_else_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(json.loads("".join(as_json(report([result("node.oom", "h1")])))) | change))
    with pytest.raises(InputError, match=f"{path}: {message}"):
        load(str(path), _no_log)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null"])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="xpect"):
        from_json(text)


def _no_log() -> KafkaSettings:
    pytest.fail("a file needs no log")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.json: No such file or directory"):
        load(str(tmp_path / "a.json"), _no_log)


def produce(log: str, topic: Topic[Any], records: Iterable[Any]) -> None:
    producer = Producer({"bootstrap.servers": log, "partitioner": "murmur2_random", "log_level": 0})
    for record in records:
        producer.produce(topic.name, codec.encode(topic.record, record), key=key_of(topic, record))
    assert producer.flush(20) == 0


def test_a_run_is_read_from_the_log(log: str) -> None:
    request = AuditRun(run="r1", requested_ns=START_NS, hosts=["h9"], only=[], active=False, limit_s=30)
    produce(log, AUDIT_RUNS, [request])
    results = [each | {"checks": 1} for each in [result("node.oom", "h1"), result("node.oom", "h2", F, "2")]]
    other = result("node.oom", "h1", run="r2")
    produce(log, AUDIT, [*results, other])
    found = load("r1", lambda: log)
    assert (found.run, found.hosts, found.missing) == ("r1", ("h1", "h2", "h9"), ("h9",))
    assert found.results["h2"]["node.oom"]["text"] == "2"
    assert "did not answer within 30 s" in "".join(page(found))
    assert from_log(log, "r2").hosts == ("h1",)
    with pytest.raises(InputError, match=r"run r3: no result in fabric\.audit"):
        from_log(log, "r3")


def test_a_log_that_does_not_answer_is_named() -> None:
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        load("r1", lambda: KafkaSettings(bootstrap="127.0.0.1:1"))
