"""Truth: contention with its kind and end."""

from __future__ import annotations

import pytest

from producers.sim.simulation import EPOCH_NS, Simulation
from schemas.topics import TRUTH
from tests.producers.sim.small_simulation import by_topic, settings


@pytest.mark.parametrize(
    ("line", "kind", "link"),
    [
        ("incast 8 h1/eth1", "INCAST", "leaf1:swp1>h1:eth1"),
        ("slow-receiver 10% h1/eth1", "SLOW_RECEIVER", "leaf1:swp1>h1:eth1"),
        ("slow-sender 10% h1/eth1", "SLOW_SENDER", "h1:eth1>leaf1:swp1"),
        ("pause-storm h1/eth1", "PAUSE_STORM", "leaf1:swp1>h1:eth1"),
    ],
)
def test_contention_is_published_with_its_kind_and_end(line, kind, link):
    run = Simulation(settings(load=0.3))
    for flow in run.flows():
        run.book.close(flow)
    for source, destination in ((0, 9), (5, 0)):
        run.book.open(source, destination, 50_000, demand_bps=2e11)
    run.fault(f"{line} after 200ms for 400ms")
    truth = [out.record() for out in by_topic(run, 2)[TRUTH]]
    windows = {
        (c["link"], c["kind"], c["begin_ns"]): c["end_ns"] for record in truth for c in record["contention"]
    }
    assert {key[:2] for key in windows} >= {(link, kind)}
    if kind != "PAUSE_STORM":
        assert {key[:2] for key in windows} == {(link, kind)}
    begin, end = next((key[2], end) for key, end in windows.items() if key[:2] == (link, kind))
    assert abs(begin - EPOCH_NS - 200_000_000) <= 30_000_000
    assert abs(end - EPOCH_NS - 600_000_000) <= 60_000_000
