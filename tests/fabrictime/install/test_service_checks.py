"""Checks of Kafka against the embedded log, and of ClickHouse against the embedded history."""

import socket

import pytest

from fabrictime.install import service_checks
from fabrictime.install.outcome import Level
from fabrictime.install.service_checks import history_outcomes, kafka_outcomes
from fabrictime.runtime.config import load
from schemas.kafka.admin import delete_topics
from schemas.topics import TOPICS
from tests.embedded_log import EmbeddedLog
from tests.fabrictime.history.conftest import Server


@pytest.fixture
def log(tmp_path):
    with EmbeddedLog(tmp_path / "log") as running:
        yield running


def config_of(log, **log_settings):
    return load(None, {"up": {"log_url": f"127.0.0.1:{log.port}"}, "log": log_settings})


def test_a_log_with_all_topics_passes(log):
    outcomes = list(kafka_outcomes(config_of(log)))
    assert [outcome.level for outcome in outcomes if outcome.level is Level.FAILED] == []
    (topics,) = [outcome for outcome in outcomes if outcome.check == "topics"]
    assert topics.text == f"{len(TOPICS)} topics, their partitions and settings are as expected"


@pytest.mark.parametrize(
    ("values", "level", "text"),
    [
        ({1: "500", 2: "0"}, Level.OK, "500 ms"),
        ({1: "500", 2: "3000"}, Level.WARNING, "is 3000 on broker 2: a service whose group has one member"),
        ({1: None}, Level.SKIPPED, "the broker has no group.initial.rebalance.delay.ms"),
    ],
)
def test_a_long_delay_of_the_first_rebalance_is_a_warning_with_its_fix(monkeypatch, log, values, level, text):
    monkeypatch.setattr(service_checks, "broker_values", lambda *_: values)
    (outcome,) = [one for one in kafka_outcomes(config_of(log)) if one.check == "rebalance delay"]
    assert (outcome.level, text in outcome.text) == (level, True)
    assert outcome.fix.startswith("set group.initial.rebalance.delay.ms=500") == (level is Level.WARNING)


def test_the_embedded_log_has_no_delay_of_the_first_rebalance(log):
    (outcome,) = [one for one in kafka_outcomes(config_of(log)) if one.check == "rebalance delay"]
    assert outcome.level is Level.SKIPPED
    assert outcome.text == "the broker has no group.initial.rebalance.delay.ms"


def test_a_missing_topic_and_other_partition_counts_have_a_fix(log):
    delete_topics(f"127.0.0.1:{log.port}", ["fabric.audit"])
    outcomes = list(kafka_outcomes(config_of(log, partitions=3)))
    failed = {outcome.check: outcome for outcome in outcomes if outcome.level is Level.FAILED}
    assert failed["topics"].text == "fabric.audit: is missing"
    assert failed["topics"].fix == "fabrictime topics create"
    assert "has 4 partitions, expected 3" in failed["partitions"].text
    assert failed["partitions"].fix.startswith("delete it and create it again")


def test_a_broker_that_is_not_there_is_one_outcome_with_its_address():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    (outcome,) = kafka_outcomes(load(None, {"up": {"log_url": address}}))
    assert outcome.level is Level.FAILED
    assert address in outcome.fix


def test_without_a_url_clickhouse_is_skipped_and_a_refused_one_names_the_settings():
    (outcome,) = history_outcomes(load(None, {}))
    assert outcome.level is Level.SKIPPED
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    (outcome,) = history_outcomes(load(None, {"up": {"history_url": url}}))
    assert outcome.level is Level.FAILED
    assert "up.history_url" in outcome.fix


def test_the_history_passes_and_a_wrong_password_is_a_fault(tmp_path):
    server = Server(tmp_path / "history", write_token_file=str(tmp_path / "write.token"))
    server.start()
    try:
        up = {"history_url": f"http://127.0.0.1:{server.port}", "history_user": "fabrictime"}
        up["history_password_file"] = str(tmp_path / "write.token")
        outcomes = {outcome.check: outcome for outcome in history_outcomes(load(None, {"up": up}))}
        assert outcomes["reachable"].level is Level.OK
        assert outcomes["tables"].level is Level.OK
        assert outcomes["rights"].level in (Level.OK, Level.SKIPPED), "chdb has one user of its own"
        other = tmp_path / "other"
        other.write_text("wrong")
        (refused,) = history_outcomes(load(None, {"up": {**up, "history_password_file": str(other)}}))
        assert refused.level is Level.FAILED
    finally:
        server.stop()
