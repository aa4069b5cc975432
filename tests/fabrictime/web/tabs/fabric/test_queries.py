"""What is asked of history about links: here the delays of probes around a flow's move."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.fabric.queries import Around, LinkQueries
from schemas import codec
from schemas.topics import FLOWS, INVENTORY, PATHS

S = 1_000_000_000
T = time.time_ns() // S * S - 100 * S


@pytest.fixture
def questions(records: Any, filled: Any) -> LinkQueries:
    """Eight NICs whose port k takes spine k + 1; from T on spine 1 is 50 us slower, spine 2 quicker."""
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


def test_probes_over_links_left_and_taken_are_told_before_and_after(
    questions: LinkQueries, records: Any
) -> None:
    left, took = records().up("leaf1", 1), records().up("leaf1", 2)
    found = questions.around([left], [took], T, T)
    assert (found.before_ns, found.after_ns) == (pytest.approx(80_000), pytest.approx(12_000))
    assert questions.around([], ["no:1>where:2"], T, T) == Around(None, None)
    assert questions.around([left], [took], T - 60 * S, T + 60 * S) == Around(None, None)
