"""Link health of a probed fleet whose broken links are known."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fabrictime.bench.detect.link_evidence import ProbedFleet
from native.core import ClockLine
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas import codec
from schemas.ids import cable_id
from schemas.topics import LINK_HEALTH
from streams.links import health
from streams.links.cover import losses_needed
from streams.links.health import Change, ShardHealth
from streams.links.link_death import silence_ns
from streams.runtime.thresholds import Thresholds

MS = 1_000_000
S = 1_000_000_000
WARM = 2200 * MS
"""By then every NIC has reported its living paths."""


class Watched:
    """A probed fleet and the verdicts on it."""

    def __init__(self, fleet: Fleet, seed: int = 1, rate_hz: float = 1000.0, **settings: Any) -> None:
        thresholds = Thresholds(settings.pop("thresholds", None))
        self.fleet = fleet
        self.probes = ProbedFleet(fleet, seed=seed, rate_hz=rate_hz, **settings)
        self.health = ShardHealth("fabric", thresholds, "links/0")
        self.changes: list[tuple[int, Change]] = []
        self.log: list[tuple[int, Mapping[str, Any]]] = []

    def run(self, for_ns: int, until: Callable[[], bool] | None = None) -> None:
        for _ in range(for_ns // (5 * MS)):
            for append_ns, event in self.probes.run(5 * MS):
                self.ingest(append_ns, event)
            self._keep(self.health.evaluate(self.probes.now_ns))
            if until is not None and until():
                return
        assert until is None, [c[1][1]["text"] for c in self.changes if c[1][1]]

    def ingest(self, append_ns: int, event: Mapping[str, Any]) -> None:
        self.log.append((append_ns, event))
        self._keep(self.health.ingest(event, append_ns, self.probes.book, len(self.log) - 1))

    def _keep(self, changes: list[Change]) -> None:
        for subject, record in changes:
            if record is not None:
                codec.encode(LINK_HEALTH.record, record)
                assert record["subject"] == subject
            self.changes.append((self.probes.now_ns, (subject, record)))

    def ever_in(self, state: str) -> set[str]:
        """Subjects that were ever in a state."""
        return {s for _, (s, r) in self.changes if r is not None and r["state"] == state}

    def state(self, subject: str) -> str | None:
        return next((r["state"] if r else None for _, (s, r) in reversed(self.changes) if s == subject), None)

    def last(self, subject: str) -> dict[str, Any]:
        found = [r for _, (s, r) in self.changes if s == subject and r is not None]
        return found[-1]

    def link(self, near: str, far: str) -> int:
        """The directed link from node to node; the first of several."""
        return next(
            i
            for i, name in enumerate(self.fleet.link_ids)
            if name.startswith(f"{near}:") and f">{far}:" in name
        )

    def cable(self, near: str, far: str) -> str:
        return cable_id(self.fleet.link_ids[self.link(near, far)])

    def port(self, nic: str, up: bool) -> None:
        """Report the carrier of the NIC's port."""
        index = self.fleet.nic_index[nic]
        now_ns = self.probes.now_ns
        self.ingest(now_ns, {
            "nic": nic, "shard": "fabric", "run": 1, "event": int(self.probes._event[index]),
            "kind": "CARRIER", "clock_ns": now_ns + int(self.probes._clock[index]), "system_ns": now_ns,
            "interval_ns": 0, "trouble": [], "late_ns": 0, "paths": [], "carrier": up, "speed_bps": None,
            "counters": [], "verbs": None,
        })  # fmt: skip
        self.probes._event[index] += 1


def silence(it: Watched) -> int:
    """For how long nothing must cross the first link for it to be dead, ns."""
    return silence_ns(it.health.evidence, it.health.thresholds, it.health.now_ns, 0)


def small(seed: int = 1, **settings: Any) -> Watched:
    """As the testbed: 8 hosts, 4 leaves, 4 spines."""
    fleet = Fleet(Shape(hosts=8, hosts_per_rack=2, spines=4), seed)
    return Watched(fleet, seed, peers=7, **settings)


def lose_across(it: Watched, link: int, nic: int) -> Callable[[bool], None]:
    """Return a switch for the losses of all paths of one NIC over a link, and of no other path."""
    probes, size = it.probes, it.fleet.links
    probes.down, probes.loss = np.zeros(size + 2, np.bool_), np.zeros(size + 2)
    mine = (probes.links == link).any(axis=1) & (probes.src == nic)
    assert 1 < mine.sum() < 10
    probes.links = np.column_stack([probes.links, np.where(mine, size, -1)])

    def lose(lost: bool) -> None:
        probes.down[size] = lost

    return lose


@pytest.mark.parametrize("seed", range(6))
def test_a_link_is_not_dead_by_a_few_of_its_paths(seed: int) -> None:
    """The others live but are reported once a second: the number of expected losses must suffice."""
    it = small(seed)
    lose = lose_across(it, it.link("leaf1", "spine2"), 0)
    it.run(WARM)
    lose(True)
    it.run(150 * MS)
    lose(False)
    it.run(2 * S)
    assert it.ever_in("DOWN") == set()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_dead_link_inside_is_named_at_once_and_no_other(seed: int) -> None:
    it = small(seed)
    it.run(WARM)
    assert it.changes == []
    link = it.link("leaf1", "spine2")
    it.probes.down[link] = True
    began = it.probes.now_ns
    it.run(300 * MS)
    cable = it.cable("leaf1", "spine2")
    assert it.ever_in("DOWN") == {cable}
    at_ns, (_, record) = it.changes[0]
    assert at_ns - began < 60 * MS
    assert record is not None
    assert record["links"] == [it.fleet.link_ids[link]]
    assert record["candidates"] == []
    assert abs(record["since_ns"] - began) < 15 * MS
    assert record["text"].startswith("leaf1 to spine2 is down since ")
    assert (record["flaps_total"], record["flaps_hour"], record["seq"]) == (1, 1, 1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_two_leaves_the_cables_of_a_path_are_named_together_and_not_waited_for(seed: int) -> None:
    it = Watched(Fleet(Shape(hosts=8, hosts_per_rack=4, spines=4), seed), seed, peers=7, rate_hz=300.0)
    it.run(WARM)
    link = it.link("leaf1", "spine2")
    it.probes.down[link] = True
    began = it.probes.now_ns
    it.run(300 * MS, until=lambda: bool(it.changes))
    at_ns, (subject, record) = it.changes[0]
    assert at_ns - began < 60 * MS, "what no path tells apart is the same after any wait"
    assert record is not None
    assert {subject, *record["candidates"]} == {it.cable("leaf1", "spine2"), it.cable("leaf2", "spine2")}
    it.run(300 * MS)
    assert it.ever_in("DOWN") == {subject}


def test_it_is_up_again_once_paths_cross_it_and_stay_alive() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("spine3", "leaf4")] = True
    it.run(300 * MS)
    it.probes.down[:] = False
    healed = it.probes.now_ns
    cable = it.cable("spine3", "leaf4")
    it.run(600 * MS, until=lambda: it.state(cable) == "UP")
    assert it.ever_in("DOWN") == {cable}
    record = it.last(cable)
    assert abs(record["since_ns"] - healed) < 20 * MS
    assert record["links"]
    assert "up again" in record["text"]
    it.run(1500 * MS)
    assert it.state(cable) == "UP"
    assert it.last(cable)["seq"] == 2


def test_links_that_die_together_are_distinguished() -> None:
    fleet = Fleet(Shape.of(256), 5)
    it = Watched(fleet, 5)
    it.run(WARM)
    dead = [it.link("leaf1", "spine2"), it.link("leaf3", "spine2"), it.link("spine7", "leaf16")]
    it.probes.down[dead] = True
    it.run(400 * MS)
    assert it.ever_in("DOWN") == {cable_id(fleet.link_ids[link]) for link in dead}


def test_a_nic_cut_off_is_its_own_cable_where_its_agent_still_speaks() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("leaf3", "h6")] = True
    it.run(400 * MS)
    cable = it.cable("leaf3", "h6")
    assert it.ever_in("DOWN") == {cable}
    record = it.last(cable)
    assert record["candidates"] == ["h6/eth1"]
    assert record["detected_by"] == "PROBES"
    it.probes.down[:] = False
    it.run(600 * MS, until=lambda: it.state(cable) == "UP")


def test_a_host_that_vanishes_is_one_host_no_link_and_is_forgotten() -> None:
    it = small(thresholds={"forget_s": 10})
    it.run(WARM)
    it.probes.gone[3] = True
    it.run(2500 * MS)
    assert it.changes == []
    it.run(2000 * MS)
    assert [(s, r["kind"], r["state"]) for _, (s, r) in it.changes if r] == [("h4", "HOST", "DOWN")]
    assert it.last("h4")["detected_by"] == "SILENCE"
    assert it.last("h4")["candidates"] == [it.cable("h4", "leaf2")]
    it.run(14 * S)
    assert it.state("h4") is None
    assert it.ever_in("DOWN") == {"h4"}


def test_one_of_a_hosts_nics_is_that_nic_and_all_are_the_host() -> None:
    fleet = Fleet(Shape(hosts=8, hosts_per_rack=4, spines=2, nics_per_host=2, rails=2), 3)
    it = Watched(fleet, 3, peers=7)
    it.run(WARM)
    it.probes.gone[fleet.nic_index["h2/eth1"]] = True
    it.run(4 * S)
    assert it.ever_in("DOWN") == {"h2/eth1"}
    it.probes.gone[[fleet.nic_index["h5/eth1"], fleet.nic_index["h5/eth2"]]] = True
    it.run(4 * S)
    assert it.ever_in("DOWN") == {"h2/eth1", "h5"}
    assert it.last("h5")["kind"] == "HOST"


def test_a_dead_leaf_is_its_cables_and_not_the_hosts_behind_it() -> None:
    it = small()
    it.run(WARM)
    leaf = [i for i, name in enumerate(it.fleet.link_ids) if "leaf2:" in name]
    it.probes.down[leaf] = True
    it.run(600 * MS)
    cables = {cable_id(it.fleet.link_ids[i]) for i in leaf}
    assert it.ever_in("DOWN") == cables
    it.probes.down[:] = False
    it.run(800 * MS, until=lambda: all(it.state(cable) == "UP" for cable in cables))


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("rate_hz", [300.0, 1000.0])
def test_a_dead_spine_is_all_its_cables_and_soon(seed: int, rate_hz: float) -> None:
    it = small(seed, rate_hz=rate_hz)
    it.run(WARM)
    spine = [i for i, name in enumerate(it.fleet.link_ids) if "spine3:" in name]
    cables = {cable_id(it.fleet.link_ids[i]) for i in spine}
    it.probes.down[spine] = True
    it.run(250 * MS, until=lambda: cables <= it.ever_in("DOWN"))
    it.run(1500 * MS)
    assert it.ever_in("DOWN") == cables
    assert {it.last(cable)["flaps_total"] for cable in cables} == {1}, "none was said to be UP meanwhile"
    assert any("nothing crosses spine3 any more" in it.last(cable)["text"] for cable in cables)
    it.probes.down[:] = False
    it.run(1000 * MS, until=lambda: all(it.state(cable) == "UP" for cable in cables))


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_spine_that_some_paths_still_cross_is_not_dead(seed: int) -> None:
    it = small(seed, rate_hz=300.0)
    it.run(WARM)
    ends = [("leaf1", "spine3"), ("leaf2", "spine3")]
    for near, far in ends:
        it.probes.down[[it.link(near, far), it.link(far, near)]] = True
    it.run(1500 * MS)
    cables = {it.cable(near, far) for near, far in ends}
    assert {each for each in it.ever_in("DOWN") if it.state(each) == "DOWN"} == cables
    assert not any(
        "nothing crosses" in r["text"] and "any more" in r["text"] for _, (_, r) in it.changes if r
    )


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


@pytest.mark.parametrize("confess", [True, False])
def test_a_host_short_of_cpu_raises_nothing_whether_it_reports_so_or_not(confess: bool) -> None:
    it = small()
    it.probes.confess = confess
    it.run(WARM)
    for nics in ([2], [4, 5], [0, 1, 2, 3, 4, 5, 6, 7]):
        for nic in nics:
            it.probes.starve(nic, 120 * MS)
        it.run(400 * MS)
    assert it.changes == []


@pytest.mark.parametrize("seed", [1, 2, 3])
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


@pytest.mark.parametrize("after_ms", [0, 40, 120])
def test_losses_of_a_late_host_never_count_at_any_age(after_ms: int) -> None:
    it = small()
    it.run(WARM + S)
    evidence = it.health.evidence
    nic = it.fleet.nic_index["h3/eth1"]
    template = next(e for _, e in it.log if e["nic"] == "h3/eth1" and e["paths"])
    path = {**template["paths"][0], "lost": 7, "answered": 30, "loss_streak": 0, "first_lost_age_ns": -1}
    began_ns = it.probes.now_ns + after_ms * MS
    late = {
        **template, "event": int(it.probes._event[nic]), "clock_ns": began_ns + int(it.probes._clock[nic]),
        "interval_ns": 60 * MS, "late_ns": 50 * MS, "trouble": ["STARVED"], "paths": [path],
    }  # fmt: skip
    evidence.ingest(late, began_ns, it.probes.book)
    row = evidence.nics["h3/eth1"].paths[path["peer"], path["path"]]
    assert evidence.lost[row].sum() == 7
    for age_ms in range(0, 2500, 10):
        lost, _ = evidence.counts(began_ns + age_ms * MS)
        assert lost[row] == 0, f"{age_ms} ms after"
    assert evidence.lost[row].sum() == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_host_that_came_late_once_hides_its_lossy_cable_no_longer_than_that(seed: int) -> None:
    it = small(seed)
    it.probes.confess = True
    it.run(WARM)
    it.probes.loss[it.link("h3", "leaf2")] = 0.2
    it.probes.starve(it.fleet.nic_index["h3/eth1"], 30 * MS)
    it.run(1600 * MS, until=lambda: bool(it.changes))
    assert it.ever_in("GREY") == {it.cable("h3", "leaf2")}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_host_that_came_late_once_hides_its_dead_port_no_longer_than_that(seed: int) -> None:
    it = small(seed)
    it.probes.confess = True
    it.run(WARM)
    it.probes.down[[it.link("h3", "leaf2"), it.link("leaf2", "h3")]] = True
    it.run(80 * MS)
    it.probes.starve(it.fleet.nic_index["h3/eth1"], 40 * MS)
    it.run(700 * MS, until=lambda: bool(it.changes))
    cable = it.cable("h3", "leaf2")
    assert it.ever_in("DOWN") == {cable}
    assert "though its agent is healthy" in it.last(cable)["text"]


def test_a_silent_agent_is_no_dead_nic_while_its_nic_answers() -> None:
    it = small()
    it.run(WARM)
    it.probes.muzzled[2] = True
    it.run(5 * S)
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


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
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


def flap(it: Watched, link: int, times: int) -> None:
    for _ in range(times):
        it.probes.down[link] = True
        it.run(150 * MS)
        it.probes.down[link] = False
        it.run(450 * MS)


def test_a_link_that_flaps_is_flapping_and_its_flaps_are_counted() -> None:
    it = small()
    it.run(WARM)
    cable = it.cable("leaf2", "spine3")
    flap(it, it.link("leaf2", "spine3"), 8)
    assert it.state(cable) == "UP"
    flap(it, it.link("leaf2", "spine3"), 1)
    assert it.state(cable) == "FLAPPING"
    record = it.last(cable)
    assert (record["flaps_hour"], record["flaps_total"], len(record["flap_ns"])) == (9, 9, 9)
    assert record["text"] == "leaf2 to spine3 flapped 9 times within the past hour"
    hour_later = it.probes.now_ns + 3600 * S
    it._keep(it.health.evaluate(hour_later))
    assert it.state(cable) == "UP"
    assert it.last(cable)["flaps_total"] == 9


@pytest.mark.parametrize("seed", range(4))
def test_flaps_are_counted_once_whenever_the_worker_dies_and_how_much_it_reads_again(seed: int) -> None:
    it = small(seed + 1)
    it.run(WARM)
    link, cable = it.link("leaf2", "spine3"), it.cable("leaf2", "spine3")
    published: dict[str, dict[str, Any]] = {}

    def die(back: int) -> None:
        """A new owner: the last record of each subject, and the newest `back` events once more."""
        published.update({s: r for _, (s, r) in it.changes if r is not None})
        recovered = ShardHealth("fabric", it.health.thresholds, "links/0")
        recovered.recover(published.values())
        begin = max(0, len(it.log) - back)
        for offset, (append_ns, event) in enumerate(it.log[begin:], begin):
            it._keep(recovered.ingest(event, append_ns, it.probes.book, offset))
        it.health = recovered

    for number in range(6):
        it.probes.down[link] = True
        it.run((110 + 13 * seed) * MS)
        if number % 2:
            die(400 + 100 * seed)
        it.probes.down[link] = False
        it.run((300 + 29 * number) * MS)
        if number % 2 == 0:
            die(3000)
        it.run(100 * MS)
    assert it.ever_in("DOWN") == {cable}
    record = it.last(cable)
    assert (record["flaps_total"], record["flaps_hour"]) == (6, 6)
    assert record["state"] == "UP"
    assert record["seq"] == 12


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


def test_a_path_that_moved_away_does_not_clear_the_dead_link() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("leaf1", "spine2")] = True
    it.run(200 * MS)
    cable = it.cable("leaf1", "spine2")
    assert it.state(cable) == "DOWN"
    book, name = it.probes.book, it.fleet.link_ids[it.link("leaf1", "spine2")]
    other = it.fleet.link_ids[it.link("leaf1", "spine4")]
    far = {leaf: it.fleet.link_ids[it.link("spine4", leaf)] for leaf in ("leaf2", "leaf3", "leaf4")}
    for links in (book._forward, book._reverse):
        for key, route in links.items():
            if name in route:
                links[key] = (route[0], other, far[route[2].split(">")[1].split(":")[0]], route[3])
    book.version += 1
    it.probes.down[:] = False  # as the packets see it: they go another way now
    it.run(3 * S)
    assert it.state(cable) == "DOWN"


def lead(it: Watched, spine: str, into: str | None) -> dict[tuple[str, str, int], tuple[str, ...]]:
    """Lead all ways over a spine by another one, or in turns by all others; return how they were."""
    book = it.probes.book
    before = dict(book._forward), dict(book._reverse)
    names = [name for name in ("spine1", "spine2", "spine3", "spine4") if name != spine]
    for links in (book._forward, book._reverse):
        for n, (key, route) in enumerate(sorted(links.items())):
            if len(route) == 4 and f">{spine}:" in route[1]:
                near, far = route[0].split(">")[1].split(":")[0], route[2].split(">")[1].split(":")[0]
                to = into or names[n % 3]
                ids = it.fleet.link_ids
                links[key] = (route[0], ids[it.link(near, to)], ids[it.link(to, far)], route[3])
    book.version += 1
    return before


def test_a_bypassed_switch_is_down_until_paths_return() -> None:
    it = small()
    it.run(WARM)
    before = lead(it, "spine2", None)
    it.run(1500 * MS)
    cables = {it.cable(f"leaf{n}", "spine2") for n in range(1, 5)}
    assert it.ever_in("DOWN") == cables
    assert "bypass it now, and none crosses it" in it.last(it.cable("leaf1", "spine2"))["text"]
    book = it.probes.book
    book._forward.update(before[0])
    book._reverse.update(before[1])
    book.version += 1
    it.run(1500 * MS)
    assert {it.state(cable) for cable in cables} == {"UP"}


def test_a_bypass_is_found_as_soon_as_the_new_routes_are_known() -> None:
    """Living paths are reported once a second; the bypass must be found sooner."""
    it = small()
    it.run(WARM)
    it.probes.book.moved = {(nic, peer) for nic, peer, _ in it.probes.book._forward}
    lead(it, "spine2", None)
    it.run(200 * MS)
    assert it.ever_in("DOWN") == {it.cable(f"leaf{n}", "spine2") for n in range(1, 5)}


@pytest.mark.parametrize("names", ["leaves and spines", "ports"])
def test_links_that_get_other_names_are_not_down(names: str) -> None:
    """A topology file comes, or has other names: nothing crosses the old ones any more."""

    def named(end: str) -> str:
        node, _, port = end.rpartition(":")
        if not node.startswith(("leaf", "spine")):
            return end
        return f"{node}:Ethernet{port}" if names == "ports" else f"row1-{node}:{port}.0"

    it = small()
    it.run(20 * S)
    book = it.probes.book
    for links in (book._forward, book._reverse):
        for key, route in links.items():
            links[key] = tuple(">".join(map(named, link.split(">"))) for link in route)
    book.version += 1
    it.run(4 * S)
    assert it.ever_in("DOWN") == set()


@pytest.mark.parametrize(("spines", "seed"), [(24, 1), (24, 2), (8, 3)])
def test_flows_that_are_hashed_again_leave_no_living_link_dead(spines: int, seed: int) -> None:
    """One spine goes, and every flow takes another way: of the few paths over each link, all leave some."""
    fleet = Fleet(Shape(hosts=32, hosts_per_rack=4, spines=spines), seed)
    it = Watched(fleet, seed, peers=7, rate_hz=200.0)
    it.run(WARM)
    book, chance, ids = it.probes.book, random.Random(seed), fleet.link_ids
    for links in (book._forward, book._reverse):
        for key, route in sorted(links.items()):
            if len(route) == 4:
                near, far = route[0].split(">")[1].split(":")[0], route[2].split(">")[1].split(":")[0]
                to = f"spine{chance.randint(2, spines)}"
                links[key] = (route[0], ids[it.link(near, to)], ids[it.link(to, far)], route[3])
    book.version += 1
    it.run(3 * S)
    gone = {it.cable(f"leaf{n}", "spine1") for n in range(1, 9)}
    assert it.ever_in("DOWN") <= gone
    if spines == 8:
        assert it.ever_in("DOWN") == gone, "and with paths enough it is told"


def test_a_removed_switch_is_forgotten_after_a_day() -> None:
    it = small()
    it.run(WARM)
    lead(it, "spine2", None)
    it.run(1500 * MS)
    cables = {it.cable(f"leaf{n}", "spine2") for n in range(1, 5)}
    assert it.ever_in("DOWN") == cables
    hour = 3_600 * S
    it._keep(it.health.evaluate(it.probes.now_ns + 23 * hour))
    assert {it.state(cable) for cable in cables} == {"DOWN"}
    it._keep(it.health.evaluate(it.probes.now_ns + 25 * hour))
    assert {it.state(cable) for cable in cables} == {None}
    assert "no longer exists: no path has crossed it" in it.last(cables.pop())["text"]


def plug(it: Watched, leaf: str, one: str, other: str) -> None:
    """Exchange the cables of two spines at a leaf: as probes see it, links of other names at once."""
    ids, new = it.fleet.link_ids, {}
    for up in (True, False):
        a, b = (ids[it.link(*((leaf, spine) if up else (spine, leaf)))] for spine in (one, other))
        (a_near, a_far), (b_near, b_far) = a.split(">"), b.split(">")
        new |= {a: f"{b_near}>{a_far}", b: f"{a_near}>{b_far}"} if up else {
            a: f"{a_near}>{b_far}", b: f"{b_near}>{a_far}"
        }  # fmt: skip
    book = it.probes.book
    for links in (book._forward, book._reverse):
        for key, route in links.items():
            links[key] = tuple(new.get(link, link) for link in route)
    book.version += 1


@pytest.mark.parametrize("lost_ns", [0, 100 * MS])
def test_a_cable_that_is_plugged_elsewhere_is_no_more_and_not_down(lost_ns: int) -> None:
    it = small()
    it.run(WARM)
    before = dict(it.probes.book._forward), dict(it.probes.book._reverse)
    gone = {it.cable("leaf1", "spine1"), it.cable("leaf1", "spine2")}
    if lost_ns:
        it.probes.down[[it.link("leaf1", "spine1"), it.link("leaf1", "spine2")]] = True
        it.run(lost_ns)
        it.probes.down[:] = False
        assert it.ever_in("DOWN") == gone
    plug(it, "leaf1", "spine1", "spine2")
    it.run(4 * S)
    assert it.ever_in("DOWN") == (gone if lost_ns else set())
    assert not gone & it.health.subjects.keys(), "forgotten, so that no page draws them"
    if lost_ns:
        assert any(
            "no longer exists: its port is now on leaf1:" in r["text"] for _, (_, r) in it.changes if r
        )
    for links, was in zip((it.probes.book._forward, it.probes.book._reverse), before, strict=True):
        links.update(was)
    it.probes.book.version += 1
    it.run(4 * S)
    assert it.ever_in("DOWN") == (gone if lost_ns else set()), "and plugged back it is there again"
    it.probes.down[it.link("leaf1", "spine1")] = True
    it.run(200 * MS)
    assert it.state(it.cable("leaf1", "spine1")) == "DOWN"


def test_a_path_without_probes_does_not_make_the_next_death_a_loss_rate() -> None:
    """A flow's way is looked at while the flow takes it: the losses of a death that is over stay behind."""
    it = small()
    link, cable = it.link("spine2", "leaf3"), it.cable("spine2", "leaf3")
    it.run(WARM)
    it.probes.down[link] = True
    it.run(400 * MS)
    assert it.state(cable) == "DOWN"
    name, whole = it.fleet.link_ids[link], it.health.ingest

    def take(event: Any, *rest: Any) -> list[Change]:
        gone = [path for path in event["paths"] if (event["nic"], path["peer"], path["path"]) in left_alone]
        kept = [path for path in event["paths"] if path not in gone]
        return whole({**event, "paths": kept}, *rest)

    routes = {**it.probes.book._forward, **it.probes.book._reverse}
    left_alone = sorted(key for key, route in routes.items() if name in route)[:3]
    it.health.ingest = take  # type: ignore[method-assign]
    it.probes.down[link] = False
    it.run(2500 * MS)
    assert it.state(cable) == "UP"
    it.probes.down[link] = True
    began_ns = it.probes.now_ns
    it.run(300 * MS, lambda: it.state(cable) == "DOWN")
    assert it.probes.now_ns - began_ns <= 60 * MS


def test_flows_that_come_and_go_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """All paths get other source ports every other second, as those do that follow flows."""
    monkeypatch.setattr(health, "PATH_KEPT_NS", 3 * S)
    it = small()
    first, apart, book, whole = 40_000, 100, it.probes.book, it.health.ingest
    forward, reverse, generation = book.forward, book.reverse, 0

    def port(path: int) -> int:
        return first + (path - first) % apart

    def take(event: Any, *rest: Any) -> list[Change]:
        paths = [{**path, "path": path["path"] + apart * generation} for path in event["paths"]]
        return whole({**event, "paths": paths}, *rest)

    monkeypatch.setattr(book, "forward", lambda nic, peer, path: forward(nic, peer, port(path)))
    monkeypatch.setattr(book, "reverse", lambda nic, peer, path: reverse(nic, peer, port(path)))
    monkeypatch.setattr(it.health, "ingest", take)
    it.run(WARM)
    at_once = it.health.evidence.paths
    for _ in range(6):
        generation += 1
        it.run(2 * S)
    evidence = it.health.evidence
    assert evidence.paths <= 4 * at_once, "of seven generations"
    assert sum(len(nic.paths) for nic in evidence.nics.values()) <= 3 * at_once
    assert it.changes == []
    it.probes.down[it.link("spine2", "leaf3")] = True
    it.run(200 * MS)
    assert it.ever_in("DOWN") == {it.cable("spine2", "leaf3")}


def test_a_link_with_delayed_answers_must_be_silent_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue that comes at once holds up all that crosses it for tens of ms: no path lives meanwhile."""
    it = small()
    it.run(WARM)
    whole = it.health.ingest

    def take(event: Any, *rest: Any) -> list[Change]:
        paths = [{**path, "delayed": min(1, path["answered"])} for path in event["paths"]]
        return whole({**event, "paths": paths}, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(it.health, "ingest", take)
        it.run(1100 * MS)  # all have told by then
    link = it.link("spine2", "leaf3")
    it.probes.down[link] = True
    it.run(50 * MS)
    it.probes.down[link] = False
    it.run(50 * MS)
    assert it.ever_in("DOWN") == set()
    it.probes.down[link] = True
    it.run(250 * MS)
    assert it.ever_in("DOWN") == {it.cable("spine2", "leaf3")}


def test_many_delayed_answers_make_every_link_wait_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = small()
    link, cable = it.link("spine2", "leaf3"), it.cable("spine2", "leaf3")
    name, take, many = it.fleet.link_ids[link], it.health.ingest, 0

    def delayed_elsewhere(event: Any, append_ns: int, book: Any, *rest: Any) -> list[Change]:
        paths = [
            {**p, "delayed": min(many, p["answered"])
             if name not in {*book.forward(event["nic"], p["peer"], p["path"]),
                             *book.reverse(event["nic"], p["peer"], p["path"])} else 0}
            for p in event["paths"]
        ]  # fmt: skip
        return take({**event, "paths": paths}, append_ns, book, *rest)

    monkeypatch.setattr(it.health, "ingest", delayed_elsewhere)
    it.run(WARM)
    many = 3
    it.run(1100 * MS)
    many = 0
    it.probes.down[link] = True
    it.run(50 * MS)
    it.probes.down[link] = False
    it.run(50 * MS)
    assert it.ever_in("DOWN") == set()
    it.run(20 * S)  # the storm is over
    it.probes.down[link] = True
    it.run(50 * MS)
    assert it.ever_in("DOWN") == {cable}


def test_answers_that_peers_sent_late_make_no_link_wait_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = small()
    take = it.health.ingest

    def late_everywhere(event: Any, *rest: Any) -> list[Change]:
        return take({**event, "paths": [{**p, "late": p["answered"]} for p in event["paths"]]}, *rest)

    monkeypatch.setattr(it.health, "ingest", late_everywhere)
    it.run(WARM)
    assert silence(it) == it.health.thresholds.ns("link_dead_ms")


def test_the_longer_silence_is_a_threshold_and_never_the_shorter_of_the_two() -> None:
    it = small()
    values = {"link_dead_ms": 10, "link_late_dead_ms": 40}
    it.health.thresholds = Thresholds(values)
    evidence = it.health.evidence
    it.run(WARM)
    evidence.delayed_ns[:] = it.health.now_ns
    assert silence(it) == 40 * MS
    it.health.thresholds = Thresholds({**values, "link_dead_ms": 500})
    assert silence(it) == 500 * MS
    evidence.delayed_ns[:] = 0
    it.health.thresholds = Thresholds(values)
    assert silence(it) == 10 * MS


def test_paths_that_are_hashed_again_take_no_link_down() -> None:
    it = small()
    it.run(WARM)
    lead(it, "spine2", None)
    lead(it, "spine1", "spine2")
    it.run(2 * S)
    assert not {cable for cable in it.ever_in("DOWN") if "spine2" in cable}
    for kind in ("GREY", "FLAPPING"):
        assert it.ever_in(kind) == set()


def test_a_message_that_comes_twice_counts_once() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("leaf1", "spine2")] = True
    it.run(300 * MS)
    before = len(it.changes)
    for append_ns, event in it.log[-300:]:
        assert it.health.ingest(event, append_ns + 10 * MS, it.probes.book, len(it.log)) == []
    assert len(it.changes) == before


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
        name: ClockLine(0, float(-it.probes._clock[i]), 0.0, 100.0) for i, name in enumerate(it.fleet.nic_ids)
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


def test_spurious_losses_from_before_the_window_need_no_more_losses():
    assert losses_needed(6, -3.0, 0.0) == losses_needed(6, 0.0, 0.0) >= 6
    assert losses_needed(6, -40.0, 10.0) >= 6
    assert losses_needed(6, 20.0, 20.0) > 6
