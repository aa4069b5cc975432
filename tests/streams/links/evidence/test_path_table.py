"""Path table: losses of streaks within a time, routes, and rows that are used again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.links.evidence.path_table import FIRST_CAPACITY, NicState, PathTable

ROUTE = ("a:e>s1:1", "s1:2>b:e")
OTHER = ("a:e>s2:1", "s2:2>b:e")


class FakeRoutes:
    """One route to every peer; the way back is unknown unless given."""

    def __init__(self, back: tuple[str, ...] = ("b:e>s1:2", "s1:1>a:e")) -> None:
        self.version = 0
        self.out, self.back = ROUTE, back

    def changed(self, since: int) -> None:
        return None

    def forward(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return self.out

    def reverse(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return self.back


def with_path(routes: FakeRoutes, table: PathTable | None = None, path: int = 1) -> tuple[PathTable, int]:
    """Return a table with a path from a to b, and the path's row."""
    made = table or PathTable()
    nic = made.nics.setdefault("a/e", NicState())
    me = made.element("a/e", 0, nic=True)
    return made, made._path(nic, me, ("b/e", path), 5, routes)


@given(
    first=st.integers(0, 10**6), steps=st.integers(0, 50), step=st.integers(1, 1000),
    after=st.integers(-1000, 1_100_000), upto=st.integers(-1000, 1_100_000),
)  # fmt: skip
def test_losses_within_a_time_are_those_of_evenly_spaced_ones(
    first: int, steps: int, step: int, after: int, upto: int
) -> None:
    table = PathTable()
    table.first_lost_ns[0], table.last_lost_ns[0] = first, first + steps * step
    table.loss_streak[0] = steps + 1
    sent = [first + n * step for n in range(steps + 1)]
    [found] = table.losses_within(np.array([0]), np.array([after]), np.array([upto]))
    assert found == sum(after < at <= upto for at in sent)


def test_a_path_crosses_its_nics_and_the_links_of_both_directions() -> None:
    table, row = with_path(FakeRoutes())
    names = [table.names[element] for element in table.rows[row].tolist() if element]
    assert names == ["a/e", "b/e", *ROUTE, "b:e>s1:2", "s1:1>a:e"]
    assert not table.incomplete[row]
    assert table.paths_over(table.index[ROUTE[0]]).tolist() == [row]
    assert table.nic_of[table.index[ROUTE[0]]] == table.index["a/e"]
    assert with_path(FakeRoutes(back=()))[0].incomplete[0], "the way back is unknown"


def test_a_moved_path_departs_from_its_former_links() -> None:
    routes = FakeRoutes()
    table, row = with_path(routes)
    routes.version, routes.out = 1, OTHER
    table._follow(9, routes)
    with_path(routes, table)
    left = {table.names[link] for link in table.departures}
    assert left == set(ROUTE)
    assert table.departures[table.index[ROUTE[0]]].paths == {row}
    assert table.paths_over(table.index[ROUTE[0]]).tolist() == []


def test_a_route_with_gaps_may_cross_its_former_links_until_it_is_known_again() -> None:
    routes = FakeRoutes()
    table, row = with_path(routes)
    back = {table.index[link] for link in routes.back}
    assert not back & set(table.former[row].tolist())
    for version in (1, 2):
        routes.version, routes.back = version, ()
        table._follow(9, routes)
        with_path(routes, table)
        assert table.incomplete[row]
        assert back <= set(table.possible_elements(np.array([row]))[0].tolist())
        assert not back & set(table.rows[row].tolist())
        assert table.departures == {}
    routes.version, routes.out, routes.back = 3, OTHER, ("b:e>s2:2", "s2:1>a:e")
    table._follow(9, routes)
    with_path(routes, table)
    assert not table.former[row].any()
    assert back <= table.departures.keys()


def test_rows_grow_and_those_of_forgotten_paths_are_used_again() -> None:
    table, routes = PathTable(), FakeRoutes()
    rows = [with_path(routes, table, path)[1] for path in range(FIRST_CAPACITY + 1)]
    assert rows == list(range(FIRST_CAPACITY + 1))
    table.path_event_ns[:5] = 100
    table.forget_paths(50)
    assert len(table.nics["a/e"].paths) == 5
    assert with_path(routes, table, 9999)[1] in rows[5:]
    assert table.paths == FIRST_CAPACITY + 1
