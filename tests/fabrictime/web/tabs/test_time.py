"""The time control in Chromium: past moments on several tabs, Back, and the colour scheme."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fabrictime.bench._stepped_log import SteppedLog
from fabrictime.bench.web._recorded import PARTITIONS, Record, write_log
from fabrictime.web.time_bar import time_of
from schemas import codec
from schemas.topics import TOPICS
from tests.fabrictime.fabric_records import FabricRecords

pytestmark = pytest.mark.chromium

S = 1_000_000_000
BEGIN = time.time_ns() // S * S - 600 * S
UP, DOWN = 1, 4
"""States as the map numbers them."""
LINK = "leaf1 to spine1 is DOWN"


@pytest.fixture
def address(
    tmp_path: Path, shared_server: Any, start_page: Callable[..., Any], browser: Any
) -> Iterator[Callable[..., str]]:
    """Opens a path of a page whose log has a dead link from 100 s to 200 s; returns the page's address."""
    fabric = FabricRecords()
    link = fabric.up("leaf1", 1)
    cable = fabric.cable(link)
    written: list[tuple[int, str, str, dict[str, Any]]] = []
    for number in (0, 60, 120, 180, 240):
        written += [(number, *record) for record in fabric.fleet() if number == 0 or "inventory" in record[0]]
    for number in range(0, 300, 2):
        written.append((number, "fabric.queues", "fabric", fabric.queues({}, BEGIN + number * S)))
    alert = fabric.alert(cable, LINK, kind="LINK_DOWN", raised_ns=BEGIN + 101 * S, links=[link])
    cleared = {**alert, "state": "CLEARED", "cleared_ns": BEGIN + 201 * S, "update": 1}
    written += [
        (100, "fabric.link-health", cable, fabric.health(link, "DOWN", since_ns=BEGIN + 100 * S)),
        (101, "fabric.alerts", alert["alert_id"], alert),
        (200, "fabric.link-health", cable, fabric.health(link, "UP", since_ns=BEGIN + 200 * S)),
        (201, "fabric.alerts", cleared["alert_id"], cleared),
    ]
    write_log(
        tmp_path / "log",
        [
            Record(BEGIN + at * S, topic, key, codec.encode(TOPICS[topic].record, record))
            for at, topic, key, record in sorted(written, key=lambda row: row[0])
        ],
    )
    with SteppedLog(tmp_path / "log", PARTITIONS) as log:
        page = start_page(shared_server, kafka={"bootstrap": log.bootstrap})

        def opened(path: str, at_s: float | None = None) -> str:
            joint = "&" if "?" in path else "?"
            browser.open(f"{page.url}{path}" + (f"{joint}at={moment(at_s)}" if at_s is not None else ""))
            return str(page.url)

        yield opened


def moment(at_s: float) -> str:
    return time_of(BEGIN + round(at_s * S))


def seek(browser: Any, at_s: float) -> None:
    """Move the slider."""
    browser.js(
        "const s = document.querySelector('[data-testid=time-slider]'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change'))",
        (BEGIN + round(at_s * S)) / 1e6,
    )


def worst(browser: Any) -> int:
    """Return the worst state that the map draws."""
    drawn = "document.querySelector('[data-testid=fabric]')?.ft?.drawer.states"
    return int(browser.js(f"return Math.max(0, ...{drawn} ?? [])"))


def press(browser: Any, test: str) -> None:
    browser.js("document.querySelector(`[data-testid=${arguments[0]}]`).click()", test)


def query(browser: Any) -> str:
    return str(browser.js("return location.search"))


def test_a_past_moment_is_in_the_address_and_back_returns(address: Any, browser: Any, until: Any) -> None:
    address("now", 150)
    until("the incident", lambda: LINK in browser.text("incidents"))
    assert moment(150)[11:19] in browser.text("time-text").split(" UTC")[0]
    assert browser.text("time-text").endswith(" ago"), "the moment has loaded"
    seek(browser, 250)
    until("it was over", lambda: "Nothing is wrong" in browser.text("health-sentence"))
    until("its address", lambda: moment(250).replace(":", "%3A") in query(browser))
    browser.driver.back()
    until("the moment before", lambda: LINK in browser.text("incidents"))
    assert browser.errors() == []


def test_the_moment_stays_in_other_tabs_until_live(address: Any, browser: Any, until: Any) -> None:
    address("now", 150)
    until("the incident", lambda: LINK in browser.text("incidents"))
    browser.js("[...document.querySelectorAll('.ft-nav a')].find((a) => a.text === 'Fabric').click()")
    until("the same moment on the map", lambda: "leaf1" in browser.text("trouble") and worst(browser) == DOWN)
    assert "at=" in query(browser)
    press(browser, "time-live")
    until("now", lambda: browser.text("time-text") == "now" and "at=" not in query(browser))
    until("the link's last state", lambda: browser.text("trouble") == "" and worst(browser) == UP)
    assert browser.errors() == []
    live = "return document.querySelector('[data-testid=time-live]').getAttribute('aria-pressed')"
    assert browser.js(live) == "true"
    browser.js("window.socket.disconnect()")
    until("not live", lambda: browser.text("time-text").startswith("connection lost at "))
    assert browser.js(live) == "false"


def test_playing_forward_passes_the_end_of_an_incident(address: Any, browser: Any, until: Any) -> None:
    address("alerts?listed=active", 190)
    until("the alert", lambda: LINK in browser.text("alerts"))
    browser.js("document.querySelector('[data-testid=time-speed]').value = '10'")
    press(browser, "time-play")
    until("it was cleared", lambda: browser.text("alerts") == "")
    press(browser, "time-play")
    assert "at=" in query(browser)
    assert browser.errors() == []


def test_the_colour_scheme_is_the_readers(address: Any, browser: Any, until: Any) -> None:
    address("fabric", 150)
    until("drawn", lambda: browser.frames("fabric") > 0)
    paper = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.js(paper)
    press(browser, "scheme")
    light = browser.js(paper)
    assert dark != light
    address("now", 150)
    until("kept", lambda: browser.js(paper) == light)
    press(browser, "scheme")
    assert browser.js(paper) == dark
    press(browser, "scheme")
    assert (
        browser.js("return document.querySelector('[data-testid=scheme]').title")
        == "light or dark: as the system"
    )
