"""Export of tables and pictures."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nicegui import ui

from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import column, table, text
from fabrictime.web.export import csv_of, csv_text, file_name, shown_on


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=1), min_size=1))
def test_a_reader_of_csv_gets_the_same_texts(rows: list[list[str]]) -> None:
    back = list(csv.reader(io.StringIO(csv_text(rows), newline="")))
    assert [[cell.removeprefix("'") for cell in row] for row in back] == [
        [cell.removeprefix("'") for cell in row] for row in rows
    ] or rows == [[""]]


@pytest.mark.parametrize("value", ["=1+1", "@SUM(A1)", "+cmd", "-cmd", "\t=1"])
def test_a_spreadsheet_computes_nothing(value: str) -> None:
    assert next(csv.reader(io.StringIO(csv_text([[value]]), newline=""))) == [f"'{value}"]


def test_figures_stay_figures() -> None:
    assert csv_text([["-3.2 us", "+0.1", None, 4]]) == "-3.2 us,+0.1,,4\r\n"


def test_the_list_has_the_visible_elements_with_their_titles(page_client: Any) -> None:
    with page_client:
        text("Links", "ft-title")
        links = table([("name", "name", "left"), ("state", "state", "left")], "links")
        empty = table([("name", "name", "left")], "empty")
        text("Clocks", "ft-title")
        ui.table(rows=[{"clock": "h1"}, {"clock": "h2"}], columns=[column("clock", "the clock")])
        chart = LiveChart("hour")
        with ui.element("div") as hidden:
            LiveChart("hour")
    hidden.set_visibility(False)
    empty.put([])
    links.put([{"id": 1, "name": "a, b", "state": "UP"}])
    shown = list(shown_on(page_client))
    assert [(one.title, one.formats) for one in shown] == [
        ("Links", ("CSV",)),
        ("Clocks", ("CSV",)),
        ("Clocks", ("PNG", "SVG")),
    ]
    assert shown[2].element is chart
    assert csv_of(shown[0].element) == 'name,state\r\n"a, b",UP\r\n'
    assert csv_of(shown[1].element) == "the clock\r\nh1\r\nh2\r\n"


def test_a_file_has_a_plain_name() -> None:
    assert file_name("Fabric", "h1/eth1 → ../x", "PNG") == "fabrictime-fabric-h1-eth1-x.png"


@pytest.mark.chromium
def test_the_browser_saves_tables_and_pictures(
    records: Any,
    log_address: str,
    shared_server: Any,
    start_page: Callable[..., Any],
    browser: Any,
    until: Any,
) -> None:
    fabric = records(log_address)
    link = fabric.up("leaf1", 1)
    cable = fabric.cable(link)
    fabric.publish(
        *fabric.fleet(),
        ("fabric.link-health", cable, fabric.health(link, "GREY", links=[link], loss_rate=0.2)),
        ("fabric.contention", link, fabric.contention(link)),
    )
    page = start_page(shared_server, kafka={"bootstrap": log_address})
    drawings = (("fabric", "fabric", {"png"}), ("contention", "bars", {"csv", "png", "svg"}))
    for path, drawn, formats in drawings:
        browser.open(f"{page.url}{path}")
        until("a drawing", lambda drawn=drawn: browser.frames(drawn))
        saved = saved_files(browser, until)
        starts = {"png": "data:image/png;base64,iVBOR", "svg": "data:image/svg+xml", "csv": "blob:"}
        for name, url in saved:
            assert url.startswith(starts[name.rpartition(".")[2]]), name
        assert {name.rpartition(".")[2] for name, _ in saved} >= formats
        assert browser.errors() == []
        assert "Traceback" not in page.process.log.read_text()


def saved_files(browser: Any, until: Any) -> list[tuple[str, str]]:
    """Save all that the list offers. Return names and addresses."""
    browser.js(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () {"
        " window.saved.push([this.download, this.href]); };"
        "document.querySelector('[data-testid=export-menu]').click()"
    )
    count = until("the list", lambda: browser.js(SAVE_ALL))
    until("the files", lambda: len(browser.js("return window.saved")) == count)
    return list(browser.js("return window.saved"))


SAVE_ALL = """const chips = document.querySelectorAll('[data-testid=exports] button');
for (const chip of chips) chip.click();
return chips.length"""
