"""A worker goes on within seconds after its topics were deleted and made again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from fabrictime.bench._pipeline import Service, service
from schemas.kafka.admin import create_topics
from schemas.topics import CLOCK_FITS, INVENTORY, LINKS, PROBES, REJECTS
from streams.runtime.settings import StreamSettings
from tests.embedded_log import EmbeddedLog, TopicRecords, log_fixture  # noqa: F401  # a fixture

RECOVERY_S = 10.0


@pytest.fixture
def worker(log: EmbeddedLog, tmp_path: Path) -> Iterator[Service]:
    settings = StreamSettings(kafka={"bootstrap": log.bootstrap}, stages=("links",))
    with service("streams", settings.model_dump(mode="json"), tmp_path) as started:
        yield started


def rejected(log: EmbeddedLog, rejects: TopicRecords, text: str, timeout_s: float) -> None:
    """Publish messages that the links stage must reject, on all partitions, until one is rejected."""
    end_s = time.monotonic() + timeout_s
    while True:
        for number in range(8):
            log.put(LINKS.name, f"{text}{number}/eth0", b"no record")
        try:
            rejects.until(lambda found: any(text.encode() in each["key"] for each in found), 0.5)
        except AssertionError:
            assert time.monotonic() < end_s, f"not read within {timeout_s:g} s"
        else:
            return


@pytest.mark.parametrize("pause_s", [0.0, 3.0])
def test_a_worker_reads_topics_that_were_deleted_and_made_again(
    log: EmbeddedLog, worker: Service, pause_s: float
) -> None:
    rejects = TopicRecords(log.bootstrap, REJECTS.name)
    rejected(log, rejects, "before", 30)
    admin = AdminClient({"bootstrap.servers": log.bootstrap})
    deleted = [PROBES.name, LINKS.name, CLOCK_FITS.name, INVENTORY.name]
    for future in admin.delete_topics(deleted).values():
        future.result(10)
    time.sleep(pause_s)
    create_topics(log.bootstrap, partitions=2)
    begun_s = time.monotonic()
    rejected(log, rejects, "after", RECOVERY_S + 20)
    print("recovered after", time.monotonic() - begun_s)
    rejects.consumer.close()
