"""Produce: acknowledgements, refusals by partition, and ids of idempotent producers."""

from __future__ import annotations

import pytest
from aiokafka.protocol.produce import ProduceRequest_v3

from fabrictime.log.errors import Code, MalformedRequest
from fabrictime.log.requests.produce import ProduceRequests
from tests.log.conftest import frame


def request(acks: int, *partitions: tuple[int, bytes]) -> bytes:
    return frame(0, 3, ProduceRequest_v3(None, acks, 1000, [("t", list(partitions))]).encode())


async def produce(broker, acks: int, *partitions: tuple[int, bytes]):
    answer = await broker.ask(request(acks, *partitions))
    return None if answer is None else ProduceRequest_v3.RESPONSE_TYPE.decode(answer).topics[0][1]


async def test_offsets_go_on_and_a_refused_partition_costs_no_other(harness, make_batch):
    broker, batch = harness(), bytes(make_batch([(b"k", b"v")] * 2))
    found = await produce(broker, -1, (0, batch), (7, batch), (1, b"rubbish"), (0, batch))
    assert [(each[0], each[1], each[2]) for each in found] == [
        (0, Code.NONE, 0),
        (7, Code.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (1, Code.CORRUPT_MESSAGE, -1),
        (0, Code.NONE, 2),
    ]


async def test_without_acknowledgement_there_is_no_answer_and_a_refusal_ends_the_connection(
    harness, make_batch
):
    broker, batch = harness(), bytes(make_batch([(b"k", b"v")]))
    assert await produce(broker, 0, (0, batch)) is None
    assert broker.store.partition("t", 0).end_offset == 1
    with pytest.raises(MalformedRequest, match="unacknowledged message refused: t-9"):
        await produce(broker, 0, (9, batch))


async def test_an_unknown_kind_of_acknowledgement_writes_nothing(harness, make_batch):
    broker = harness()
    [[_, code, *_]] = await produce(broker, 2, (0, bytes(make_batch([(b"k", b"v")]))))
    assert code == Code.INVALID_REQUIRED_ACKS
    assert broker.store.partition("t", 0).end_offset == 0


async def test_each_producer_gets_an_id_of_its_own_and_none_for_transactions(harness):
    requests = ProduceRequests(harness().store)
    ids = [requests.init_producer_id(0, {"transactional_id": None})["producer_id"] for _ in range(5)]
    assert len(set(ids)) == 5
    refused = requests.init_producer_id(0, {"transactional_id": "t"})
    assert (refused["error_code"], refused["producer_id"]) == (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
