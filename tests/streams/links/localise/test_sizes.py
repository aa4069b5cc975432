"""Which link drops large packets, by the limits of paths."""

from __future__ import annotations

import pytest

from schemas.records import LinkEvent
from streams.links.localise.sizes import PathSizes, SizeLimit
from tests.streams.links.watched import WARM, S, Watched, small

Route = tuple[str, ...]


class Routes:
    """Routes of three hosts on two leaves, over two spines; they may change."""

    def __init__(self) -> None:
        self.moved: dict[tuple[str, str, int], Route] = {}
        self.version = 1

    def forward(self, nic: str, peer: str, path: int) -> Route:
        return self.moved.get((nic, peer, path)) or (
            f"{nic}>leaf",
            f"leaf>spine{path}",
            f"spine{path}>far",
            f"far>{peer}",
        )


def event(
    nic: str, peer: str, path: int, passed: int, probed: int = 1500, age_ns: int = 0, stated: int = 0
) -> LinkEvent:
    row = {
        "peer": peer,
        "path": path,
        "probed_bytes": probed,
        "passed_bytes": passed,
        "router_mtu_bytes": stated,
        "dscp": None,
        "checked_age_ns": age_ns,
    }
    return {"nic": nic, "sizes": [row]}  # type: ignore[typeddict-item]


def results(*rows: tuple[str, str, int, int, int]) -> tuple[PathSizes, Routes]:
    """Return the state after (nic, peer, path, passed, second) each."""
    sizes, routes = PathSizes(), Routes()
    for nic, peer, path, passed, second in rows:
        sizes.ingest(event(nic, peer, path, passed), second * S, routes)
    return sizes, routes


def named(sizes: PathSizes, routes: Routes, second: int = 10) -> list[tuple[str, tuple[str, ...], int]]:
    return [(each.link, each.aliased, each.passed_bytes) for each in sizes.limits(routes, second * S)]


CAUSE = [("a", "x", 1, 1400, 1), ("b", "y", 1, 1400, 1)]
OTHERS = [("a", "x", 2, 1500, 2), ("b", "y", 2, 1500, 2)]


def test_the_link_that_only_limited_paths_cross_is_named_with_its_aliases() -> None:
    sizes, routes = results(*CAUSE, *OTHERS)
    assert named(sizes, routes) == [("leaf>spine1", ("spine1>far",), 1400)]


def test_a_larger_packet_of_any_path_clears_a_link() -> None:
    sizes, routes = results(*CAUSE, *OTHERS)
    routes.moved["c", "z", 1] = ("c>leaf2", "leaf2>spine1", "spine1>far", "far>z")
    sizes.ingest(event("c", "z", 1, 1500), 3 * S, routes)
    assert named(sizes, routes) == [("leaf>spine1", (), 1400)]


def test_results_from_before_clear_nothing_and_are_waited_for() -> None:
    """At first only two paths know of the fault, and all other links have older results."""
    old = [("a", "z", 2, 1500, 0), ("b", "z", 2, 1500, 0)]
    sizes, routes = results(("a", "x", 1, 1400, 1), ("a", "y", 1, 1400, 1), *old)
    assert named(sizes, routes) == []  # is it a's own link?
    sizes.ingest(event("a", "z", 2, 1500), 3 * S, routes)
    assert named(sizes, routes) == [("leaf>spine1", ("spine1>far",), 1400)]


def test_the_end_of_a_limit_blames_no_other_link() -> None:
    """A path over the cause passes again; the others, and most paths of their links, wait for a check."""
    old = [("a", peer, 1, 1500, 0) for peer in "klmn"]
    sizes, routes = results(*CAUSE, *OTHERS, *old)
    routes.moved["c", "z", 2] = ("c>leaf2", "leaf2>spine1", "spine1>far", "far>z")
    sizes.ingest(event("c", "z", 2, 1500), 3 * S, routes)
    assert named(sizes, routes) == []


def test_one_nic_alone_names_no_link_of_others() -> None:
    sizes, routes = results(("a", "x", 1, 1400, 1), ("a", "y", 1, 1400, 1), *OTHERS, ("b", "y", 1, 1500, 0))
    assert named(sizes, routes, 100) == []


def test_one_path_alone_is_waited_for_and_then_named() -> None:
    sizes, routes = results(CAUSE[0], *OTHERS)
    assert named(sizes, routes) == []
    assert [link for link, *_ in named(sizes, routes, 40)] == ["leaf>spine1"]


def test_one_wrong_result_names_no_cable_that_other_paths_of_its_nic_cross() -> None:
    """It states packets larger than the others send, so no result of theirs can contradict it."""
    sizes, routes = results(*((nic, "x", path, 1500, 1) for nic in "ab" for path in (1, 2, 3)))
    sizes.ingest(event("a", "x", 4, 1500, probed=1518), 2 * S, routes)
    routes.moved["a", "x", 4] = ("a>leaf", "leaf>spine3", "spine3>far", "far>x")
    sizes.ingest(event("a", "x", 4, 1500, probed=1518), 2 * S, routes)
    assert named(sizes, routes, 100) == []


def test_two_links_with_limits_of_their_own_are_both_named() -> None:
    sizes, routes = results(
        *CAUSE, ("a", "x", 2, 1300, 1), ("b", "y", 2, 1300, 1), ("a", "x", 3, 1500, 2), ("b", "y", 3, 1500, 2)
    )
    found = named(sizes, routes)
    assert {(link, passed) for link, _, passed in found} == {("leaf>spine1", 1400), ("leaf>spine2", 1300)}


def test_smaller_nics_clear_only_the_sizes_that_they_send() -> None:
    """A path whose NICs send 1,300 bytes says nothing of a limit of 1,400."""
    sizes, routes = results(*CAUSE, *OTHERS)
    sizes.ingest(event("c", "z", 1, 1300, probed=1300), 3 * S, routes)
    assert [link for link, *_ in named(sizes, routes)] == ["leaf>spine1"]


def test_a_path_that_moved_since_its_check_counts_no_more() -> None:
    sizes, routes = results(*CAUSE, *OTHERS)
    routes.moved["b", "y", 1] = ("b>leaf", "leaf>spine2", "spine2>far", "far>y")
    assert named(sizes, routes) == []


def test_the_mtu_that_a_router_states_is_part_of_the_text() -> None:
    sizes, routes = PathSizes(), Routes()
    for nic in "ab":
        sizes.ingest(event(nic, "x", 1, 1400, stated=1400), S, routes)
        sizes.ingest(event(nic, "y", 2, 1500), 2 * S, routes)
        sizes.ingest(event(nic, "x", 2, 1500), 2 * S, routes)
    (limit,) = sizes.limits(routes, 3 * S)
    assert (
        limit.text
        == "drops packets above 1,400 bytes (NICs send 1,500), a router states an MTU of 1,400 bytes"
    )
    assert SizeLimit("l", (), 1400, 1500).text.endswith("no router reports it")


def test_old_results_are_forgotten() -> None:
    sizes, routes = results(*CAUSE, *OTHERS)
    sizes.forget(1000 * S)
    assert not sizes.any_limited
    assert named(sizes, routes, 1000) == []


# ------------------------------------------------------------------------------------- the whole fleet


def probed(seed: int = 1) -> Watched:
    it = small(seed, rate_hz=300.0)
    it.probes.size_probes = True
    it.run(WARM)
    return it


@pytest.mark.parametrize(
    ("near", "far"), [("leaf1", "spine2"), ("spine3", "leaf4"), ("h1", "leaf1"), ("leaf4", "h8")]
)
def test_a_link_that_drops_large_packets_is_grey_with_the_size_and_up_again_after(
    near: str, far: str
) -> None:
    it = probed()
    link, cable = it.link(near, far), it.cable(near, far)
    it.probes.mtu_bytes[link] = 1500
    it.run(40 * S, lambda: it.state(cable) == "GREY")
    record = it.last(cable)
    assert (record["max_packet_bytes"], record["loss_rate"]) == (1500, None)
    assert record["links"] == [it.fleet.link_ids[link]]
    assert "drops packets above 1,500 bytes (NICs send 9,000), no router reports it, since " in record["text"]
    it.probes.mtu_bytes[:] = 9000
    it.run(20 * S, lambda: it.state(cable) == "UP")
    assert it.last(cable)["max_packet_bytes"] is None
    assert "passes packets of all sizes again" in it.last(cable)["text"]
    assert it.ever_in("GREY") == {cable}
    assert it.ever_in("DOWN") == set()


def test_ordinary_losses_and_dead_links_are_no_limit() -> None:
    it = probed()
    it.probes.loss[it.link("leaf1", "spine2")] = 0.3
    it.probes.down[it.link("leaf2", "spine3")] = True
    it.run(20 * S)
    assert it.state(it.cable("leaf1", "spine2")) == "GREY"
    assert all(r is None or r["max_packet_bytes"] is None for _, (_, r) in it.changes)


def test_a_link_may_lose_packets_and_drop_large_ones() -> None:
    it = probed()
    cable = it.cable("leaf1", "spine2")
    it.probes.mtu_bytes[it.link("leaf1", "spine2")] = 1500
    it.run(40 * S, lambda: it.state(cable) == "GREY")
    it.probes.loss[it.link("leaf1", "spine2")] = 0.2
    it.run(10 * S, lambda: it.last(cable)["loss_rate"] is not None)
    record = it.last(cable)
    assert record["max_packet_bytes"] == 1500
    assert "loses" in record["text"]
    assert "above 1,500 bytes" in record["text"]


def test_a_new_owner_keeps_the_limit_until_larger_packets_pass() -> None:
    it = probed()
    link, cable = it.link("leaf1", "spine2"), it.cable("leaf1", "spine2")
    it.probes.mtu_bytes[link] = 1500
    it.run(40 * S, lambda: it.state(cable) == "GREY")
    before = it.last(cable)
    again = Watched(it.fleet, rate_hz=300.0)
    again.probes = it.probes
    again.health.recover([before])
    again.run(10 * S)
    assert again.health.subjects[cable].state == "GREY"
    again.run(20 * S)
    assert again.last(cable)["max_packet_bytes"] == 1500
    it.probes.mtu_bytes[link] = 9000
    again.run(20 * S, lambda: again.state(cable) == "UP")


def test_a_fleet_without_faults_has_no_limit_over_twenty_seconds() -> None:
    it = probed()
    it.run(20 * S)
    assert it.changes == []
