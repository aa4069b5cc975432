"""Messages in, messages out: both clients, every codec, sizes, times, idempotence. On both brokers."""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
import uuid
from collections import defaultdict

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.protocol.fetch import FetchRequest_v4
from aiokafka.protocol.offset import OffsetRequest_v1
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.transaction import InitProducerIdRequest_v0
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def produced(answer):
    [(_, [(_, code, offset, append_ms, start)])] = answer.topics
    return code, offset, append_ms, start


def send_batch(client, topic, data, acks=-1):
    return produced(client.ask(ProduceRequest_v7(None, acks, 5000, [(topic, [(0, data)])])))


def fetch_request(topic, offset, *, wait_ms=0, min_bytes=1, max_bytes=1 << 20):
    return FetchRequest_v4(-1, wait_ms, min_bytes, 1 << 25, 0, [(topic, [(0, offset, max_bytes)])])


def fetched(answer):
    [(_, [(_, code, high, _, _, data)])] = answer.topics
    return code, high, data


@pytest.fixture
def producer_id(wait_for):
    """Asks for a producer id, again while the broker is not ready to give any."""

    def ask(client):
        answer = wait_for(
            lambda: (found := client.ask(InitProducerIdRequest_v0(None, 1000))).error_code == 0 and found
        )
        assert answer.producer_epoch == 0
        return answer.producer_id

    return ask


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_to_confluent_keeps_order_keys_and_headers(topic, produce, consume, codec):
    name = topic(3)
    pairs = [(b"key-%d" % (number % 7), b"value-%d" % number) for number in range(500)]
    produce(name, pairs, {"compression.type": codec}, headers=[("h", b"\x00\xff"), ("n", None)])
    messages = consume(name, 500, partitions=3)
    by_key = defaultdict(list)
    for message in messages:
        assert message.headers() == [("h", b"\x00\xff"), ("n", None)]
        by_key[message.key()].append(message.value())
    for key in by_key:
        assert by_key[key] == [value for other, value in pairs if other == key]
    for number in range(3):
        offsets = [message.offset() for message in messages if message.partition() == number]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("codec", CODECS)
async def test_aiokafka_and_confluent_read_each_other(kafka, topic, produce, consume, codec):
    name = topic(1)
    kind = None if codec == "none" else codec
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type=kind) as producer:
        for number in range(50):
            await producer.send(name, b"a" * number, key=b"%d" % number, headers=[("h", b"1")])
        await producer.flush()
    await asyncio.to_thread(produce, name, [(b"c", b"b" * 100)] * 50, {"compression.type": codec})
    seen = await asyncio.to_thread(consume, name, 100)
    assert [message.value() for message in seen] == [b"a" * n for n in range(50)] + [b"b" * 100] * 50
    consumer = AIOKafkaConsumer(name, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
    async with consumer:
        got = []
        while len(got) < 100:
            batches = await asyncio.wait_for(consumer.getmany(timeout_ms=1000), 15)
            got += [record for records in batches.values() for record in records]
    assert [record.offset for record in got] == list(range(100))
    assert [record.value for record in got] == [message.value() for message in seen]
    assert got[0].headers == (("h", b"1"),)


async def test_clients_agree_on_the_partition_of_a_key(kafka, topic, produce):
    name = topic(8)
    keys = [uuid.uuid4().hex.encode() for _ in range(200)]
    ours = await asyncio.to_thread(produce, name, [(key, b"") for key in keys])
    theirs = {}
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for key in keys:
            theirs[key] = (await producer.send_and_wait(name, b"", key=key)).partition
    assert {message.key(): message.partition() for message in ours} == theirs
    careless = await asyncio.to_thread(
        produce, name, [(key, b"") for key in keys], {"partitioner": "consistent_random"}
    )
    assert {message.key(): message.partition() for message in careless} != theirs


def test_append_time_replaces_the_producers_and_never_runs_back(topic, produce, consume):
    name = topic(1)
    before = int(time.time() * 1000)
    for stamp in (1, 4_000_000_000_000, 12345):
        produce(name, [(b"k", b"v")], timestamp=stamp)
    after = int(time.time() * 1000)
    stamps = [message.timestamp() for message in consume(name, 3)]
    assert [kind for kind, _ in stamps] == [2, 2, 2]
    times = [stamp for _, stamp in stamps]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= after


def test_tombstones_empty_values_and_null_keys_are_preserved(topic, produce, consume):
    name = topic(1)
    pairs = [(b"k", None), (b"k", b""), (None, b"v"), (b"", b"v"), (None, None)]
    produce(name, pairs)
    assert [(message.key(), message.value()) for message in consume(name, 5)] == pairs


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(topic, produce, consume, acks):
    name = topic(1)
    produce(name, [(None, b"%d" % number) for number in range(100)], {"acks": acks})
    assert [message.value() for message in consume(name, 100)] == [b"%d" % number for number in range(100)]


def test_large_messages_up_to_the_topics_limit(kafka, topic, produce, consume):
    name = topic(1, max_message_bytes=3_000_000)
    body = bytes(range(256)) * 11_000
    produce(name, [(b"k", body)] * 3, {"message.max.bytes": 8_000_000})
    assert all(message.value() == body for message in consume(name, 3))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 8_000_000})
    errors = []
    producer.produce(name, bytes(3_100_000), on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert errors[0].name() == "MSG_SIZE_TOO_LARGE"


def test_a_fetch_smaller_than_the_batch_still_gets_the_whole_batch(raw, topic, record_batch):
    name, client = topic(1), raw()
    batch = record_batch([(b"k", bytes(100_000))])
    send_batch(client, name, batch)
    code, high, data = fetched(client.ask(fetch_request(name, 0, max_bytes=100)))
    assert (code, high) == (0, 1)
    assert len(data) == len(batch)


def test_fetch_from_within_a_batch_returns_the_batch(raw, topic, record_batch):
    name, client = topic(1), raw()
    for _ in range(3):
        send_batch(client, name, record_batch([(b"k", b"v")] * 4))
    code, high, data = fetched(client.ask(fetch_request(name, 6)))
    assert (code, high) == (0, 12)
    assert struct.unpack_from(">q", data)[0] == 4


def test_offsets_out_of_range_return_an_error(raw, topic, record_batch):
    name, client = topic(1), raw()
    send_batch(client, name, record_batch([(b"k", b"v")]))
    assert fetched(client.ask(fetch_request(name, 1)))[0] == 0
    assert fetched(client.ask(fetch_request(name, 2)))[0] == 1
    assert fetched(client.ask(fetch_request(f"{name}-none", 0)))[0] == 3


def test_a_waiting_fetch_wakes_when_data_comes(raw, topic, record_batch):
    name, reader, writer = topic(1), raw(), raw()
    request = fetch_request(name, 0, wait_ms=10_000)
    number = reader.send(request)
    reader.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        reader.sock.recv(1)
    reader.sock.settimeout(5)
    begin = time.monotonic()
    send_batch(writer, name, record_batch([(b"k", b"v")]))
    code, high, data = fetched(reader.receive(request, number))
    assert time.monotonic() - begin < 2
    assert (code, high) == (0, 1)
    assert data


def test_a_fetch_waits_for_as_many_bytes_as_it_asked_for(raw, topic, record_batch):
    name, client = topic(1), raw()
    send_batch(client, name, record_batch([(b"k", b"v")]))
    begin = time.monotonic()
    code, _, data = fetched(client.ask(fetch_request(name, 0, wait_ms=400, min_bytes=10_000)))
    assert 0.3 < time.monotonic() - begin < 5
    assert code == 0
    assert data


def test_offsets_by_time(kafka, topic, produce):
    name = topic(1)
    times = []
    for number in range(3):
        [message] = produce(name, [(b"k", b"%d" % number)])
        times.append(message.timestamp()[1])
        while int(time.time() * 1000) <= times[-1] + 2:
            time.sleep(0.001)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "none"})
    try:
        for stamp, offset in [(0, 0), (times[0], 0), (times[0] + 1, 1), (times[2], 2)]:
            [found] = consumer.offsets_for_times([Partition(name, 0, stamp)], timeout=10)
            assert found.offset == offset
        [found] = consumer.offsets_for_times([Partition(name, 0, times[2] + 1)], timeout=10)
        assert found.offset == -1
        assert consumer.get_watermark_offsets(Partition(name, 0), timeout=10) == (0, 3)
    finally:
        consumer.close()


def test_earliest_and_latest_of_a_missing_partition(raw, topic):
    name, client = topic(2), raw()
    answer = client.ask(OffsetRequest_v1(-1, [(name, [(0, -1), (1, -2), (2, -1)])]))
    [(_, found)] = answer.topics
    assert [(partition, code) for partition, code, _, _ in sorted(found)] == [(0, 0), (1, 0), (2, 3)]


def test_duplicates_of_an_idempotent_producer_are_answered_but_not_written(
    raw, topic, record_batch, producer_id
):
    name, client = topic(1), raw()
    producer, epoch = producer_id(client), 0
    batches = [record_batch([(b"k", b"v")] * 2, (producer, epoch, 2 * number)) for number in range(5)]
    for number, batch in enumerate(batches):
        assert send_batch(client, name, batch)[:2] == (0, 2 * number)
    for number in (4, 0, 2):
        assert send_batch(client, name, batches[number])[:2] == (0, 2 * number)
    gap = record_batch([(b"k", b"v")], (producer, epoch, 11))
    assert send_batch(client, name, gap)[0] == 45
    assert send_batch(client, name, record_batch([(b"k", b"v")], (producer, epoch, 10)))[:2] == (0, 10)
    fresh = record_batch([(b"k", b"v")], (producer, epoch + 1, 0))
    assert send_batch(client, name, fresh)[:2] == (0, 11)
    assert send_batch(client, name, record_batch([(b"k", b"v")], (producer, epoch, 11)))[0] in (47, 90)
    assert fetched(client.ask(fetch_request(name, 0)))[1] == 12


def test_producer_ids_are_never_given_twice(raw, producer_id):
    client = raw()
    ids = [producer_id(client) for _ in range(20)]
    assert len(set(ids)) == 20


def test_idempotent_producers_of_both_clients(kafka, topic, produce, consume):
    name = topic(2)
    produce(name, [(b"%d" % number, b"c") for number in range(300)], {"enable.idempotence": True})

    async def send():
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, enable_idempotence=True) as producer:
            for number in range(300):
                await producer.send(name, b"a", key=b"%d" % number)

    asyncio.run(send())
    assert len(consume(name, 600, partitions=2)) == 600


def _flip(batch: bytes, position: int) -> bytes:
    return batch[:position] + bytes([batch[position] ^ 0x55]) + batch[position + 1 :]


def test_damaged_batches_are_refused_and_not_written(raw, topic, record_batch):
    name, client = topic(1), raw()
    batch = record_batch([(b"key", b"value")] * 3)
    assert send_batch(client, name, _flip(batch, len(batch) - 3))[0] == 2
    assert send_batch(client, name, _flip(batch, 25))[0] in (2, 87)
    assert send_batch(client, name, batch + batch)[0] == 87
    assert send_batch(client, name, batch)[:2] == (0, 0)
    assert fetched(client.ask(fetch_request(name, 0)))[1] == 1 * 3


def test_a_partition_that_does_not_exist_takes_nothing(raw, topic, record_batch):
    name, client = topic(1), raw()
    batch = record_batch([(b"k", b"v")])
    answer = client.ask(ProduceRequest_v7(None, -1, 5000, [(name, [(5, batch), (0, batch)])]))
    [(_, found)] = answer.topics
    assert [(entry[0], entry[1]) for entry in sorted(found)] == [(0, 0), (5, 3)]


def test_a_topic_that_does_not_exist_is_not_made(kafka, admin):
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 1500})
    errors = []
    name = f"none-{uuid.uuid4().hex[:8]}"
    producer.produce(name, b"v", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert errors[0].name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_MSG_TIMED_OUT")
    assert name not in admin.list_topics(timeout=10).topics


def test_pipelined_requests_are_answered_in_order(raw, topic, record_batch):
    name, client = topic(1), raw()
    request = ProduceRequest_v7(None, -1, 5000, [(name, [(0, record_batch([(b"k", b"v")]))])])
    numbers = [client.send(request) for _ in range(50)]
    offsets = [produced(client.receive(request, number))[1] for number in numbers]
    assert offsets == list(range(50))


async def test_consumers_seek_and_pause(kafka, topic, produce):
    name = topic(1)
    await asyncio.to_thread(produce, name, [(None, b"%d" % number) for number in range(100)])
    part = TopicPartition(name, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap)
    consumer.assign([part])
    async with consumer:
        for offset in (90, 10, 50):
            consumer.seek(part, offset)
            record = await asyncio.wait_for(consumer.getone(), 10)
            assert (record.offset, record.value) == (offset, b"%d" % offset)
        assert await consumer.beginning_offsets([part]) == {part: 0}
        assert await consumer.end_offsets([part]) == {part: 100}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">i", 2**31 - 1) + b"x" * 100,
        struct.pack(">i", -5) + b"x" * 100,
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
        bytes(64),
    ],
    ids=["http", "huge", "negative", "unknown request", "absurd array", "zeros"],
)
def test_garbage_closes_its_connection_and_nothing_else(raw, topic, record_batch, data):
    name, good, bad = topic(1), raw(), raw()
    bad.sock.sendall(data)
    with pytest.raises(ConnectionError):
        bad.read(1)
    assert send_batch(good, name, record_batch([(b"k", b"v")]))[0] == 0


def test_transactions_or_a_clear_refusal(kafka):
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t", "log_level": 0})
    if kafka.embedded:
        with pytest.raises(KafkaException):
            producer.init_transactions(20)
    else:
        producer.init_transactions(20)


def test_many_partitions_in_one_fetch_share_the_limit(raw, topic, record_batch):
    name, client = topic(4), raw()
    batch = record_batch([(b"k", bytes(50_000))])
    for number in range(4):
        answer = client.ask(ProduceRequest_v7(None, -1, 5000, [(name, [(number, batch)])]))
        assert answer.topics[0][1][0][1] == 0
    request = FetchRequest_v4(-1, 0, 1, 120_000, 0, [(name, [(n, 0, 1 << 20) for n in range(4)])])
    [(_, found)] = client.ask(request).topics
    sizes = [len(entry[-1]) for entry in found]
    assert sizes[0] == len(batch)
    assert len(batch) <= sum(sizes) <= 120_000 + len(batch)
    assert len(list(itertools.filterfalse(None, sizes))) >= 1
