"""The command `fabrictime audit traffic` on a real log with real hosts on loopback."""

from __future__ import annotations

import json

import pytest
import typer

from fabrictime.audit.traffic import TrafficRequest
from fabrictime.commands.audit.fleet import Output
from fabrictime.commands.audit.traffic import main, traffic
from fabrictime.runtime.config import Config
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.topics import AUDIT
from tests.fabrictime.audit.test_traffic import HOSTS, agents, free_port

QUICK = Config({"audit": {"traffic": {"meet_s": 8, "seconds": 0.5, "straggler_ms": 1000}}}, "test")


def test_a_ring_is_run_reported_and_published(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, hosts = KafkaSettings(bootstrap=log), HOSTS[:3]
    with agents(cluster, free_port(), hosts):
        assert main(QUICK, cluster, TrafficRequest(hosts, "ring"), Output(everything=True)) == 0
        shown = capsys.readouterr().out
        assert main(QUICK, cluster, TrafficRequest(hosts, "ring", 1), Output(as_json_line=True)) in (0, 1)
        found = json.loads(capsys.readouterr().out)
    assert "A hop in a ring of sends and receives is short (collectives.ring)" in shown
    assert "2 rounds, 6 flows; medians: p90 of hops" in shown
    assert "heat map of ring 1: to h0" in shown
    assert found["run"].startswith("traffic-")
    with TopicReader.open(cluster, {AUDIT: BEGINNING}) as reader:
        runs = {record["run"] for _, record in reader.decoded(reader.read_to_end()) if record is not None}
    assert {found["run"], f"{found['run']}-001"} <= runs


def test_for_a_pattern_without_a_host_there_is_one_line(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as raised:
        traffic(hosts="none-*", log=log)
    assert raised.value.exit_code == 2
    assert "--hosts none-*: no such host" in capsys.readouterr().err
