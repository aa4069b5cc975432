"""Link health of a probed fleet whose broken links are known."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from native.core import ClockLine
from tests.streams.links.watched import MS, WARM, S, small


def test_a_carrier_counts_first_and_at_once_up_and_down() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[[it.link("h1", "leaf1"), it.link("leaf1", "h1")]] = True
    it.port("h1/eth1", False)
    cable = it.cable("h1", "leaf1")
    assert it.state(cable) == "DOWN"
    assert it.last(cable)["detected_by"] == "CARRIER"
    it.run(500 * MS)
    assert it.ever_in("DOWN") == {cable}
    it.port("h1/eth1", True)
    assert it.state(cable) == "UP"
    it.run(500 * MS)  # routes need a moment more
    it.probes.down[:] = False
    it.run(3500 * MS)
    assert it.state(cable) == "UP"
    assert it.last(cable)["flaps_total"] == 1


def test_without_known_paths_only_nics_are_evaluated() -> None:
    it = small()
    it.probes.book.forward = it.probes.book.reverse = lambda nic, peer, path: ()  # type: ignore[method-assign]
    it.run(WARM)
    it.probes.down[it.link("leaf1", "spine2")] = True
    it.run(500 * MS)
    assert it.changes == []
    it.probes.down[it.link("leaf4", "h8")] = True
    it.run(500 * MS)
    assert [(s, r["kind"]) for _, (s, r) in it.changes if r] == [("h8/eth1", "NIC")]


def test_a_prober_that_restarts_brings_no_verdict_of_its_own() -> None:
    it = small()
    it.run(WARM)
    for append_ns, event in it.probes.run(1 * S):
        again = {**event, "run": 2} if event["nic"] == "h1/eth1" else event
        it.ingest(append_ns, again)
    assert it.changes == []


def test_messages_that_come_late_by_much_blame_no_other_link_where_clocks_are_known() -> None:
    """Half of the agents' messages take 150 ms more: old answers of theirs would look young."""
    it = small()
    evidence = it.health.evidence
    evidence.clock_models = {
        name: ClockLine(0, -round(it.probes._clock[i]), 0.0, 100.0) for i, name in enumerate(it.fleet.nic_ids)
    }
    slow = set(it.fleet.nic_ids[::2])
    waiting: list[tuple[int, int, Mapping[str, Any]]] = []

    def run(for_ns: int) -> None:
        for _ in range(for_ns // (5 * MS)):
            for append_ns, event in it.probes.run(5 * MS):
                late_ns = 150 * MS if event["nic"] in slow else 0
                heapq.heappush(waiting, (append_ns + late_ns, id(event), event))
            while waiting and waiting[0][0] <= it.probes.now_ns:
                append_ns, _, event = heapq.heappop(waiting)
                it.ingest(append_ns, event)
            it._keep(it.health.evaluate(it.probes.now_ns))

    run(WARM)
    cable = it.cable("leaf1", "spine2")
    for _ in range(3):
        it.probes.down[it.link("leaf1", "spine2")] = True
        run(400 * MS)
        it.probes.down[:] = False
        run(700 * MS)
    assert it.ever_in("DOWN") == {cable}
    assert it.last(cable)["flaps_total"] == 3
