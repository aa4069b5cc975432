"""Command I/O: partitions, committed offsets and former schemas."""

from __future__ import annotations

import math
import time
from contextlib import closing

import pytest

from actuators.flows import command_io
from actuators.flows.command_io import CommandIO, Offsets
from fabrictime.runtime.topics_admin import publish_schemas
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.partitioning import murmur2, partition_of
from schemas.kafka.reader import LogUnavailable
from schemas.kafka.schema_log import FollowedSchemas, SchemaUnread
from schemas.kafka.settings import KafkaSettings
from schemas.topics import CONFIG, DECISIONS, SCHEMAS
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


class Log:
    """Stands in for both readers of a log whose leader of the topic of schemas is away."""

    def __init__(self):
        self.starts = {}
        self.assigned = [(DECISIONS.name, 0)]
        self.behind = {(CONFIG.name, 0), (SCHEMAS.name, 0)}
        self.polls = self.checks = self.clients = self.closed = 0
        self.messages = []
        self.commits = []

    def client(self, cluster, topics, group):
        self.clients += 1
        return self

    def assign_available(self):
        return []

    def poll(self, wait_s, limit, at_once):
        self.polls += 1
        messages, self.messages = self.messages, []
        return messages

    def commit(self, offsets, wait):
        self.commits.append(offsets)

    def ends(self):
        self.checks += 1
        self.checked_s = time.monotonic()
        raise LogUnavailable("no leader")

    def close(self):
        self.closed += 1


@pytest.fixture
def away(monkeypatch):
    log = Log()
    monkeypatch.setattr(command_io, "TopicReader", lambda *_, **__: log)
    monkeypatch.setattr(command_io, "OffsetReader", log.client)
    return log


def own_io():
    return closing(CommandIO(KafkaSettings(bootstrap="127.0.0.1:1"), "h1", ["h1"]))


def test_commits_go_on_while_the_end_of_the_schemas_is_unknown(away, monkeypatch, wait_for):
    monkeypatch.setattr(command_io, "_CHECK_AGAIN_S", 0.0)
    message = Message(0, DECISIONS.name, 0, 5, "h1", b"")
    away.messages.append(message)
    with own_io() as started:
        started.start()
        started.check_schemas(time.monotonic())
        wait_for(lambda: away.checks > 2 and started.queued)
        started.done(message)
        wait_for(lambda: {(DECISIONS.name, 0): 6} in away.commits)
    assert (away.clients, away.closed) == (1, 2)


def test_a_failed_check_is_repeated_after_a_pause_that_begins_with_its_end(away, monkeypatch, wait_for):
    monkeypatch.setattr(command_io, "_CHECK_AGAIN_S", 1000.0)
    with own_io() as started:
        started.start()
        started.check_schemas(time.monotonic())
        wait_for(lambda: away.checks == 1)
        polls = away.polls
        wait_for(lambda: away.polls > polls + 1)
        assert away.checks == 1
        assert started._check_s >= away.checked_s + 1000.0


def test_nothing_is_checked_once_no_message_waits(away, monkeypatch, wait_for):
    monkeypatch.setattr(command_io, "_CHECK_AGAIN_S", 0.0)
    with own_io() as started:
        started.start()
        started.check_schemas(time.monotonic())
        wait_for(lambda: away.checks)
        started.check_schemas(-math.inf)
        polls = away.polls
        wait_for(lambda: away.polls > polls + 1)  # a check that had begun is over
        checks, polls = away.checks, away.polls
        wait_for(lambda: away.polls > polls + 1)
        assert away.checks == checks


def test_readiness_needs_config_whole_and_waits_a_while_for_schemas(away, monkeypatch, wait_for):
    monkeypatch.setattr(command_io, "_SCHEMAS_S", 0.0)
    with own_io() as started:
        started.start()
        wait_for(lambda: away.polls > 2)
        assert not started.urgent
        away.behind.discard((CONFIG.name, 0))
        wait_for(lambda: [item.kind for item in started.urgent] == ["ready"])
    assert away.behind == {(SCHEMAS.name, 0)}


def test_readiness_waits_for_schemas_that_come_in_time(away, wait_for, monkeypatch):
    monkeypatch.setattr(command_io, "_SCHEMAS_S", 1000.0)
    away.behind.discard((CONFIG.name, 0))
    with own_io() as started:
        started.start()
        wait_for(lambda: away.polls > 2)
        assert not started.urgent
        away.behind.clear()
        wait_for(lambda: started.urgent)
