"""Death of a link: how long nothing must cross it."""

from __future__ import annotations

from typing import Any

import pytest

from streams.links.health.shard_health import Change
from streams.links.localise.link_death import silence_ns
from streams.runtime.thresholds import Thresholds
from tests.streams.links.watched import MS, WARM, S, Watched, small


def silence(it: Watched) -> int:
    """For how long nothing must cross the first link for it to be dead, ns."""
    return silence_ns(it.health.evidence, it.health.thresholds, it.health.now_ns, 0)


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
