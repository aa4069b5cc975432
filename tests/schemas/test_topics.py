"""The table of topics: settings that a broker takes, records that exist, rules of the contract."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.topics import DAY_MS, HOUR_MS, MAX_MESSAGE_BYTES, REPLAY_HORIZON_MS, TOPICS, Partitions

ALLOWED = {
    "cleanup.policy": {"delete", "compact", "compact,delete"},
    "message.timestamp.type": {"LogAppendTime"},
}
WHOLE = {"retention.ms", "max.message.bytes", "min.compaction.lag.ms"}


@pytest.mark.parametrize("topic", TOPICS.values(), ids=lambda topic: topic.name)
def test_a_broker_accepts_the_topic_config(topic):
    for config in (topic.config(), topic.config(retention_hours=0.5)):
        assert set(config) <= set(ALLOWED) | WHOLE
        for key, value in config.items():
            if key in ALLOWED:
                assert value in ALLOWED[key]
            else:
                assert value == str(int(value))
                assert int(value) > 0
        assert config["message.timestamp.type"] == "LogAppendTime"
        assert config["max.message.bytes"] == str(MAX_MESSAGE_BYTES)
        compacted = "compact" in config["cleanup.policy"]
        assert compacted == topic.compacted == ("min.compaction.lag.ms" in config)
        assert ("delete" in config["cleanup.policy"]) == ("retention.ms" in config)


def test_retention_follows_its_setting_only_where_a_topic_has_one():
    for topic in TOPICS.values():
        changed = topic.config(retention_hours=2.0) != topic.config()
        assert changed == (topic.retention_setting is not None)
    assert TOPICS["fabric.probes"].config(retention_hours=1.5)["retention.ms"] == str(3 * HOUR_MS // 2)


@pytest.mark.parametrize("topic", TOPICS.values(), ids=lambda topic: topic.name)
def test_every_topic_is_written_and_read_and_explained(topic):
    assert TOPICS[topic.name] is topic
    assert topic.name.startswith("fabric.")
    assert topic.writers
    assert topic.readers
    assert topic.doc
    assert topic.key
    assert codec.raw_schema(topic.record)["doc"]


def test_every_schema_travels_on_a_topic():
    from pathlib import Path

    here = {path.stem for path in Path(codec.__file__).parent.glob("*.avsc")}
    local = {"PathStatusReport"}  # from a host's prober to its actuator, over a socket
    assert here - local == {topic.record for topic in TOPICS.values()}


def test_lookups_are_compacted_and_a_day_can_be_replayed():
    assert TOPICS["fabric.inventory"].compacted
    assert TOPICS["fabric.clock.offsets"].compacted
    assert REPLAY_HORIZON_MS >= DAY_MS
    assert int(TOPICS["fabric.probes"].config()["retention.ms"]) >= REPLAY_HORIZON_MS


def test_topics_that_meet_in_one_agent_have_equal_partitions():
    """Reading several data topics keyed alike needs the same key in the same partition."""
    meet = [topic for topic in TOPICS.values() if "map" in topic.writers and topic.name != "fabric.rejects"]
    assert {topic.partitions for topic in meet} == {Partitions.DATA}
