"""The tour's view of the log: events in order, live flows, link health, queues, and a log that is gone."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fabrictime.demo import follower as module
from fabrictime.demo.follower import Follower
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import LogUnavailable, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.messages import key_of
from schemas.topics import CONTENTION, FLOW_ROUTES, FLOWS, LINK_HEALTH, POLICY_CYCLES, QUEUES, TOPICS, Topic
from tests.fabrictime.demo.fabrics import flow
from tests.records import make, make_part
from tests.waiting import wait_until


class FakeReader:
    """A reader of messages that the test puts, in place of a broker."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Message | LogUnavailable] = queue.Queue()

    def put(self, topic: Topic, record: Any, at_ns: int = 1) -> None:
        key = key_of(topic, record)
        value = codec.encode(topic.type, record)
        self.messages.put(Message(at_ns, topic.name, 0, 0, key, value))

    def poll(self, wait_s: float) -> list[Message]:
        try:
            found = self.messages.get(timeout=wait_s)
        except queue.Empty:
            return []
        if isinstance(found, LogUnavailable):
            raise found
        return [found]

    def decoded(self, messages: Iterator[Message], registry: None) -> Iterator[tuple[Message, Any]]:
        for message in messages:
            assert message.value is not None
            yield message, codec.decode(message.value, TOPICS[message.topic].type)

    def close(self) -> None:
        pass


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> FakeReader:
    fake = FakeReader()
    monkeypatch.setattr(module, "TopicReader", type("Opened", (TopicReader,), {"open": lambda *a, **k: fake}))
    return fake


def test_events_come_in_order_and_states_are_the_newest(reader: FakeReader) -> None:
    with Follower(KafkaSettings()) as follower:
        for number, state in enumerate(("DOWN", "UP")):
            record = make("LinkHealth", subject="a:1<>b:1", state=state)
            reader.put(LINK_HEALTH, record, 10 + number)
        wait_until(lambda: follower.states() == {"a:1<>b:1": "UP"}, 5)
        events = follower.drain()
        assert [(event.record["state"], event.at_ns) for event in events] == [("DOWN", 10), ("UP", 11)]
        assert follower.drain() == []


def test_flows_queues_and_movable_flows_are_known(reader: FakeReader) -> None:
    with Follower(KafkaSettings()) as follower:
        flows = [flow("h1/b/sock:1", "job-a", "h1:eth1>leaf1:swp1")]
        reader.put(FLOWS, make("FlowReports", host="h1", whole=True, flows=flows))
        reader.put(POLICY_CYCLES, make("PolicyCycles", movable=7))
        reader.put(CONTENTION, make("ContentionWindow", link="a:1>b:1", state="OPENED"))
        wait_until(lambda: follower.queues() == {"a:1>b:1"}, 5)
        assert follower.flows()["h1/b/sock:1"]["job"] == "job-a"
        assert follower.movable == 7
        reader.put(CONTENTION, make("ContentionWindow", link="a:1>b:1", state="CLOSED"))
        wait_until(lambda: not follower.queues(), 5)
        assert follower.queues_behind_s() is None
        start_ns = time.time_ns() - 8_000_000_000
        window = {"window_start_ns": start_ns, "slot_ns": 1_000_000, "slots": 500}
        reader.put(QUEUES, make("LinkQueues", **window))
        wait_until(lambda: 7 < (follower.queues_behind_s() or 0) < 14, 5)


def test_the_links_of_a_flow_are_those_of_its_data_and_acknowledgements(reader: FakeReader) -> None:
    ends = {"nic": "h1/eth1", "peer": "h3/eth1", "source_port": 50_007, "peer_port": 9}

    def routes(nic: str, peer: str, leg: str, link: str, port: int = 50_007) -> Any:
        one = make_part(
            "FlowRoutes", "FlowRoute", leg=leg, path=port, peer_port=9, links=[link], complete=True
        )
        return make("FlowRoutes", nic=nic, peer=peer, routes=[one])

    with Follower(KafkaSettings()) as follower:
        reader.put(
            FLOWS, make("FlowReports", host="h1", whole=True, flows=[flow("f", None, "x:1>y:1", **ends)])
        )
        wait_until(lambda: follower.links_of("f") == ("x:1>y:1",), 5, name="as reported, without a trace")
        reader.put(FLOW_ROUTES, routes("h1/eth1", "h3/eth1", "DATA", "a:1>b:1"))
        reader.put(FLOW_ROUTES, routes("h3/eth1", "h1/eth1", "ACK", "b:1>a:1"))
        wait_until(lambda: follower.links_of("f", 50_007) == ("a:1>b:1", "b:1>a:1"), 5)
        assert follower.links_of("other") == ()


def test_a_log_that_is_gone_is_a_failure_that_the_tour_sees(reader: FakeReader) -> None:
    with Follower(KafkaSettings()) as follower:
        reader.messages.put(LogUnavailable("log 127.0.0.1:9: does not answer"))
        wait_until(lambda: follower.failure is not None, 5)
        assert follower.failure == "log 127.0.0.1:9: does not answer"
