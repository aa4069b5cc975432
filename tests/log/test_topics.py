"""Metadata, creation and deletion of topics, one answer for each name."""

from __future__ import annotations

import pytest

from fabrictime.log.errors import Code
from fabrictime.log.requests.base import Peer
from fabrictime.log.requests.topics import TopicRequests
from fabrictime.log.settings import LogSettings


@pytest.fixture
def topics(harness, tmp_path):
    """Make the requests inside the running loop."""

    def make(**settings) -> TopicRequests:
        made = harness()
        options = LogSettings(directory=tmp_path, partitions=3, **settings)
        return TopicRequests(options, Peer("127.0.0.1", 9092), made.store, made.offsets)

    return make


def found(
    requests: TopicRequests, names: list[str] | None, version: int = 5, **fields
) -> dict[str, tuple[int, int]]:
    answer = requests.metadata(version, {"topics": names, **fields})
    assert [(each["host"], each["port"]) for each in answer["brokers"]] == [("127.0.0.1", 9092)]
    return {each["topic"]: (each["error_code"], len(each["partitions"])) for each in answer["topics"]}


async def test_all_topics_or_those_that_are_named_each_once(topics):
    requests = topics()
    assert found(requests, None) == found(requests, [], version=0) == {"t": (Code.NONE, 2)}
    assert found(requests, []) == {}
    missing = (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert found(requests, ["t", "none", "t"]) == {"t": (Code.NONE, 2), "none": missing}


async def test_a_missing_topic_is_made_only_where_settings_and_client_allow_it(topics):
    requests = topics(auto_create_topics=True)
    refused = (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert found(requests, ["new"], allow_auto_topic_creation=False) == {"new": refused}
    assert found(requests, ["new"], allow_auto_topic_creation=True) == {"new": (Code.NONE, 3)}
    assert found(requests, ["a b"])["a b"][0] == Code.INVALID_TOPIC
