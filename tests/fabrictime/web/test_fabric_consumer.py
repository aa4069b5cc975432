"""The feed on a real log: what it reads at its start and after, what it skips, what it survives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.fabric_consumer import FabricConsumer
from schemas import codec

S = 1_000_000_000


@pytest.fixture
def follow(log_address: str) -> Iterator[Callable[..., tuple[FabricState, FabricConsumer, list[Any]]]]:
    """Starts feeds that end with the test; what they say stands in the list."""
    feeds: list[FabricConsumer] = []

    def start(bootstrap: str = log_address) -> tuple[FabricState, FabricConsumer, list[Any]]:
        state = FabricState(lambda value: codec.decode(value, "FlowReports"))
        said: list[Any] = []
        feeds.append(FabricConsumer(bootstrap, state, said.append))
        feeds[-1].start()
        return state, feeds[-1], said

    yield start
    for feed in feeds:
        feed.stop()


def test_what_stood_before_and_what_comes_are_both_read(
    records: Any, log_address: str, follow: Any, until: Any
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    fabric.publish(*fabric.fleet(), ("fabric.link-health", fabric.cable(link), fabric.health(link, "DOWN")))
    state, feed, said = follow()
    until("caught up", lambda: feed.status.caught_up)
    assert (len(state.nics), state.link_index.pairs, len(state.subjects)) == (8, 56, 1)
    assert feed.status.error is None
    fabric.publish(
        ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 9.0}})),
        ("fabric.contention", link, fabric.contention(link)),
        ("fabric.alerts", "x", fabric.alert("x", "x is DOWN")),
        ("fabric.flows", "h1", fabric.flows("h1", [fabric.flow(1, "h1/eth1", "h5/eth1")])),
    )
    until("all", lambda: {"queues", "contention", "alerts", "flows"} <= {p for parts in said for p in parts})
    with state.lock:
        assert (
            len(state.standing())
            == len(list(state.open_contention(fabric.now_ns)))
            == len(state.flows.flows())
            == 1
        )
        assert state.queues.newest(state.cable_graph.known(link) or 0) is not None
    fabric.publish(("fabric.link-health", fabric.cable(link), None), ("fabric.inventory", "h1/eth1", None))
    until("gone", lambda: not state.subjects and len(state.nics) == 7)


def test_blocks_of_short_slots_are_skipped_and_what_is_no_record_is_counted(
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
    state, feed, _ = follow()
    until("caught up", lambda: feed.status.caught_up)
    assert state.queues.version == 0
    assert feed.status.unreadable == 4, "a flow report is read when somebody asks"
    fabric.publish(("fabric.queues", "fabric", fabric.queues({link: {}})))
    until("still reading", lambda: state.queues.version == 1)


def test_a_record_that_nobody_foresaw_does_not_end_the_feed(
    records: Any, log_address: str, follow: Any, until: Any, monkeypatch: Any
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)

    def fail(*_: Any) -> None:
        raise IndexError("deque index out of range")

    monkeypatch.setattr(FabricState, "take_flows", fail)
    state, feed, _ = follow()
    until("caught up", lambda: feed.status.caught_up)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": log_address, "log_level": 0})
    producer.produce("fabric.flows", b"any", b"h1")
    assert producer.flush(20) == 0
    until("the odd one is counted", lambda: feed.status.unreadable == 1)
    before = state.queues.version
    fabric.publish(("fabric.queues", "fabric", fabric.queues({link: {}})))
    until("still reading", lambda: state.queues.version > before)


def test_what_is_older_than_the_last_minute_is_not_read(
    records: Any, log_address: str, follow: Any, until: Any, monkeypatch: Any
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    fabric.publish(("fabric.queues", "fabric", fabric.queues({link: {}})))
    monkeypatch.setattr("fabrictime.web.fabric_consumer.BACK_S", {"fabric.queues": 0.0})
    appended_s = time.time()
    until("a moment later", lambda: time.time() > appended_s + 0.05)
    state, feed, _ = follow()
    until("caught up", lambda: feed.status.caught_up)
    assert state.queues.version == 0


def test_no_log_is_said_and_not_fatal(follow: Any, until: Any) -> None:
    _, feed, said = follow("127.0.0.1:1")
    until("said", lambda: "127.0.0.1:1 does not answer" in (feed.status.error or ""))
    until("told", lambda: frozenset() in said)
    assert not feed.status.caught_up


def test_what_comes_while_the_feed_asks_where_to_begin_is_read(
    records: Any, log_address: str, follow: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic with nothing new the end is where to begin: the end as it was before, not after."""
    from confluent_kafka import Consumer

    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    fabric.publish(*fabric.fleet())
    asked: list[list[Any]] = []

    class Slow:
        def __init__(self, settings: dict[str, Any]) -> None:
            self._consumer = Consumer(settings)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def offsets_for_times(self, wanted: list[Any], *args: Any, **more: Any) -> list[Any]:
            found: list[Any] = self._consumer.offsets_for_times(wanted, *args, **more)
            asked.append(wanted)
            if len(asked) == 2:
                fabric.publish(("fabric.contention", link, fabric.contention(link)))
            return found

    monkeypatch.setattr("confluent_kafka.Consumer", Slow)
    state, feed, _ = follow()
    until("caught up", lambda: feed.status.caught_up)

    def told() -> bool:
        with state.lock:
            return bool(state.contention)

    until("the window", told)
