"""The copy of a tab that the browser paints before scripts are loaded."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from nicegui import ui

from fabrictime.web.chart import FabricMap, LiveChart
from fabrictime.web.elements import table, text, toggle
from fabrictime.web.first_paint import first_html
from fabrictime.web.search_box import SearchBox
from fabrictime.web.widgets import Chips, LiveMarkup, Section


def painted(client: Any, build: Callable[[], object]) -> str:
    """Return the copy of a page with one element."""
    with client:
        build()
    copy = first_html(client.content)
    begin, end = '<div id="ft-first" class="nicegui-layout"><div class="nicegui-content">', "</div></div>"
    assert copy.startswith(begin)
    assert copy.endswith(end)
    return copy[len(begin) : -len(end)]


def test_a_text_is_escaped_and_keeps_its_attributes(page_client: Any) -> None:
    copy = painted(page_client, lambda: text("a < b", "ft-note", test="note").props('role="status"'))
    assert copy == '<div class="ft-note" data-testid="note" role="status">a &lt; b</div>'


def test_markup_and_hidden_parts_stay_as_they_are(page_client: Any) -> None:
    def build() -> None:
        section = Section()
        section.set_visibility(False)
        with section:
            LiveMarkup().set_text("<b>5</b> ms")

    assert painted(page_client, build) == '<div class="hidden"><div><b>5</b> ms</div></div>'


def test_a_table_has_its_rows_links_and_alignment(page_client: Any) -> None:
    def build() -> None:
        cells = {"link": lambda row: [("ft-go", row["link"], "", "/fabric?link=x"), ("", "", "", [1.0, 2.0])]}
        rows = table([("link", "link", "left"), ("loss", "loss", "right")], "links", None, cells)
        rows.put([{"id": "1", "link": "a & b", "loss": "5 %"}])

    assert painted(page_client, build) == (
        '<div class="ft-rows ft-table ft-list" data-testid="links"><table>'
        '<thead><tr><th style="text-align:left">link</th><th style="text-align:right">loss</th></tr></thead>'
        '<tbody><tr><td style="text-align:left"><a class="ft-go" href="/fabric?link=x">a &amp; b</a>'
        '<div class=""></div></td><td style="text-align:right">5 %</td></tr></tbody></table></div>'
    )


def test_an_empty_table_is_hidden(page_client: Any) -> None:
    assert " hidden>" in painted(page_client, lambda: table([("name", "", "left")], "none"))


def test_chips_links_and_toggles_show_their_choices(page_client: Any) -> None:
    def build() -> None:
        Chips().put([("host", "the host", "/fabric?node=h1"), ("all", "all jobs", "")])
        ui.link("Clocks", "/clocks")
        toggle({60: "1 min", 900: "15 min"}, 900, print, "span")
        ui.timer(1.0, lambda: None)

    copy = painted(page_client, build)
    assert '<a class="ft-chip ft-go" href="/fabric?node=h1">the host</a>' in copy
    assert '<button type="button" class="ft-chip">all jobs</button>' in copy
    assert '<a class="nicegui-link" href="/clocks">Clocks</a>' in copy
    assert 'aria-pressed="true"><span class="q-btn__content' in copy
    assert copy.index("1 min") < copy.index('aria-pressed="true"') < copy.index("15 min")


def test_a_component_has_the_html_of_its_script(page_client: Any) -> None:
    def build() -> None:
        SearchBox(lambda: None)
        LiveChart("heat", empty="No <window> yet").classes("ft-fill")
        FabricMap("The fabric", print)

    copy = painted(page_client, build)
    assert '<input type="search" class="ft-search-input"' in copy
    assert '<div class="ft-chart ft-fill"><div class="ft-canvas"></div>' in copy
    assert '<div class="ft-empty">No &lt;window&gt; yet</div>' in copy
    assert '<div role="img" aria-label="The fabric" class="ft-map">' in copy
    assert " :" not in copy
    assert " v-" not in copy


@pytest.mark.chromium
def test_the_served_page_has_figures_and_the_browser_removes_the_copy(
    records: Any, log_address: str, browser: Any, shared_server: Any, start_page: Any, until: Any
) -> None:
    fabric = records(log_address)
    up = [
        ("fabric.link-health", fabric.cable(link), fabric.health(link, "UP")) for link in fabric.links()[::2]
    ]
    alert = fabric.alert(fabric.cable(fabric.links()[0]), "leaf1 loses packets", kind="LINK_GREY")
    fabric.publish(*fabric.fleet(), *up, ("fabric.alerts", alert["alert_id"], alert))
    page = start_page(shared_server, kafka={"bootstrap": log_address})

    def served() -> bool:
        with urllib.request.urlopen(f"{page.url}alerts") as answer:
            copy = answer.read().decode().partition('id="ft-first"')[2].partition("esm-fallback")[0]
        return "leaf1 loses packets" in copy and f"of {len(up)}, " in copy

    until("figures in the HTML", served)
    browser.open(f"{page.url}alerts")
    assert "leaf1 loses packets" in browser.text("alerts")  # at once: the rows came with the page
    assert browser.js("return document.getElementById('ft-first')") is None
    assert browser.js("return document.querySelectorAll('[data-testid=search]').length") == 1
    assert browser.errors() == []
