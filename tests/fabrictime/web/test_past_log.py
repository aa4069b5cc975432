"""The state at past moments, from a real log whose append times the test chooses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fabrictime.bench._stepped_log import SteppedLog
from fabrictime.bench.web._recorded import PARTITIONS, Record, write_log
from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_consumer import ConsumerStatus
from fabrictime.state.fabric_state import FabricState
from fabrictime.web import past_log
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.past_fabric import MOMENTS_KEPT, PastFabric
from fabrictime.web.past_log import PastLog
from schemas import codec
from schemas.kafka import message
from schemas.kafka.reader import BEGINNING, TopicReader, since
from schemas.kafka.settings import as_settings
from schemas.messages import decode_message
from schemas.topics import INVENTORY, LINK_HEALTH, TOPICS, Topic
from tests.fabrictime.fabric_records import FabricRecords

S = 1_000_000_000
BEGIN = time.time_ns() // S * S - 600 * S


def empty() -> FabricState:
    return FabricState(lambda value: codec.decode(value, "FlowReports"))


@pytest.fixture
def fabric() -> FabricRecords:
    return FabricRecords()


@pytest.fixture
def log(tmp_path: Path, fabric: FabricRecords) -> Iterator[str]:
    """A link is DOWN from 100 s to 200 s, with an alert from 110 s to 210 s, and a queue that grows.

    From 140 s to 149 s a policy runs; only its first cycle lists the suppressed actions: none.
    """
    link = fabric.up("leaf1", 1)
    cable = fabric.cable(link)
    written: list[tuple[float, str, str, Any]] = []
    for number in range(0, 300, 20):
        written += [(number, *record) for record in fabric.fleet() if record[0] == "fabric.inventory"]
    for number in range(300):
        at_ns = BEGIN + number * S
        depth = {link: {"depth_mean_bytes": 1000.0 * number}}
        written.append((number, "fabric.queues", "fabric", fabric.queues(depth, at_ns)))
    alert = fabric.alert(cable, "down", kind="LINK_DOWN", raised_ns=BEGIN + 110 * S)
    cleared = {**alert, "state": "CLEARED", "cleared_ns": BEGIN + 210 * S, "update": alert["update"] + 1}
    written += [
        (100, "fabric.link-health", cable, fabric.health(link, "DOWN", since_ns=BEGIN + 100 * S)),
        (110, "fabric.alerts", alert["alert_id"], alert),
        (200, "fabric.link-health", cable, fabric.health(link, "UP", since_ns=BEGIN + 200 * S)),
        (210, "fabric.alerts", cleared["alert_id"], cleared),
    ]
    for number in range(10):
        cycle = fabric.rounds(number, None if number else [], at_ns=BEGIN + (140 + number) * S)
        written.append((140 + number, "fabric.policy-cycles", "fabric", cycle))
    records = [
        Record(BEGIN + at * S, topic, key, codec.encode(TOPICS[topic].record, record))
        for at, topic, key, record in sorted(written, key=lambda row: row[0])
    ]
    write_log(tmp_path / "log", records)
    with SteppedLog(tmp_path / "log", PARTITIONS) as running:
        yield running.bootstrap


def seen(past: PastLog, fabric: FabricRecords, seconds: float) -> tuple[int, str, int, int]:
    """Return NICs, the link's state, active alerts and depth in kB at a moment."""
    link = fabric.up("leaf1", 1)
    state = past.at(BEGIN + round(seconds * S), empty).state
    number = state.cable_graph.existing_number(link) or 0
    queue = state.queues.newest(number)
    subject = state.subject_of(number)
    depth = -1 if queue is None else round(queue.mean_bytes / 1000)
    name = "none" if subject is None else subject.record["state"]
    return len(state.nics), name, len(state.active_alerts()), depth


def test_each_moment_has_its_own_state_in_any_order(log: str, fabric: FabricRecords) -> None:
    past = PastLog(log)
    expected = {
        150.5: (8, "DOWN", 1, 150),
        50.5: (8, "none", 0, 50),
        205.5: (8, "UP", 1, 205),
        105.5: (8, "DOWN", 0, 105),
        280.5: (8, "UP", 0, 280),
    }
    for _ in range(2):
        assert {at: seen(past, fabric, at) for at in expected} == expected


def test_moments_decode_a_record_once(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def count(topic: Topic[Any], *arguments: Any) -> Any:
        decoded.append(topic.name)
        return decode_message(topic, *arguments)

    monkeypatch.setattr(message, "decode_message", count)
    past = PastLog(log)
    for _ in range(2):
        assert [len(past.at(BEGIN + at * S, empty).state.nics) for at in (150, 155, 285)] == [8, 8, 8]
    assert decoded.count(INVENTORY.name) == 2 * 8
    monkeypatch.setattr(past_log, "MAX_DECODED", 1)
    assert len(past.at(BEGIN + 285 * S, empty).state.nics) == 8
    assert decoded.count(INVENTORY.name) == 2 * 8


def test_the_changes_of_the_hour_before_are_known(log: str, fabric: FabricRecords) -> None:
    state = PastLog(log).at(BEGIN + 280 * S, empty).state
    assert state.age_s(BEGIN + 280 * S) == pytest.approx(0.0, abs=0.2)
    changes = state.subjects[fabric.cable(fabric.up("leaf1", 1))].changes
    assert [(change.since_ns - BEGIN) // S for change in changes] == [100, 200]


def test_suppressed_actions_are_known_between_two_lists_of_a_policy(log: str) -> None:
    shards = PastLog(log).at(BEGIN + 149 * S + S // 2, empty).state.actions.shards
    assert shards["fabric"].suppressed == []


def test_before_the_first_record_nothing_is_known(log: str, fabric: FabricRecords) -> None:
    past = PastLog(log).at(BEGIN - 400 * S, empty)
    assert (past.newest_ns, past.state.nics, past.unreadable) == (None, {}, 0)


@pytest.mark.parametrize("until_s", [-1, 0, 99.9, 100, 100.05, 199, 200, 500])
@pytest.mark.parametrize("start", [BEGINNING, since(BEGIN + 150 * S)])
def test_a_reader_stops_at_its_time(log: str, until_s: float, start: Any) -> None:
    until_ns = BEGIN + round(until_s * S)
    with TopicReader(log, {LINK_HEALTH: start}, until_ns=until_ns) as reader:
        reader.connect()
        times = [(message.append_ns - BEGIN) // S for message in reader.read_to_end()]
    since_s = 0 if start is BEGINNING else 150
    assert times == [at for at in (100, 200) if since_s <= at <= until_s]


def live_state() -> LiveFabric:
    return LiveFabric(empty(), lambda: ConsumerStatus(caught_up=True), lambda: BEGIN, Verdict)


def test_moments_are_shared_and_bounded(log: str) -> None:
    past = PastFabric(live_state(), as_settings(log), None)
    moment = past.at(BEGIN + 150 * S)
    assert past.at(BEGIN + 150 * S) is moment
    assert (moment.fabric.now_ns(), moment.fabric.status.caught_up) == (BEGIN + 150 * S, True)
    assert moment.fabric.verdict().is_fresh
    assert not past.pending(BEGIN + 150 * S).fabric.status.caught_up
    for number in range(MOMENTS_KEPT):
        past.at(BEGIN + number * S)
    assert past.at(BEGIN + 150 * S) is not moment


def test_moments_of_the_same_fleet_share_the_drawn_plan(log: str) -> None:
    past = PastFabric(live_state(), as_settings(log), None)
    moments = [past.at(BEGIN + at * S).fabric for at in (50, 150, 280)]
    assert len(moments[0].drawn.plan.nics) == 8
    assert len({fabric.plan_number for fabric in moments}) == 1
    assert past.at(BEGIN - 400 * S).fabric.plan_number != moments[0].plan_number


def test_a_moment_without_records_has_no_health(log: str) -> None:
    past = PastFabric(live_state(), as_settings(log), None)
    assert past.at(BEGIN + 400 * S).fabric.verdict().missing[0].startswith("the log has no record")
    late = past.at(BEGIN + 310 * S).fabric.verdict()
    assert late.missing == ("no queues in the 2.5 s before this moment; the newest record is 30 s old",)


def test_a_silent_log_is_stated_and_read_again(tmp_path: Path) -> None:
    past = PastFabric(live_state(), as_settings("127.0.0.1:9"), None)
    first = past.at(BEGIN)
    assert "127.0.0.1:9" in str(first.fabric.status.error)
    assert past.at(BEGIN) is not first
