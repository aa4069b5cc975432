"""Queries that page and dashboards share: each reader's range and step; both run them on filled tables."""

from __future__ import annotations

import pytest

from schemas import queries, tables

DIALECT = queries.Dialect("db", "in_range", "a_step")
CATALOGUE = {
    "clocks": queries.newest_clocks(DIALECT),
    "fleet": queries.clock_fleet(DIALECT),
    "states": queries.clock_states(DIALECT, 3),
    "events": queries.clock_events(DIALECT, 2, 9),
    "suspects": queries.suspects(DIALECT, newest=True),
    "nics": queries.nic_windows(DIALECT),
}


def test_rows_are_those_of_the_range_each_once() -> None:
    assert DIALECT.rows("t", "a = 1") == "FROM db.t FINAL WHERE in_range AND a = 1"
    assert DIALECT.rows("t", time="done") == (
        "FROM (SELECT *, done AS window_start FROM db.t FINAL) WHERE in_range"
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_table_of_a_query_is_read_in_the_range(name: str) -> None:
    sql = CATALOGUE[name]
    assert sql.count("FROM db.") == sql.count("WHERE in_range") > 0


@pytest.mark.parametrize("name", ["fleet", "states"])
def test_a_series_has_the_reader_s_step(name: str) -> None:
    assert "a_step AS time" in CATALOGUE[name]


def test_an_unknown_direction_is_refused() -> None:
    rows = queries.known_delays(DIALECT.rows(tables.DELAYS_1S), "forward")
    assert "AS reverse_min_ns" not in rows
    with pytest.raises(ValueError, match="direction 'sideways'"):
        queries.pairs(f"FROM ({rows})", "sideways")
