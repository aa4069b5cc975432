"""An embedded log with data topics of two partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fabrictime.bench._pipeline import embedded_log
from schemas.kafka.publisher import Publisher
from schemas.records import LinkHealth
from schemas.topics import LINK_HEALTH
from tests.records import make

NAMES = [f"leaf{n}:1<>spine1:{n}" for n in range(20)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_log(tmp_path_factory.mktemp("log"), 2) as bootstrap:
        yield bootstrap


@pytest.fixture(scope="module")
def filled(log):
    """The log with 20 keys, the last five from a later time on; returns the address and that time."""
    publisher = Publisher(log)
    for name in NAMES[:15]:
        publisher.publish(LINK_HEALTH, name, make(LinkHealth, subject=name))
    publisher.flush(10)
    time.sleep(0.02)
    later_ns = time.time_ns()
    time.sleep(0.02)
    for name in NAMES[15:]:
        publisher.publish(LINK_HEALTH, name, make(LinkHealth, subject=name))
    publisher.flush(10)
    return log, later_ns
