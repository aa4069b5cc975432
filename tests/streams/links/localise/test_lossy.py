"""Grey links: a loss rate that no burst and no busy host explains."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from streams.links.localise.lossy import localise_lossy
from tests.examples import draws
from tests.streams.links.watched import MS, WARM, S, Watched, small


@pytest.mark.parametrize("seed", draws([1, 2, 3]))
def test_a_host_that_is_often_short_of_cpu_has_no_lossy_cable(seed: int) -> None:
    it = small(seed)
    it.probes.confess = True
    it.run(WARM)
    rng = np.random.default_rng(seed)
    for _ in range(30):
        it.probes.starve(2, int(rng.integers(25, 120)) * MS)
        it.run(int(rng.integers(150, 700)) * MS)
    it.run(3 * S)
    assert it.changes == []


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_a_lossy_link_is_grey_with_a_rate_that_holds_the_truth(share: float) -> None:
    it = small()
    it.run(WARM)
    link = it.link("leaf1", "spine2")
    it.probes.loss[link] = share
    began = it.probes.now_ns
    it.run(2500 * MS)
    cable = it.cable("leaf1", "spine2")
    assert it.ever_in("GREY") == {cable}
    assert it.ever_in("DOWN") == set()
    first_ns, (_, first) = it.changes[0]
    assert first is not None
    assert first_ns - began < 1500 * MS
    last = it.last(cable)
    assert last["links"] == [it.fleet.link_ids[link]]
    assert last["loss_rate_low"] < last["loss_rate"] < last["loss_rate_high"]
    assert abs(last["loss_rate"] - share) < 0.5 * share
    it.probes.loss[:] = 0
    it.run(10 * S, until=lambda: it.state(cable) == "UP")
    assert it.ever_in("DOWN") == set()


@pytest.mark.parametrize("late_ns", [0, 1500 * MS], ids=["fresh", "late"])
@pytest.mark.parametrize("share", [0.1, 0.2])
def test_late_reports_of_half_of_the_nics_do_not_lower_a_loss_rate(share: float, late_ns: int) -> None:
    it = small(1, rate_hz=300.0)
    it.run(WARM + S)
    link = it.link("leaf1", "spine2")
    it.probes.loss[link] = share
    in_flight: list[tuple[int, int, Mapping[str, Any]]] = []
    rates = []
    for step in range(1200):
        for append_ns, event in it.probes.run(5 * MS):
            is_late = event["nic"] in {"h1/eth1", "h2/eth1", "h3/eth1", "h4/eth1"}
            heapq.heappush(in_flight, (append_ns + late_ns * is_late, event["event"], event))
        while in_flight and in_flight[0][0] <= it.probes.now_ns:
            append_ns, _, event = heapq.heappop(in_flight)
            it.ingest(append_ns, event)
        if step > 600 and step % 25 == 0:
            evidence = it.health.evidence
            faults = localise_lossy(evidence, it.health.thresholds, it.probes.now_ns)
            lossy = {evidence.names[element]: lossy for element, lossy in faults.by_element.items()}
            rates.append(lossy[it.fleet.link_ids[link]].rate)
    assert abs(np.mean(rates) - share) < 0.25 * share


@pytest.mark.parametrize("seed", draws([1, 2, 3, 4]))
def test_half_of_all_lost_is_no_dead_link(seed: int) -> None:
    for share, directions in ((0.5, 1), (0.2, 2)):
        it = small(seed)
        it.run(WARM)
        links = [it.link("leaf1", "spine2"), it.link("spine2", "leaf1")][:directions]
        it.probes.loss[links] = share
        it.run(3 * S)
        assert it.ever_in("GREY") == {it.cable("leaf1", "spine2")}
        assert it.ever_in("DOWN") == set()


def test_a_lossy_cable_of_a_host_names_the_host_beside_it() -> None:
    it = small()
    it.run(WARM)
    it.probes.loss[it.link("h3", "leaf2")] = 0.2
    it.run(1500 * MS)
    cable = it.cable("h3", "leaf2")
    assert it.ever_in("GREY") == {cable}
    assert it.last(cable)["candidates"] == ["h3/eth1"]
    assert it.ever_in("DOWN") == set()


def test_a_new_loss_rate_is_not_diluted_by_the_time_before() -> None:
    took_ns = []
    for host in range(1, 9):
        it = small(host, rate_hz=200.0)
        it.run(WARM)
        link = next(n for n, name in enumerate(it.fleet.link_ids) if name.startswith(f"h{host}:"))
        it.probes.loss[link] = 0.05
        began_ns = it.probes.now_ns
        it.run(6 * S, until=lambda it=it: bool(it.ever_in("GREY")))
        took_ns.append(it.changes[0][0] - began_ns)
    assert sum(took_ns) / len(took_ns) < 870 * MS, took_ns


def test_losses_that_fall_everywhere_are_no_grey_link() -> None:
    it = small()
    it.run(WARM)
    it.probes.loss[:] = 0.0005
    it.run(4 * S)
    assert it.changes == []


def test_losses_on_congested_paths_are_no_grey_link() -> None:
    it = small()
    it.run(WARM)
    it.probes.loss[it.link("leaf1", "spine2")] = 0.1
    it.probes.timeout_ns = 40 * MS  # follows the p99 of delays
    it.run(3 * S)
    assert it.ever_in("GREY") == set()


def lose_traces(it: Watched, link: int) -> None:
    """Make the routes over a link unknown, as traces that end there do."""
    name, book = it.fleet.link_ids[link], it.probes.book
    answers = dict(book.answers())
    for key, forward in list(book.requests()):
        legs = [() if name in route else route for route in (forward, answers[key])]
        book.add(*key, *legs)
    book.version += 1


@pytest.mark.parametrize("seed", draws([1, 2, 3, 4]))
def test_losses_on_a_link_that_no_trace_shows_make_no_known_link_grey(seed: int) -> None:
    it = small(seed)
    link = it.link("spine2", "leaf1")
    lose_traces(it, link)
    it.run(WARM + S)  # all clean paths are counted then
    it.probes.loss[link] = 0.3
    it.run(4 * S)
    assert it.ever_in("GREY") == set()
    assert it.ever_in("DOWN") == set()


@pytest.mark.parametrize(("seed", "begin_ns"), [(8, WARM), (8, 1200 * MS), (6, 1200 * MS)])
def test_losses_on_an_unknown_link_in_the_first_seconds_make_no_known_link_grey(
    seed: int, begin_ns: int
) -> None:
    it = small(seed)
    link = it.link("spine2", "leaf1")
    lose_traces(it, link)
    it.run(begin_ns)
    it.probes.loss[link] = 0.3
    it.run(2500 * MS)
    assert it.ever_in("GREY") == set()
    assert it.ever_in("DOWN") == set()


def test_paths_that_now_take_a_dead_link_make_their_former_link_not_grey() -> None:
    """Switches hash all paths again when an uplink goes, and traces show it a moment later."""
    it = small(rate_hz=100.0)
    it.run(WARM + S)
    dead, former = it.link("leaf2", "spine3"), it.link("leaf2", "spine4")
    it.probes.down[dead] = True
    it.run(S)
    assert it.state(it.cable("leaf2", "spine3")) == "DOWN"
    crossing = np.flatnonzero((it.probes.links == former).any(axis=1))[::4]
    links = it.probes.links[crossing]
    it.probes.links[crossing] = np.where(links == former, dead, links)
    it.run(S)
    assert it.ever_in("GREY") == set()
    assert it.ever_in("DOWN") == {it.cable("leaf2", "spine3")}


@pytest.mark.parametrize("seed", draws([1, 2, 3, 4]))
def test_a_flapping_link_with_gaps_in_its_routes_makes_no_other_link_grey(seed: int) -> None:
    it = small(seed)
    it.run(WARM)
    link, cable = it.link("spine2", "leaf1"), it.cable("leaf1", "spine2")
    book = it.probes.book
    known, answers = list(book.requests()), dict(book.answers())
    for _ in range(8):
        it.probes.down[link] = True
        it.run(150 * MS)
        lose_traces(it, link)
        it.run(250 * MS)
        it.probes.down[link] = False
        it.run(150 * MS)
        for key, forward in known:
            book.add(*key, forward, answers[key])
        book.version += 1
        it.run(150 * MS)
    it.run(3 * S)
    assert it.ever_in("GREY") <= {cable}
    assert it.ever_in("DOWN") == {cable}
