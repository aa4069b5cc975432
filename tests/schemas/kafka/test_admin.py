"""Topics on a cluster: created once, then checked, never changed without notice."""

import json
import re
import subprocess
import sys
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas import topics
from schemas.kafka import admin as topics_admin


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    settings = {"directory": str(folder / "data"), "port": 0, "create_topics": False, "min_free_bytes": 0}
    output = folder / "output"
    with output.open("w") as file:
        child = subprocess.Popen([sys.executable, "-m", "fabrictime.log", json.dumps(settings)], stderr=file)
    end = time.monotonic() + 30
    while not (found := re.search(r"listening on ([\d.:]+)", output.read_text())):
        assert child.poll() is None, output.read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
    yield found[1]
    child.terminate()
    child.wait(30)


def test_topics_are_created_once_and_then_checked(bootstrap):
    first = topics_admin.create_topics(bootstrap, partitions=3)
    assert first == [
        f"{topic.name}: created, {1 if topic.partitions is topics.Partitions.ONE else 3} partitions"
        for topic in topics.TOPICS.values()
    ]
    again = topics_admin.create_topics(bootstrap, partitions=3)
    assert again == [f"{name}: is there" for name in topics.TOPICS]


def test_another_number_of_partitions_is_reported_and_unchanged(bootstrap):
    topics_admin.create_topics(bootstrap, partitions=3)
    with pytest.raises(topics_admin.TopicsError, match=r"fabric\.delays: has 3 partitions, expected 5"):
        topics_admin.create_topics(bootstrap, partitions=5)
    topics_admin.create_topics(bootstrap, partitions=3)


class AutoCreatingBroker:
    """A broker that created one topic by itself, with its own number of partitions."""

    def __init__(self, options, logger=None):
        pass

    def list_topics(self, timeout):
        return SimpleNamespace(topics={"fabric.probes": SimpleNamespace(partitions=range(3))})


def test_no_topic_is_created_beside_one_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(topics_admin.admin, "AdminClient", AutoCreatingBroker)
    with pytest.raises(topics_admin.TopicsError) as error:
        topics_admin.create_topics("127.0.0.1:1", partitions=4)
    assert str(error.value) == (
        "fabric.probes: has 3 partitions, expected 4 (log.partitions); nothing was created: delete it and "
        "create it again; the broker's auto.create.topics.enable must be false"
    )


def test_a_complete_cluster_with_another_number_of_partitions_can_be_used_by_a_setting():
    there = list(topics.TOPICS.values())
    counts = {t.name: 1 if t.partitions is topics.Partitions.ONE else 3 for t in there}
    lines = topics_admin.other_partitions(there, counts, 4, incomplete=False)
    assert lines
    assert all("set log.partitions = 3, or delete it and create it again" in line for line in lines)
    assert topics_admin.other_partitions(there, counts, 3, incomplete=False) == []


def test_an_unreachable_cluster_is_reported_in_one_line():
    with pytest.raises(topics_admin.TopicsError, match=r"log 127\.0\.0\.1:1: ") as error:
        topics_admin.create_topics("127.0.0.1:1", timeout_s=1)
    assert "\n" not in str(error.value)


class CreateTimeBroker:
    """A broker whose topics have CreateTime and whose admin API cannot change that."""

    def __init__(self, options, logger=None):
        pass

    def list_topics(self, timeout):
        partitions = {
            name: 1 if t.partitions is topics.Partitions.ONE else 3 for name, t in topics.TOPICS.items()
        }
        found = {name: SimpleNamespace(partitions=range(count)) for name, count in partitions.items()}
        return SimpleNamespace(topics=found)

    def describe_configs(self, resources, request_timeout):
        entry = SimpleNamespace(value="CreateTime")
        return {resource: self._done({"message.timestamp.type": entry}) for resource in resources}

    def incremental_alter_configs(self, resources, request_timeout):
        failed = Future()
        failed.set_exception(KafkaException(KafkaError(KafkaError.UNSUPPORTED_VERSION)))
        return dict.fromkeys(resources, failed)

    def _done(self, value):
        done = Future()
        done.set_result(value)
        return done


def test_topics_with_create_time_are_refused_whatever_the_admin_api_supports(monkeypatch):
    monkeypatch.setattr(topics_admin.admin, "AdminClient", CreateTimeBroker)
    with pytest.raises(topics_admin.TopicsError) as error:
        topics_admin.create_topics("127.0.0.1:1", partitions=3)
    lines = str(error.value).splitlines()
    assert len(lines) == len(topics.TOPICS)
    assert lines[0].startswith(
        f"{next(iter(topics.TOPICS))}: message.timestamp.type is CreateTime, expected LogAppendTime"
    )


def test_topics_are_deleted_and_made_again(bootstrap):
    topics_admin.create_topics(bootstrap, partitions=3)
    topics_admin.delete_topics(bootstrap, ["fabric.links"])
    lines = topics_admin.create_topics(bootstrap, partitions=3)
    assert "fabric.links: created, 3 partitions" in lines
    with pytest.raises(topics_admin.TopicsError, match=r"fabric\.nonsense: not deleted"):
        topics_admin.delete_topics(bootstrap, ["fabric.nonsense"])
