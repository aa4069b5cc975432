"""Command I/O: partitions, committed offsets and former schemas."""

from __future__ import annotations

from contextlib import closing

from actuators.flows import command_io
from actuators.flows.command_io import CommandIO, Offsets
from fabrictime.runtime.topics_admin import publish_schemas
from schemas import codec
from schemas.kafka.partitioning import murmur2, partition_of
from schemas.kafka.schema_log import FollowedSchemas, SchemaUnread
from schemas.kafka.settings import KafkaSettings
from schemas.topics import CONFIG
from tests.later_schema import later_schema, send_schema

EVERY = ["REROUTE", "RESTORE", "PACE", "UNPACE", "SLICE"]


def config(mode="ACT", version=1, host="*", **fields):
    record = {"host": host, "version": version, "at_ns": 0, "by": "t", "mode": mode, **fields}
    return {"allowed_actions": EVERY, **record}


def test_partitions_equal_those_of_kafka_clients():
    from aiokafka.partitioner import murmur2 as theirs

    for key in ("", "a", "ab", "abc", "h1", "leaf-12.rack3", "é"):
        assert murmur2(key.encode()) & 0x7FFFFFFF == theirs(key.encode()) & 0x7FFFFFFF
    assert partition_of("h1", 1) == 0


def test_an_offset_is_committed_once_all_earlier_messages_are_done():
    offsets = Offsets()
    assert offsets.to_commit() is None
    for offset in (5, 6, 8):
        offsets.take(offset)
    offsets.done(6)
    assert offsets.to_commit() == 5
    offsets.done(5)
    assert offsets.to_commit() == 8
    assert offsets.to_commit() is None
    offsets.done(8)
    assert offsets.to_commit() == 9


def test_a_former_schema_of_the_config_is_read(log):
    """Records of older versions have no order to revert, and revert nothing."""
    from schemas.limits import Limits

    record = codec.decode(codec.encode(CONFIG.record, config()), CONFIG.record)
    assert Limits.of({"*": record}, "h1").revert_before_ns == 0


def test_schemas_are_followed_also_on_a_log_that_gets_their_topic_later(log, monkeypatch, wait_for):
    monkeypatch.setattr(command_io, "_REASSIGN_S", 0.05)
    fingerprint, schema = later_schema("Decision")
    registry = FollowedSchemas()

    def has_arrived():
        try:
            return registry.schema_of(fingerprint) == schema
        except SchemaUnread:
            return False

    with closing(CommandIO(KafkaSettings(bootstrap=log.bootstrap), "h1", ["h1"], registry)) as started:
        started.start()
        wait_for(lambda: [item.kind for item in started.urgent] == ["ready"])
        publish_schemas(log.bootstrap)
        send_schema(log.bootstrap, "Decision")
        wait_for(has_arrived)
        wait_for(lambda: started.urgent[-1].kind == "schemas")
