"""Topics that grow all the time, by which the bench sees that a pipeline works again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fabrictime.bench._fabric import state_of
from fabrictime.bench.field import _remade
from fabrictime.bench.field._remade import Growth, is_well
from schemas.kafka.admin import create_topics, delete_topics
from schemas.kafka.publisher import Publisher
from schemas.records import LinkHealth
from schemas.topics import LINK_HEALTH, LINKS
from tests.embedded_log import EmbeddedLog
from tests.records import make
from tests.waiting import wait_until


def test_a_directory_without_a_pipeline_is_not_well(tmp_path: Path) -> None:
    assert state_of(tmp_path) is None
    assert not is_well(tmp_path)


def test_growth_is_seen_once_all_busy_topics_got_a_message_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_remade, "GROWTH_S", 0.3)
    with EmbeddedLog(tmp_path / "log", partitions=1) as log:
        create_topics(log.bootstrap, partitions=1)
        publisher, stop = Publisher(log.bootstrap), threading.Event()
        publisher.publish(LINKS, "once", None)

        def publish() -> None:
            while not stop.wait(0.02):
                publisher.publish(LINK_HEALTH, "a:1<>b:1", make(LinkHealth, subject="a:1<>b:1"))
                publisher.flush(10)

        thread = threading.Thread(target=publish)
        thread.start()
        growth = Growth(log.bootstrap)
        assert growth.topics == LINK_HEALTH.name
        wait_until(growth.is_seen)
        growth.begin()
        wait_until(growth.is_seen)
        stop.set()
        thread.join(10)
        delete_topics(log.bootstrap, [LINK_HEALTH.name])
        growth.begin()
        assert [growth.is_seen() for _ in range(3)] == [False] * 3
        create_topics(log.bootstrap, partitions=1)
        publisher = Publisher(log.bootstrap)
        publisher.publish(LINK_HEALTH, "a:1<>b:1", make(LinkHealth, subject="a:1<>b:1"))
        wait_until(growth.is_seen)
