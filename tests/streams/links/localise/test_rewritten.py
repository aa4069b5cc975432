"""Places where the network changes a DSCP: links, switches, both directions, and the end of it."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.ids import cable_id
from streams.links.health.shard_health import ShardHealth
from streams.links.localise.rewritten import LASTING_NS
from tests.streams.links.watched import WARM, S, Watched, small

NAME = "classes@fabric"


def classed(seed: int = 1, dscps: tuple[int, ...] = (0, 26)) -> Watched:
    it = small(seed, dscps=dscps)
    it.run(WARM)
    return it


def rewrite(it: Watched, *links: int, change: dict[int, int]) -> None:
    it.probes.rewrites = dict.fromkeys(links, change)


def found(it: Watched) -> dict[str, Any]:
    it.run(LASTING_NS + 3 * S)
    return it.last(NAME)


@pytest.mark.parametrize(("seed", "dscps"), [(1, (0, 26)), (2, (0, 26)), (3, (26,))])
def test_a_link_that_changes_a_dscp_is_named(seed: int, dscps: tuple[int, ...]) -> None:
    it = classed(seed, dscps)
    rewrite(it, it.link("leaf1", "spine2"), change={26: 0})
    record = found(it)
    assert (record["kind"], record["state"]) == ("CLASSES", "GREY")
    assert record["candidates"] == [it.cable("leaf1", "spine2")]
    assert "DSCP 26 arrives as DSCP 0 on" in record["text"]
    assert it.ever_in("GREY") == {NAME}
    it.probes.rewrites = {}
    it.run(3 * S, until=lambda: it.state(NAME) == "UP")


def test_a_switch_that_changes_a_dscp_is_named_and_not_its_links() -> None:
    it = classed()
    names = it.fleet.link_ids
    rewrite(it, *(at for at, name in enumerate(names) if name.startswith("spine2:")), change={26: 8})
    record = found(it)
    assert record["candidates"] == ["spine2"]
    assert "DSCP 26 arrives as DSCP 8" in record["text"]
    assert "changed at spine2" in record["text"]


def test_the_port_of_a_host_is_named() -> None:
    it = classed()
    link = it.link("h3", "leaf2")
    rewrite(it, link, change={26: 0})
    assert cable_id(it.fleet.link_ids[link]) in found(it)["candidates"]


def test_two_links_and_two_dscps_are_distinguished() -> None:
    it = classed()
    first, second = it.link("leaf1", "spine2"), it.link("spine3", "leaf4")
    it.probes.rewrites = {first: {26: 0}, second: {0: 46}}
    record = found(it)
    assert record["candidates"] == sorted(cable_id(it.fleet.link_ids[link]) for link in (first, second))
    assert "DSCP 0 arrives as DSCP 46" in record["text"]
    assert "DSCP 26 arrives as DSCP 0" in record["text"]


def test_a_route_that_just_moved_is_no_change_of_the_network() -> None:
    it = classed()
    rewrite(it, it.link("leaf1", "spine2"), change={26: 0})
    it.run(LASTING_NS // 2)
    it.probes.rewrites = {}
    it.run(5 * S)
    assert it.changes == []


def test_unknown_routes_are_counted_and_named_nowhere() -> None:
    it = classed()
    rewrite(it, it.link("leaf1", "spine2"), change={26: 0})
    it.probes.book._forward.clear()
    it.probes.book._reverse.clear()
    it.probes.book.version += 1
    record = found(it)
    assert record["candidates"] == []
    assert "the place is not known" in record["text"]


def test_a_new_owner_of_the_shard_ends_nothing_before_it_knows() -> None:
    it = classed()
    rewrite(it, it.link("leaf1", "spine2"), change={26: 0})
    record = found(it)
    again = ShardHealth("fabric", source="links/0")
    again.recover([record])
    it.health, it.changes = again, []
    it.run(8 * S)
    assert NAME not in it.ever_in("UP")
