"""Commits: stored by group, refused for another generation, and fetched one by one or all at once."""

from __future__ import annotations

import pytest

from fabrictime.log.errors import Code
from fabrictime.log.requests.commits import MAX_METADATA_BYTES, CommitRequests


@pytest.fixture
def commits(harness):
    """Make the requests inside the running loop."""

    def make() -> CommitRequests:
        made = harness()
        return CommitRequests(made.store, made.offsets, made.groups)

    return make


def commit(*partitions: tuple[int, int, str], group: str = "g", generation: int = -1) -> dict:
    entries = [
        {"partition": number, "offset": offset, "metadata": note} for number, offset, note in partitions
    ]
    return {
        "consumer_group": group,
        "consumer_group_generation_id": generation,
        "consumer_id": "",
        "topics": [{"topic": "t", "partitions": entries}],
    }


def codes(answer: dict) -> list[int]:
    return [each["error_code"] for topic in answer["topics"] for each in topic["partitions"]]


async def test_committed_offsets_are_fetched_and_nothing_else(commits):
    requests = commits()
    assert codes(requests.offset_commit(2, commit((0, 7, "note"), (1, -5, "")))) == [Code.NONE] * 2
    wanted = [{"topic": "t", "partitions": [0, 1, 9]}, {"topic": "none", "partitions": [0]}]
    found = requests.offset_fetch(1, {"consumer_group": "g", "topics": wanted})["topics"]
    offsets = [
        (each["partition"], each["offset"], each["metadata"])
        for topic in found
        for each in topic["partitions"]
    ]
    assert offsets == [(0, 7, "note"), (1, 0, ""), (9, -1, ""), (0, -1, "")]
    everything = requests.offset_fetch(2, {"consumer_group": "g", "topics": None})["topics"]
    assert [topic["topic"] for topic in everything] == ["t"]
    assert requests.offset_fetch(2, {"consumer_group": "other", "topics": None})["topics"] == []


async def test_a_partition_that_is_not_there_or_too_long_a_note_is_refused_alone(commits):
    requests = commits()
    answer = requests.offset_commit(2, commit((0, 1, ""), (9, 1, ""), (1, 1, "x" * (MAX_METADATA_BYTES + 1))))
    assert codes(answer) == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.parametrize(
    ("fields", "code"), [({"group": ""}, Code.INVALID_GROUP_ID), ({"generation": 3}, Code.ILLEGAL_GENERATION)]
)
async def test_a_commit_of_no_group_or_another_generation_stores_nothing(commits, fields, code):
    requests = commits()
    assert codes(requests.offset_commit(2, commit((0, 1, ""), (1, 1, ""), **fields))) == [code] * 2
    assert (
        requests.offset_fetch(2, {"consumer_group": fields.get("group", "g"), "topics": None})["topics"] == []
    )


async def test_a_full_disk_is_an_error_that_clients_retry(commits, monkeypatch):
    requests = commits()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(requests._offsets, "commit", full)
    assert codes(requests.offset_commit(2, commit((0, 1, "")))) == [Code.COORDINATOR_NOT_AVAILABLE]
