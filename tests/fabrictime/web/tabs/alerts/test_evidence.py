"""The record that an alert's evidence refers to, on a real log."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.web.history_client import HistoryDown, HistoryError, QueryFailed
from fabrictime.web.tabs.alerts.evidence import evidence_reader
from schemas.kafka.settings import KafkaSettings

S = 1_000_000_000


def test_the_record_of_a_key_and_time_is_found_with_its_place_in_the_log(log: str, records: Any) -> None:
    fabric = records(log)
    link = fabric.up("leaf1", 1)
    subject = fabric.cable(link)
    for evaluated_ns in (fabric.now_ns - 1, fabric.now_ns, fabric.now_ns + 1):
        made = fabric.health(link, "DOWN", since_ns=1, evaluated_ns=evaluated_ns)
        fabric.publish(("fabric.link-health", subject, made))
    fabric.publish(("fabric.link-health", "other", fabric.health(fabric.up("leaf2", 1), "DOWN")))
    find = evidence_reader(KafkaSettings(bootstrap=log))
    found = find("fabric.link-health", subject, fabric.now_ns, "leaf1 to spine1 is DOWN")
    assert found.position.startswith("fabric.link-health/")
    assert " offset 1, appended at " in found.position
    assert dict(found.fields)["state"] == "DOWN"
    with pytest.raises(HistoryError, match="has no record of nobody around"):
        find("fabric.link-health", "nobody", fabric.now_ns, "")
    with pytest.raises(HistoryError, match="has no record of"):
        find("fabric.link-health", subject, fabric.now_ns + 60 * S, "")


@pytest.mark.parametrize("topic", ["fabric.probes", "fabric.config", "none"])
def test_a_topic_without_evidence_is_refused_before_the_log_is_asked(topic: str) -> None:
    with pytest.raises(QueryFailed, match="not a topic with readable evidence"):
        evidence_reader(KafkaSettings(bootstrap="127.0.0.1:1"))(topic, "k", 0, "")


def test_a_log_that_does_not_answer_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from fabrictime.web.tabs.alerts import evidence

    monkeypatch.setattr(evidence, "CONNECT_TIMEOUT_S", 0.1)
    with pytest.raises(HistoryDown):
        evidence_reader(KafkaSettings(bootstrap="127.0.0.1:1"))("fabric.links", "k", 0, "")


def test_a_search_that_ran_out_of_time_is_no_missing_record(
    log: str, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fabrictime.web.tabs.alerts import evidence

    fabric = records(log)
    link = fabric.up("leaf1", 1)
    made = fabric.health(link, "DOWN", since_ns=1, evaluated_ns=fabric.now_ns)
    fabric.publish(("fabric.link-health", fabric.cable(link), made))
    monkeypatch.setattr(evidence, "TIMEOUT_S", 0.0)
    with pytest.raises(HistoryDown, match="not read within"):
        evidence_reader(KafkaSettings(bootstrap=log))(
            "fabric.link-health", fabric.cable(link), fabric.now_ns, ""
        )
