"""Topics on a cluster: created once, then checked, never changed without notice."""

import json
import re
import subprocess
import sys
import time

import pytest

from fabrictime.runtime import topics_admin
from schemas import topics


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


def test_an_unreachable_cluster_is_reported_in_one_line():
    with pytest.raises(topics_admin.TopicsError, match=r"log 127\.0\.0\.1:1: ") as error:
        topics_admin.create_topics("127.0.0.1:1", timeout_s=1)
    assert "\n" not in str(error.value)
