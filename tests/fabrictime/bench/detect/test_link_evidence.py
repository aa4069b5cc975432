"""Evidence about links from a fleet whose faults are known: losses, recovery, starvation and order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fabrictime.bench.detect.link_evidence import MS, FleetPaths, ProbedFleet
from producers.sim.topology import Fleet, Shape
from schemas import codec


@pytest.fixture
def fleet() -> ProbedFleet:
    return ProbedFleet(Fleet(Shape.of(16)), peers=4, paths=4)


def events(fleet: ProbedFleet, ms: int) -> list[tuple[int, Any]]:
    return list(fleet.run(ms * MS))


def lost(found: list[tuple[int, Any]]) -> Counter[tuple[str, str, int]]:
    counted: Counter[tuple[str, str, int]] = Counter()
    for _, event in found:
        for path in event["paths"]:
            counted[event["nic"], path["peer"], path["path"]] += path["lost"]
    return +counted


def test_a_healthy_fleet_loses_nothing_and_its_events_are_valid_and_in_order(fleet: ProbedFleet) -> None:
    found = events(fleet, 1_200)
    assert lost(found) == Counter()
    assert {event["nic"] for _, event in found} == set(fleet.fleet.nic_ids)
    for _, event in found:
        codec.decode(codec.encode("LinkEvent", event), "LinkEvent")
    assert all(before[0] <= after[0] for before, after in pairwise(found))


def test_only_paths_over_a_dead_link_lose_and_they_recover(fleet: ProbedFleet) -> None:
    link = int(fleet.links[0, 1])
    over = {
        (fleet.fleet.nic_ids[fleet.src[p]], fleet.fleet.nic_ids[fleet.dst[p]], int(fleet.port[p]))
        for p in np.flatnonzero((fleet.links == link).any(axis=1))
    }
    fleet.down[link] = True
    found = events(fleet, 300)
    assert set(lost(found)) <= over
    assert max(path["loss_streak"] for _, event in found for path in event["paths"]) >= 3
    fleet.down[link] = False
    events(fleet, 50)
    assert lost(events(fleet, 1_000)) == Counter()


def test_a_grey_link_loses_its_share(fleet: ProbedFleet) -> None:
    fleet.loss[:-1] = 0.1
    found = events(fleet, 1_500)
    width = (fleet.links >= 0).sum(axis=1)
    expected = 1 - np.mean(0.9**width)
    sent = sum(path["lost"] + path["answered"] for _, event in found for path in event["paths"])
    assert sum(lost(found).values()) / sent == pytest.approx(expected, rel=0.1)


def test_a_nic_that_is_gone_is_silent_and_a_cpu_starved_agent_reports_so(fleet: ProbedFleet) -> None:
    fleet.gone[0] = True
    fleet.starve(1, 50 * MS)
    found = events(fleet, 300)
    names = fleet.fleet.nic_ids
    assert names[0] not in {event["nic"] for _, event in found}
    [cpu_starved] = [event for _, event in found if event["late_ns"]]
    assert (cpu_starved["nic"], cpu_starved["trouble"], cpu_starved["late_ns"]) == (
        names[1],
        ["STARVED"],
        50 * MS,
    )


def test_a_path_that_nobody_traced_has_no_links() -> None:
    paths = FleetPaths()
    assert paths.forward("p", "q", 1) == paths.reverse("p", "q", 1) == ()
    paths.add("p", "q", 1, ("a",), ("b",))
    assert (paths.forward("p", "q", 1), paths.reverse("p", "q", 1)) == (("a",), ("b",))
