"""The declaration of alerts, and its operator over a recorded log: the same as in one piece."""

from __future__ import annotations

from typing import Any

from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import ALERTS, CONFIG, DELAYS, LINK_HEALTH, LINKS
from streams.alerts.ordered_inputs import MAIN
from streams.alerts.stage import AlertsStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.log_runner import TimedRunner
from streams.runtime.operator import Owner
from streams.runtime.settings import StreamSettings
from tests.records import make
from tests.streams.alerts.script import cable

S = 1_000_000_000
T = 1_760_000_000 * S
LINK = cable(1, 2)


def owner(from_ns: int = T) -> Owner:
    return Owner(from_ns // 1_000_000, frozenset((0,)), 1, StreamSettings())


def health(offset: int, at_ns: int, state: str) -> Message:
    fields = {"subject": LINK, "kind": "LINK", "shard": "fabric", "seq": offset, "state": state}
    record = make("LinkHealth", **fields, since_ns=at_ns, evaluated_ns=at_ns, text=f"{LINK} is {state}")
    return Message(at_ns, LINK_HEALTH.name, 0, offset, LINK, codec.encode(LINK_HEALTH.record, record))


def rule(tables: FabricTables) -> None:
    slow = {"name": "gold", "from_group": "h1", "to_group": "h2", "p99_us": 20.0, "for_s": 30.0}
    record = make("ActuatorConfig", host="*", latency_rules=[slow])
    tables.take(Message(T, CONFIG.name, 0, 0, "*", codec.encode(CONFIG.record, record)))


def replayed(
    messages: list[Message], past: dict[str, list[Message]], from_ns: int = T
) -> list[tuple[int, Any]]:
    runner = TimedRunner(AlertsStage(), (), from_ns, from_ns + 60 * S, StreamSettings())
    for message in (each for of_topic in past.values() for each in of_topic):
        runner.offer(message)
    outputs = []
    for message in messages:
        runner.offer(message)
        outputs += runner.run(message.append_ns)
    outputs += runner.run()
    return [((log_ns - from_ns) // S, output.record) for log_ns, output in outputs if output.topic is ALERTS]


def test_a_cable_that_dies_is_raised_and_cleared_at_its_time() -> None:
    found = replayed([health(1, T + 2 * S, "DOWN"), health(2, T + 10 * S, "UP")], {})
    assert [(record["subject"], record["state"]) for _, record in found] == [
        (LINK, "RAISED"),
        (LINK, "CLEARED"),
    ]
    raised_s, cleared_s = (at for at, _ in found)
    assert 2 <= raised_s <= 4
    assert 10 < cleared_s < 40


def test_published_alerts_of_an_earlier_owner_are_not_raised_again() -> None:
    earlier_ns = T - 2 * 3600 * S
    down = health(1, earlier_ns + 2 * S, "DOWN")
    ((_, raised),) = replayed([down], {}, earlier_ns)
    published = Message(
        down.append_ns, ALERTS.name, 0, 0, raised["alert_id"], codec.encode(ALERTS.record, raised)
    )
    found = replayed([health(2, T + 10 * S, "UP")], {ALERTS.name: [published], LINK_HEALTH.name: [down]})
    assert [(record["alert_id"], record["state"]) for _, record in found] == [(raised["alert_id"], "CLEARED")]


def test_delays_are_needed_only_with_latency_rules_and_read_from_as_far_back() -> None:
    tables = FabricTables()
    (delays,) = (each for each in AlertsStage.inputs if each.is_needed is not None)
    operator = AlertsStage().make(owner(), -1, tables)
    assert delays.topic is DELAYS
    assert delays.is_needed is not None
    assert delays.start is not None
    assert not delays.is_needed(operator, tables)
    rule(tables)
    assert delays.is_needed(operator, tables)
    since_ns = delays.start(T, tables).since_ns or 0
    assert 30 * S <= T - since_ns <= 40 * S


def test_link_evidence_comes_from_the_links_stage() -> None:
    assert {each.topic for each in AlertsStage.inputs} == {*MAIN, DELAYS}
    assert [each.topic for each in AlertsStage.inputs if each.is_tapped and each.is_owned] == [LINKS]
