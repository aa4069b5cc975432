"""A simulated fleet's evidence on a real log, and the health that comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.detect.live_links import LiveLinks
from producers.sim.topology import Fleet, Shape
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.topics import PATHS


@pytest.fixture
def live(log: str) -> Iterator[LiveLinks]:
    made = LiveLinks(log, ProbedFleet(Fleet(Shape.of(4)), peers=2, paths=1))
    yield made
    made.close()


def test_each_end_publishes_its_own_directions_and_health_is_read_back(
    live: LiveLinks, log: str, records: Any
) -> None:
    live.publish_paths()
    probes = live.probes
    with TopicReader.open(log, {PATHS: BEGINNING}) as reader:
        found = [record for _, record in reader.decoded(reader.read_to_end()) if record is not None]
    legs = [path["leg"] for record in found for path in record["paths"]]
    assert legs.count("REQUEST") == legs.count("ANSWER") == len(probes.src)
    for record in found:
        for path in record["paths"]:
            assert path["links"][0].startswith(record["nic"].partition("/")[0] + ":"), "from its own host on"
    fabric = records(log)
    link = fabric.up("leaf1", 1)
    subject = fabric.cable(link)
    assert (live.state(subject), live.last(subject)) == (None, None)
    for state in ("DOWN", "UP"):
        fabric.publish(("fabric.link-health", subject, fabric.health(link, state)))
    assert live.run(5.0, lambda: live.state(subject) == "UP")
    assert live.subjects_ever("DOWN") == {subject}
    assert not live.run(0.0, lambda: False)
