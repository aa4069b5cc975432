"""Elements that all tabs use: tables of names and values, states by colour, UTC."""

from __future__ import annotations

from typing import Any

from fabrictime.web import elements


def test_a_table_of_values_shows_each_name_once_and_none_without_values(page_client: Any) -> None:
    table = elements.name_value_table("figures")
    elements.put_values(table, [("rate", "5 Mbit/s"), ("round trip", "—")])
    assert table.state()["rows"] == [
        ["rate", ["rate", "5 Mbit/s"]],
        ["round trip", ["round trip", "—"]],
    ]
    assert not table._props["head"]
    elements.put_values(table, [])
    assert table.state()["rows"] == []


def test_a_state_has_its_colour_and_columns_of_the_caller_go_first(page_client: Any) -> None:
    columns = [("name", "link", "left"), ("state", "state", "left")]
    table = elements.table(columns, "links", cells={"name": lambda row: row["name"].upper()})
    table.put([{"id": 1, "name": "a", "state": "DOWN"}])
    assert table.state()["rows"] == [["1", ["A", [("ft-pill ft-DOWN", "DOWN", "")]]]]
    assert table._props["data-testid"] == "links"


def test_a_choice_that_is_made_again_is_reported_once(page_client: Any) -> None:
    chosen: list[int] = []
    toggle = elements.toggle({60: "1 min", 300: "5 min"}, 60, chosen.append, "span")
    toggle.set_value(300)
    toggle.set_value(300)
    assert chosen == [300]


def test_times_are_utc() -> None:
    assert elements.utc_time(0) == "00:00:00"
    assert elements.utc_time(1_760_000_000_900_000_000) == "08:53:20"
