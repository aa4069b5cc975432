"""Probed routes: one number per sender and route, cached until routes change."""

from __future__ import annotations

import numpy as np

from schemas.records import PathQueueing
from streams.queues.routes import FORWARD, REVERSE, ROUND_TRIP, ProbedRoutes
from tests.records import make

OUT = ("a:e>s1:1", "s1:2>b:e")
BACK = ("b:e>s1:2", "s1:1>a:e")


class FakeTable:
    """Routes of NICs a and b over one switch; `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self.known = {("a/e", "b/e")}

    def forward(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return OUT if (nic, peer) in self.known else ()

    def reverse(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return BACK if (nic, peer) in self.known else ()


def record(*rows: tuple[int, int, int, int]) -> PathQueueing:
    """Return a record; rows of NIC, peer, path and direction."""
    nic, peer, path, direction = (list(column) for column in zip(*rows, strict=True))
    return make(PathQueueing, nics=["a/e", "b/e", "c/e"], nic=nic, peer=peer, path=path, direction=direction)


def test_paths_over_the_same_links_share_a_route_without_the_first_link() -> None:
    routes, table = ProbedRoutes(), FakeTable()
    found = routes.of(record((0, 1, 7, FORWARD), (0, 1, 8, FORWARD), (0, 1, 7, REVERSE)), table)  # type: ignore[arg-type]
    assert found.tolist() == [0, 0, 1]
    assert [[routes.names[link] for link in links] for links in routes.links] == [["s1:2>b:e"], ["s1:1>a:e"]]
    assert routes.senders == [0, 1]


def test_a_round_trip_has_no_sender_and_both_directions() -> None:
    routes = ProbedRoutes()
    assert routes.of(record((0, 1, 7, ROUND_TRIP)), FakeTable()).tolist() == [0]  # type: ignore[arg-type]
    assert (routes.senders, len(routes.links[0])) == ([-1], 2)


def test_unknown_paths_are_counted_and_found_once_routes_change() -> None:
    routes, table = ProbedRoutes(), FakeTable()
    message = record((0, 2, 7, FORWARD))
    for _ in range(2):
        routes.refresh(message, table)  # type: ignore[arg-type]
        assert routes.of(message, table).tolist() == [-1]  # type: ignore[arg-type]
    assert routes.unknown_paths == 1, "the second time from the cache"
    table.known.add(("a/e", "c/e"))
    table.version += 1
    assert not routes.refresh(message, table)  # type: ignore[arg-type]
    assert routes.of(message, table).tolist() == [0]  # type: ignore[arg-type]


def test_a_cached_route_is_the_same_as_a_new_one() -> None:
    routes, table = ProbedRoutes(), FakeTable()
    rows = [(0, 1, path, direction) for path in (9, 3, 6) for direction in (FORWARD, REVERSE, ROUND_TRIP)]
    first = routes.of(record(*rows), table)  # type: ignore[arg-type]
    again = routes.of(record(*reversed(rows)), table)  # type: ignore[arg-type]
    assert np.array_equal(first, again[::-1])
