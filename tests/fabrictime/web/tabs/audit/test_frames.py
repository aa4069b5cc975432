"""Figures and markup of the tab Audit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fabrictime.audit.groups import Level
from fabrictime.web.tabs.audit import frames
from fabrictime.web.tabs.audit.queries import Cell, CheckRow, ResultRow
from streams.audit.results import FLEET

CELLS = [
    Cell("h10", "BACKEND", (1, 0, 0, 8, 1)),
    Cell("h10", "SOFTWARE", (0, 2, 0, 7, 0)),
    Cell("h2", "SOFTWARE", (0, 0, 0, 9, 0)),
    Cell(FLEET, "FABRIC", (0, 0, 1, 3, 0)),
]
HOSTS = frames.squares(CELLS)


def test_hosts_stand_in_the_order_of_their_names_the_fleet_first() -> None:
    assert [each.host for each in HOSTS] == [FLEET, "h2", "h10"]
    assert [each.level("") for each in HOSTS] == [Level.UNKNOWN, Level.PASSED, Level.ERROR]
    assert [each.level("SOFTWARE") for each in HOSTS] == [Level.SKIPPED, Level.PASSED, Level.WARNING]
    assert frames.totals(HOSTS)[Level.PASSED] == 27


def test_a_host_is_a_link_with_its_colour_and_counts() -> None:
    markup = frames.grid_markup(HOSTS, "", "r 1", "h2")
    assert 'href="/audit?run=r+1&amp;host=h10"' in markup
    assert 'class="ft-host ft-error ft-named"' in markup
    assert 'class="ft-host ft-passed ft-named ft-chosen-host"' in markup
    assert 'title="h10: 1 error, 2 warnings, 15 passed, 1 skipped">h10</a>' in markup
    assert "whole fleet" in markup
    assert 'ft-skipped ft-named"' in frames.grid_markup(HOSTS, "FABRIC", "", None)


def test_names_are_escaped_and_left_out_of_many_hosts() -> None:
    hostile = frames.squares([Cell('<b>"', "NODE", (0, 0, 0, 1, 0))])
    assert "<b>" not in frames.grid_markup(hostile, "", "", None)
    many = frames.squares(Cell(f"h{k}", "NODE", (0, 0, 0, 1, 0)) for k in range(1000))
    markup = frames.grid_markup(many, "", "", None)
    assert markup.count("<a ") == 1000
    assert "ft-named" not in markup
    assert len(markup) < 200_000


def test_categories_stand_in_the_reports_order() -> None:
    assert frames.categories(CELLS) == {
        "": "all",
        "SOFTWARE": "Software",
        "BACKEND": "Back-end network",
        "FABRIC": "Fabric",
    }


def test_the_hint_is_the_verdict() -> None:
    assert frames.hint([]).startswith("No audit yet.")
    assert frames.hint(HOSTS) == "1 of 2 hosts not fit. Choose a host or a check."
    assert frames.hint(HOSTS[:2]) == "1 host without an error. Choose a host or a check."
    assert frames.counts_text(Counter()) == "nothing checked"


def test_rows_of_checks_and_results() -> None:
    row = CheckRow("backend.mtu", "same MTU", Level.ERROR, 3, "MONITOR", "ip link", "BACKEND")
    assert frames.check_row(row) | {"id": ""} == {
        "id": "",
        "check": "backend.mtu",
        "level": "error",
        "title": "same MTU",
        "hosts": "3 hosts",
        "action": "monitor",
        "remedy": "ip link",
    }
    unknown = frames.check_row(replace(row, level=Level.UNKNOWN))
    assert (unknown["action"], unknown["remedy"]) == ("", "Open the check: it says what it lacks.")
    result = ResultRow("h1", "c", "t", Level.SKIPPED, "NODE", "x", "MONITOR", "r", "r1", 1, 1, ())
    assert frames.result_row(result, "h1") == {"id": "h1 c", "name": "h1", "level": "skipped", "text": "x"}
    assert frames.open_results([result]) == []
