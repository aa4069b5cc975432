"""The operator of link health: when it evaluates, what it publishes, what a new owner takes again."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import LinkState
from schemas.topics import LINK_HEALTH, LINKS
from streams.links.health.shard_health import EVALUATION_GAP_NS
from streams.links.stage import RETAIN_NS, SETTLE_NS, LinksOperator, LinksStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Moment, Output, Owner
from streams.runtime.settings import StreamSettings
from tests.records import make

MS = 1_000_000
START_NS = 1_700_000_000_000 * MS


@pytest.fixture
def operator() -> LinksOperator:
    return new()


def new() -> LinksOperator:
    return LinksStage().make(Owner(1, frozenset([0]), 4, StreamSettings()), 0, FabricTables())


def carrier(offset: int, at_ns: int, up: bool, nic: str = "h1/eth1") -> Message:
    event = make(
        "LinkEvent", nic=nic, shard="fabric", run=7, event=offset, kind="CARRIER", clock_ns=0, system_ns=0,
        interval_ns=0, carrier=up, paths=[],
    )  # fmt: skip
    return Message(at_ns, LINKS.name, 0, offset, "fabric", codec.encode(LINKS.type, event))


def advanced(operator: LinksOperator, log_ns: int, *messages: Message) -> list[Output]:
    """Return the outputs of an advance."""
    operator.moment = moment = Moment(log_ns, 0)
    if messages:
        operator.take(messages, FabricTables())
    return list(operator.advance(moment, FabricTables()))


def test_a_new_operator_is_never_due(operator: LinksOperator) -> None:
    assert (operator.due_ns(), operator.needed_from()) == (NEVER_NS, NEVER_NS)
    assert advanced(operator, START_NS) == []


def test_a_carrier_that_is_lost_is_published_with_its_evidence(operator: LinksOperator) -> None:
    (output,) = advanced(operator, START_NS, carrier(0, START_NS, up=False))
    assert (output.topic, output.key) == (LINK_HEALTH, "h1/eth1")
    assert output.record["state"] == LinkState.DOWN
    assert output.record["evidence_offset"] == 0
    assert output.text == output.record["text"] != ""


def test_evidence_in_quick_succession_is_evaluated_together(operator: LinksOperator) -> None:
    """Later evidence does not postpone the evaluation that earlier evidence asks for."""
    advanced(operator, START_NS, carrier(0, START_NS, up=False))
    for offset in (1, 2, 3):
        at_ns = START_NS + offset * SETTLE_NS
        advanced(operator, at_ns, carrier(offset, at_ns, up=False, nic=f"h{offset}/eth1"))
        assert operator.due_ns() == START_NS + EVALUATION_GAP_NS
    advanced(operator, START_NS + EVALUATION_GAP_NS)
    assert operator.due_ns() > START_NS + EVALUATION_GAP_NS
    late_ns = START_NS + 2 * EVALUATION_GAP_NS - SETTLE_NS // 2
    advanced(operator, late_ns, carrier(4, late_ns, up=False, nic="h1/eth2"))
    assert operator.due_ns() == late_ns + SETTLE_NS, "what comes together with it is evaluated, too"


def test_evidence_of_some_seconds_is_needed(operator: LinksOperator) -> None:
    for offset in range(4):
        advanced(operator, START_NS, carrier(offset, START_NS + offset * RETAIN_NS // 2, up=False))
    assert operator.needed_from() == 0
    for log_ns, needed in (
        (START_NS + RETAIN_NS, 0),
        (START_NS + RETAIN_NS + 1, 1),
        (START_NS + 2 * RETAIN_NS + 1, 3),
        (START_NS + 3 * RETAIN_NS, NEVER_NS),
    ):
        advanced(operator, log_ns)
        assert operator.needed_from() == needed


def test_bad_evidence_is_rejected_and_the_rest_is_used(operator: LinksOperator) -> None:
    bad = Message(START_NS, LINKS.name, 0, 0, "fabric", b"nonsense")
    other_shard = carrier(1, START_NS, up=False)
    other_shard = Message(START_NS, LINKS.name, 0, 1, "another", other_shard.value)
    outputs = advanced(
        operator, START_NS, bad, other_shard, Message(START_NS, LINKS.name, 0, 2, "fabric", None),
        carrier(3, START_NS, up=False),
    )  # fmt: skip
    assert [message.offset for message, _ in operator.rejected] == [0, 1]
    assert [output.record["evidence_offset"] for output in outputs] == [3]


def test_a_new_owner_continues_and_publishes_nothing_twice(operator: LinksOperator) -> None:
    evidence = [carrier(0, START_NS, up=False), carrier(1, START_NS + MS, up=True)]
    outputs = [output for each in evidence for output in advanced(operator, each.log_ns, each)]
    past = [
        Message(START_NS + 2 * MS, LINK_HEALTH.name, 0, offset, output.key, output.value())
        for offset, output in enumerate(outputs)
    ]
    successor = new()
    successor.restore({LINK_HEALTH.name: past[-1:]}, FabricTables())
    again = [carrier(0, START_NS, up=False), carrier(1, START_NS + MS, up=True)]
    assert advanced(successor, START_NS + 3 * MS, *again) == []
    (output,) = advanced(successor, START_NS + 10_000 * MS, carrier(2, START_NS + 10_000 * MS, up=False))
    assert output.record["seq"] == outputs[-1].record["seq"] + 1


def test_an_offset_beyond_the_end_belongs_to_a_log_that_was_replaced(operator: LinksOperator) -> None:
    (output,) = advanced(operator, START_NS, carrier(7, START_NS, up=False))
    past = [Message(START_NS, LINK_HEALTH.name, 0, 0, output.key, output.value())]
    for end, is_used in ((8, False), (3, True)):
        successor = new()
        successor.restore({LINK_HEALTH.name: past}, FabricTables())
        successor.end_offset = end
        at_ns = START_NS + 10_000 * MS
        assert bool(advanced(successor, at_ns, carrier(2, at_ns, up=True))) == is_used


def test_an_owner_that_has_no_new_evidence_is_not_due_all_the_time(operator: LinksOperator) -> None:
    health = make("LinkHealth", shard="fabric", evidence_offset=9, evidence_source="fabric.links/0", seq=3)
    past = Message(
        START_NS, LINK_HEALTH.name, 0, 0, health["subject"], codec.encode(LINK_HEALTH.type, health)
    )
    operator.restore({LINK_HEALTH.name: [past]}, FabricTables())
    advanced(operator, START_NS, carrier(3, START_NS, up=True))
    for seconds in range(1, 6):
        now_ns = START_NS + seconds * 1000 * MS
        advanced(operator, now_ns)
        assert operator.due_ns() > now_ns
