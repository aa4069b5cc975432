"""Messages: a record is refused under any key but its own."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.messages import decode_message, key_of
from schemas.topics import CLOCK_OFFSETS, INVENTORY, PATHS, TOPICS
from tests.records import make


@pytest.mark.parametrize("topic", TOPICS.values(), ids=lambda topic: topic.name)
def test_every_topic_knows_the_key_of_its_records(topic):
    record = make(topic.type)
    value = codec.encode(topic.type, record)
    assert decode_message(topic, key_of(topic, record).encode(), value) == record


@pytest.mark.parametrize("key", [None, b"", b"h2/eth0", b"\xff", "h1/eth0 "])
def test_another_key_is_refused_with_both_names(key):
    value = codec.encode("Nic", make("Nic", nic="h1/eth0"))
    with pytest.raises(codec.BadRecord, match="expected 'h1/eth0'") as found:
        decode_message(INVENTORY, key, value)
    assert found.value.reason == "WRONG_KEY"


def test_keys_of_several_fields():
    assert key_of(PATHS, make("PathMaps", nic="h1/eth0", peer="h2/eth0")) == "h1/eth0>h2/eth0"
    assert key_of(CLOCK_OFFSETS, make("ClockOffsets", shard="pod1", part=2, parts=3)) == "pod1/2"
