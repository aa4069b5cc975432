"""Delays of probes around a flow's move."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.fabric.queries import LinkQueries, MoveDelays
from schemas import codec
from schemas.topics import FLOWS, INVENTORY, PATHS

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S


@pytest.fixture
def queries(records: Any, filled: Any) -> LinkQueries:
    """Return eight NICs whose port k crosses spine k + 1. From T on, spine 1 is slower and spine 2 faster."""
    fabric = records()
    state = FabricState(lambda value: codec.decode(value, FLOWS.record))
    for topic, key, record in fabric.fleet():
        assert topic in (INVENTORY.name, PATHS.name)
        state.take(topic, key, record, T)
    pairs = [(nic, peer) for nic in fabric.nics for peer in fabric.nics if nic != peer]
    for second in range(-8, 8):
        slow, quick = (80_000.0, 9_000.0) if second < 0 else (500_000.0, 12_000.0)
        paths = {
            40_000 + k: dict.fromkeys(("forward_p50_ns", "reverse_p50_ns"), quick if k else slow)
            for k in range(4)
        }
        filled.delays(T + second * S, dict.fromkeys(pairs, paths))
    return LinkQueries(state, filled.history)


def test_probe_delays_over_links_left_and_taken(queries: LinkQueries, records: Any) -> None:
    left, taken = records().up("leaf1", 1), records().up("leaf1", 2)
    found = queries.move_delays([left], [taken], T, T)
    assert (found.before_ns, found.after_ns) == (pytest.approx(80_000), pytest.approx(12_000))
    assert queries.move_delays([], ["no:1>where:2"], T, T) == MoveDelays(None, None)
    assert queries.move_delays([left], [taken], T - 60 * S, T + 60 * S) == MoveDelays(None, None)
