"""Evidence: messages that come twice, late or from busy hosts."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import EvidenceKind
from streams.links.health import shard_health
from streams.links.health.shard_health import Change
from tests.streams.links.watched import MS, WARM, S, small


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


@pytest.mark.parametrize("after_ms", [0, 40, 120])
def test_losses_of_a_late_host_never_count_at_any_age(after_ms: int) -> None:
    it = small()
    it.run(WARM + S)
    evidence = it.health.evidence
    nic = it.fleet.nic_index["h3/eth1"]
    template = next(e for _, e in it.log if e["nic"] == "h3/eth1" and e["paths"])
    path = {**template["paths"][0], "lost": 7, "answered": 30, "loss_streak": 0, "first_lost_age_ns": -1}
    began_ns = it.probes.now_ns + after_ms * MS
    clock_ns = it.probes.clock_ns(nic) + after_ms * MS
    event = it.probes.events[nic].event(EvidenceKind.PROBE, clock_ns, template["system_ns"], 60 * MS)
    late = {**event, "late_ns": 50 * MS, "trouble": ["STARVED"], "paths": [path]}
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
    monkeypatch.setattr(shard_health, "PATH_KEPT_NS", 3 * S)
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


def test_a_message_that_comes_twice_counts_once() -> None:
    it = small()
    it.run(WARM)
    it.probes.down[it.link("leaf1", "spine2")] = True
    it.run(300 * MS)
    before = len(it.changes)
    for append_ns, event in it.log[-300:]:
        assert it.health.ingest(event, append_ns + 10 * MS, it.probes.book, len(it.log)) == []
    assert len(it.changes) == before
