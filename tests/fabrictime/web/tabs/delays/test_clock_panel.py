"""The clock panel: pages and sorting of the table, states and domains in the note, the drawn clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.web.history_sql import Span
from fabrictime.web.tabs.clocks.queries import ClockRow, ClockSeries
from fabrictime.web.tabs.delays.clock_panel import ROWS_PER_PAGE, ClockPanel


def row(clock: str, bound_ns: float = 50.0, state: str = "SYNCED", domain: str = "d") -> ClockRow:
    return ClockRow(clock, "fabric", domain, 0, -1500.0, 1234.5, bound_ns, state, 3, 7.0)


@pytest.fixture
def chosen() -> dict[str, Any]:
    return {}


@pytest.fixture
def panel(page_client: Any, chosen: dict[str, Any]) -> ClockPanel:
    made = ClockPanel("wander", None, chosen.__setitem__)
    made.build({60: "1 min"}, 60, lambda span: None)
    return made


def names(panel: ClockPanel) -> list[str]:
    return [each["clock"] for each in panel.table.rows]


def ask(panel: ClockPanel, **pagination: Any) -> None:
    panel._pages.on_request(SimpleNamespace(args={"pagination": pagination}))


def test_without_a_clock_the_note_explains_it(panel: ClockPanel) -> None:
    panel.show_rows([])
    assert (panel.note.text, names(panel)) == ("No clock solved yet.", [])
    panel.show_series(ClockSeries([], [], Span(0, 0, 1)))


def test_one_clock_is_one_row_with_signed_figures(panel: ClockPanel) -> None:
    panel.show_rows([row("h1/system")])
    [shown] = panel.table.rows
    assert (shown["offset"], shown["drift"], shown["bound"]) == ("-1.50 µs", "+1.2345", "50.0 ns")
    assert panel.note.text == "1 SYNCED"


def test_a_thousand_clocks_are_paged_the_worst_first_and_sorted_on_request(panel: ClockPanel) -> None:
    panel.show_rows([row(f"h{number}", float(number)) for number in range(1000)])
    assert names(panel) == [f"h{number}" for number in range(999, 1000 - ROWS_PER_PAGE, -1)]
    ask(panel, sortBy="clock", descending=False, page=2)
    assert names(panel) == [f"h{number}" for number in range(7, 14)], "by number, not by letter"
    ask(panel, page=10_000)
    assert names(panel) == [f"h{number}" for number in range(994, 1000)]
    ask(panel, sortBy="nonsense", page=1)
    assert names(panel)[0] == "h0"


def test_a_page_of_an_empty_table_that_the_browser_sends_late_is_replaced(panel: ClockPanel) -> None:
    before = dict(panel.table.pagination)
    panel.show_rows([row(f"h{number}") for number in range(20)])
    panel.table.pagination = before
    panel._pages.on_browser_page()
    assert (before["rowsNumber"], panel.table.pagination["rowsNumber"]) == (0, 20)
    assert {each["color"] for each in panel.table.rows} == {-1}, "too many to draw"


def test_domains_that_cannot_be_compared_and_states_are_noted(panel: ClockPanel) -> None:
    panel.show_rows([row("a"), row("b", state="HOLDOVER", domain="e"), row("c", state="UNSYNCED")])
    assert panel.note.text == (
        "1 SYNCED · 1 HOLDOVER · 1 UNSYNCED · 2 domains: clocks of different domains cannot be compared"
    )


def test_choices_go_into_the_address(panel: ClockPanel, chosen: dict[str, Any]) -> None:
    panel._choose_metric("bound")
    panel._on_click(SimpleNamespace(args="h1/system"))
    assert chosen == {"clock_view": "bound", "clock": "h1/system"}
