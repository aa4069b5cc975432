"""Topics: made, described, changed, deleted; compaction and retention. On both brokers."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from fabrictime.install.service_checks import REBALANCE_DELAY
from schemas.kafka.admin import broker_values

COMPACT = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": 200,
    "segment_bytes": 30_000,
}


def create(admin, name, partitions=1, config=None, **options):
    futures = admin.create_topics([NewTopic(name, partitions, 1, config=config or {})], **options)
    return futures[name].exception(20)


def code(error):
    return error.args[0].name()


def test_create_list_and_delete(kafka, admin, wait_for):
    name = f"made-{uuid.uuid4().hex[:8]}"
    assert create(admin, name, 3, validate_only=True) is None
    assert name not in admin.list_topics(timeout=10).topics
    assert create(admin, name, 3) is None
    topic = wait_for(lambda: admin.list_topics(timeout=10).topics.get(name))
    assert sorted(topic.partitions) == [0, 1, 2]
    assert code(create(admin, name)) == "TOPIC_ALREADY_EXISTS"
    assert admin.delete_topics([name])[name].exception(20) is None
    wait_for(lambda: name not in admin.list_topics(timeout=10).topics)
    assert code(admin.delete_topics([name])[name].exception(20)) == "UNKNOWN_TOPIC_OR_PART"


@pytest.mark.parametrize("name", ["a b", "x/y", "..", "ü", "n" * 250])
def test_names_that_topics_may_not_have(admin, name):
    assert code(create(admin, name)) == "TOPIC_EXCEPTION"


@pytest.mark.parametrize(
    "config", [{"cleanup.policy": "shred"}, {"retention.ms": "soon"}, {"no.such.setting": "1"}]
)
def test_configurations_that_topics_may_not_have(admin, config):
    name = f"bad-{uuid.uuid4().hex[:8]}"
    assert code(create(admin, name, 1, config)) == "INVALID_CONFIG"
    assert name not in admin.list_topics(timeout=10).topics


def test_describe_and_alter_a_configuration(kafka, topic, wait_for):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    name = topic(2, retention_ms=5_000_000, cleanup_policy="compact,delete")

    def described():
        resource = ConfigResource(ResourceType.TOPIC, name)
        return admin.describe_configs([resource])[resource].result(20)

    config = described()
    assert config["retention.ms"].value == "5000000"
    assert config["cleanup.policy"].value == "compact,delete"
    assert config["message.timestamp.type"].value == "LogAppendTime"
    assert config["min.compaction.lag.ms"].is_default
    changed = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.ms": "6000000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        futures = admin.alter_configs([changed])
    assert futures[changed].exception(20) is None
    config = wait_for(lambda: (found := described())["retention.ms"].value == "6000000" and found)
    assert config["cleanup.policy"].value == "delete"
    missing = ConfigResource(ResourceType.TOPIC, "no-such-topic")
    assert code(admin.describe_configs([missing])[missing].exception(20)) == "UNKNOWN_TOPIC_OR_PART"


def test_the_cluster_describes_itself(kafka, admin):
    metadata = admin.list_topics(timeout=10)
    assert [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()] == [kafka.bootstrap]
    assert metadata.controller_id in metadata.brokers
    described = admin.describe_cluster().result(20)
    assert described.cluster_id == metadata.cluster_id
    assert len(described.nodes) == 1


def test_the_value_of_each_broker_is_read(kafka):
    [delay_ms] = broker_values(kafka.bootstrap, REBALANCE_DELAY).values()
    assert delay_ms == (None if kafka.embedded else "200")


def latest(messages):
    return {message.key(): message.value() for message in messages}


def fill(produce, name, rounds=20, keys=20):
    """Several rounds of the same keys, a segment each; returns what must stay."""
    for number in range(rounds):
        produce(name, [(b"key-%d" % key, b"round-%d" % number + bytes(1000)) for key in range(keys)])
    return {b"key-%d" % key: b"round-%d" % (rounds - 1) + bytes(1000) for key in range(keys)}


def nudge(produce, name):
    """A record that closes the active segment, which is never cleaned."""
    produce(name, [(b"nudge", b"x" * 12_000)])


def test_compaction_keeps_the_newest_of_every_key(topic, produce, consume, wait_for):
    name = topic(1, **COMPACT)
    wanted = fill(produce, name)

    def compacted():
        nudge(produce, name)
        messages = [message for message in consume(name) if message.key() != b"nudge"]
        assert latest(messages) == wanted
        return len(messages) < 60 and messages

    messages = wait_for(compacted, every_s=0.2)
    offsets = [message.offset() for message in messages]
    assert offsets == sorted(offsets)
    assert offsets[-20:] == list(range(380, 400))


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip", "snappy"])
def test_compaction_opens_compressed_batches(topic, produce, consume, wait_for, codec):
    name = topic(1, **(COMPACT | {"segment_bytes": 8000}))
    for number in range(10):
        pairs = [(b"key-%d" % key, b"%d" % number * 50) for key in range(20)] + [(b"only-%d" % number, b"v")]
        produce(name, pairs, {"compression.type": codec, "linger.ms": 100})

    def compacted():
        nudge_small = [(b"nudge", bytes(3000))]
        produce(name, nudge_small)
        messages = [message for message in consume(name) if message.key() != b"nudge"]
        newest = latest(messages)
        assert newest[b"key-7"] == b"9" * 50
        assert {key for key in newest if key.startswith(b"only")} == {b"only-%d" % n for n in range(10)}
        return len(messages) < 80

    wait_for(compacted, every_s=0.2)


def test_tombstones_delete_their_key_and_go_in_the_end(topic, produce, consume, wait_for):
    name = topic(1, **COMPACT, delete_retention_ms=100)
    fill(produce, name, rounds=3)
    produce(name, [(b"key-%d" % key, None) for key in range(10)])

    def gone():
        nudge(produce, name)
        keys = {message.key() for message in consume(name)} - {b"nudge"}
        assert {b"key-%d" % key for key in range(10, 20)} <= keys
        return keys == {b"key-%d" % key for key in range(10, 20)}

    wait_for(gone, every_s=0.2)


def test_compaction_leaves_young_records_alone(topic, produce, consume, wait_for):
    young = topic(1, **COMPACT, min_compaction_lag_ms=3_600_000)
    other = topic(1, **COMPACT)
    fill(produce, young, rounds=5)
    fill(produce, other, rounds=5)

    def other_compacted():
        nudge(produce, other)
        nudge(produce, young)
        return len([message for message in consume(other) if message.key() != b"nudge"]) < 60

    wait_for(other_compacted, every_s=0.2)
    assert len([message for message in consume(young) if message.key() != b"nudge"]) == 100


def test_a_compacted_topic_takes_no_record_without_a_key(kafka, topic, raw, record_batch):
    from aiokafka.protocol.produce import ProduceRequest_v7

    name = topic(1, **COMPACT)
    batch = record_batch([(b"k", b"v"), (None, b"v")])
    answer = raw().ask(ProduceRequest_v7(None, -1, 5000, [(name, [(0, batch)])]))
    assert answer.topics[0][1][0][1] == 87


def earliest(kafka, name):
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "none"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=10)
    finally:
        consumer.close()


def test_retention_by_bytes_keeps_the_newest(kafka, topic, produce, consume, wait_for):
    name = topic(1, segment_bytes=20_000, retention_bytes=50_000)
    for number in range(40):
        produce(name, [(None, b"%d" % number + bytes(5000))])
    low, high = wait_for(lambda: (found := earliest(kafka, name))[0] > 20 and found)
    assert high == 40
    assert low <= 33
    messages = consume(name)
    offsets = [message.offset() for message in messages]
    assert offsets == list(range(offsets[0], 40))
    assert offsets[0] >= low
    assert messages[-1].value().startswith(b"39")


def test_retention_by_time_empties_a_silent_topic(kafka, topic, produce, wait_for):
    name = topic(1, retention_ms=300, segment_ms=100)
    produce(name, [(None, b"%d" % number) for number in range(10)])
    wait_for(lambda: earliest(kafka, name) == (10, 10))
    produce(name, [(None, b"after")])
    assert earliest(kafka, name)[1] == 11


def test_compact_and_delete_together(kafka, topic, produce, wait_for):
    name = topic(1, **(COMPACT | {"cleanup_policy": "compact,delete"}), retention_ms=1000)
    fill(produce, name, rounds=2)

    def emptied():
        low, high = earliest(kafka, name)
        return low == high == 40

    wait_for(emptied)


def test_a_consumer_goes_on_after_its_offset_was_removed(kafka, topic, produce, wait_for):
    name = topic(1, segment_bytes=20_000, retention_bytes=20_000)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    try:
        produce(name, [(None, bytes(5000))])
        consumer.assign([TopicPartition(name, 0, 0)])
        wait_for(lambda: consumer.poll(0.1))
        consumer.pause([TopicPartition(name, 0)])
        for _ in range(20):
            produce(name, [(None, bytes(5000))])
        low, _ = wait_for(lambda: (found := earliest(kafka, name))[0] > 5 and found)
        consumer.seek(TopicPartition(name, 0, 2))
        consumer.resume([TopicPartition(name, 0)])
        message = wait_for(lambda: (m := consumer.poll(0.1)) and not m.error() and m)
        assert message.offset() >= low
    finally:
        consumer.close()
