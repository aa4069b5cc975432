"""The consumer on a real log: reading from the start, skipping, and surviving bad records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fabrictime.state.fabric_consumer import FabricConsumer, Intake
from fabrictime.state.fabric_state import FabricState
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import INVENTORY, PATHS, TOPICS

S = 1_000_000_000


@pytest.fixture
def follow(log_address: str) -> Iterator[Callable[..., tuple[FabricState, FabricConsumer, list[Any]]]]:
    """Return a function that starts a consumer; the list receives the changed parts."""
    consumers: list[FabricConsumer] = []

    def start(bootstrap: str = log_address) -> tuple[FabricState, FabricConsumer, list[Any]]:
        state = FabricState(lambda value: codec.decode(value, "FlowReports"))
        changes: list[Any] = []
        consumers.append(FabricConsumer(bootstrap, state, changes.append))
        consumers[-1].start()
        return state, consumers[-1], changes

    yield start
    for consumer in consumers:
        consumer.stop()


def test_old_and_new_records_are_read(records: Any, log_address: str, follow: Any, until: Any) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    fabric.publish(*fabric.fleet(), ("fabric.link-health", fabric.cable(link), fabric.health(link, "DOWN")))
    state, consumer, changes = follow()
    until("caught up", lambda: consumer.status.caught_up)
    assert (len(state.nics), state.link_index.pairs, len(state.subjects)) == (8, 56, 1)
    assert consumer.status.error is None
    alert = fabric.alert("x", "x is DOWN")
    fabric.publish(
        ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 9.0}})),
        ("fabric.contention", link, fabric.contention(link)),
        ("fabric.alerts", alert["alert_id"], alert),
        ("fabric.flows", "h1", fabric.flows("h1", [fabric.flow(1, "h1/eth1", "h5/eth1")])),
    )
    until(
        "all", lambda: {"queues", "contention", "alerts", "flows"} <= {p for parts in changes for p in parts}
    )
    with state.lock:
        assert (
            len(state.active_alerts())
            == len(list(state.open_contention(fabric.now_ns)))
            == len(state.flows.flows())
            == 1
        )
        assert state.queues.newest(state.cable_graph.existing_number(link) or 0) is not None
    fabric.publish(("fabric.link-health", fabric.cable(link), None), ("fabric.inventory", "h1/eth1", None))
    until("gone", lambda: not state.subjects and len(state.nics) == 7)


def test_blocks_of_short_slots_are_skipped_and_bad_records_counted(
    records: Any, log_address: str, follow: Any, until: Any
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    block = fabric.queues({link: {"depth_mean_bytes": 9.0}}, slot_ns=10_000_000, slots=5)
    fabric.publish(("fabric.queues", "fabric", block))
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": log_address, "log_level": 0})
    for topic in ("fabric.queues", "fabric.link-health", "fabric.flows", "fabric.inventory"):
        producer.produce(topic, b"no record", b"key")
    producer.produce("fabric.queues", codec.encode("LinkQueues", block)[:14], b"key")
    assert producer.flush(20) == 0
    state, consumer, _ = follow()
    until("caught up", lambda: consumer.status.caught_up)
    assert state.queues.version == 0
    assert consumer.status.unreadable == 4, "flow reports are decoded on demand"
    fabric.publish(("fabric.queues", "fabric", fabric.queues({link: {}})))
    until("still reading", lambda: state.queues.version == 1)


def test_repeated_routes_are_decoded_once_until_they_change_or_are_forgotten(
    fabric: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = FabricState(lambda value: codec.decode(value, "FlowReports"))
    intake, decode, decoded = Intake(state), Message.decoded, list[str]()

    def noted(message: Message, *arguments: Any) -> Any:
        decoded.append(message.key)
        return decode(message, *arguments)

    monkeypatch.setattr(Message, "decoded", noted)
    fleet = list(fabric.fleet())
    paths = [(key, record) for topic, key, record in fleet if topic == PATHS.name]
    key, record = paths[0]

    def take(topic: str, key: str, record: Any, at_ns: int) -> None:
        value = None if record is None else codec.encode(TOPICS[topic].record, record)
        intake.take(Message(at_ns, topic, 0, 0, key, value))

    for topic, name, item in fleet:
        take(topic, name, item, S)
    decoded.clear()
    version, pairs = state.link_index.version, state.link_index.pairs
    for name, item in paths:
        take(PATHS.name, name, {**item, "traced_ns": item["traced_ns"] + S}, 2 * S)
    state.freeze()
    assert (decoded, state.link_index.version, state.age_s(3 * S)) == ([], version, 1.0)
    take(PATHS.name, key, {**record, "paths": record["paths"][:1]}, 3 * S)
    assert decoded == [key]
    take(PATHS.name, key, None, 4 * S)
    assert state.link_index.pairs == pairs - 1
    take(PATHS.name, key, record, 5 * S)
    take(INVENTORY.name, record["nic"], None, 6 * S)
    assert state.link_index.pairs < pairs
    for name, item in paths:
        take(PATHS.name, name, item, 7 * S)
    assert state.link_index.pairs == pairs
    take(PATHS.name, "h1/eth1>h9/eth9", record, 8 * S)
    assert intake.unreadable == 1, "its key names another pair"


def test_messages_without_news_show_that_the_log_answers_again(fabric: Any) -> None:
    """Probers repeat their routes also while nothing else changes."""
    state = FabricState(lambda value: codec.decode(value, "FlowReports"))
    consumer = FabricConsumer("127.0.0.1:9", state, lambda parts: None)
    key, record = next((key, record) for topic, key, record in fabric.fleet() if topic == PATHS.name)
    message = Message(S, PATHS.name, 0, 0, key, codec.encode(PATHS.record, record))
    consumer._take([message])
    consumer._set_status(error="the log does not answer")
    consumer._take([message])
    assert consumer.status.error is None


def test_an_unexpected_exception_does_not_stop_the_consumer(
    records: Any, log_address: str, follow: Any, until: Any, monkeypatch: Any
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)

    def fail(*_: Any) -> None:
        raise IndexError("deque index out of range")

    monkeypatch.setattr(FabricState, "take_flows", fail)
    state, consumer, _ = follow()
    until("caught up", lambda: consumer.status.caught_up)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": log_address, "log_level": 0})
    producer.produce("fabric.flows", b"any", b"h1")
    assert producer.flush(20) == 0
    until("the record is counted", lambda: consumer.status.unreadable == 1)
    before = state.queues.version
    fabric.publish(("fabric.queues", "fabric", fabric.queues({link: {}})))
    until("still reading", lambda: state.queues.version > before)


def test_older_records_are_not_read(
    records: Any, log_address: str, follow: Any, until: Any, monkeypatch: Any
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    fabric.publish(("fabric.queues", "fabric", fabric.queues({link: {}})))
    monkeypatch.setattr("fabrictime.state.fabric_consumer.REPLAY_S", {"fabric.queues": 0.0})
    appended_s = time.time()
    until("a moment later", lambda: time.time() > appended_s + 0.05)
    state, consumer, _ = follow()
    until("caught up", lambda: consumer.status.caught_up)
    assert state.queues.version == 0


def test_a_missing_log_is_reported_and_not_fatal(follow: Any, until: Any) -> None:
    _, consumer, changes = follow("127.0.0.1:1")
    until("reported", lambda: "127.0.0.1:1 does not answer" in (consumer.status.error or ""))
    until("notified", lambda: frozenset() in changes)
    assert not consumer.status.caught_up


def test_records_appended_during_the_assignment_are_read(
    records: Any, log_address: str, follow: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic without new records is read from its end before the assignment, not after it."""
    from confluent_kafka import Consumer

    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    fabric.publish(*fabric.fleet())
    queried: list[list[Any]] = []

    class Slow:
        def __init__(self, settings: dict[str, Any]) -> None:
            self._consumer = Consumer(settings)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def offsets_for_times(self, wanted: list[Any], *args: Any, **more: Any) -> list[Any]:
            found: list[Any] = self._consumer.offsets_for_times(wanted, *args, **more)
            queried.append(wanted)
            if len(queried) == 2:
                fabric.publish(("fabric.contention", link, fabric.contention(link)))
            return found

    monkeypatch.setattr("confluent_kafka.Consumer", Slow)
    state, consumer, _ = follow()
    until("caught up", lambda: consumer.status.caught_up)

    def received() -> bool:
        with state.lock:
            return bool(state.contention)

    until("the window", received)
