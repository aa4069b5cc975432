"""The Contention and Alerts tabs in Chromium, on a page that reads a real log.

The parts of a page arrive one after another, up to 40 ms apart on a busy machine: tests wait for each.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.web.tabs.contention.view import wait_text
from tests.fabrictime.evidence import FreshEvidence
from tests.fabrictime.web.processes import calm

pytestmark = pytest.mark.chromium

S = 1_000_000_000
TABS = ("delays", "now", "clocks", "fabric", "contention", "alerts")


@pytest.fixture
def fabric(records: Any, log_address: str) -> Any:
    """Eight NICs under four leaves and four spines, announced and traced."""
    made = records(log_address)
    made.publish(*made.fleet())
    with FreshEvidence(log_address):
        yield made


@pytest.fixture
def show(fabric: Any, browser: Any, shared_server: Any, start_page: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a tab of one page."""
    pages: list[Any] = []

    def opened(tab: str, query: str = "") -> Any:
        if not pages:
            pages.append(start_page(shared_server, kafka={"bootstrap": fabric.bootstrap}))
        browser.open(f"{pages[0].url}{tab}{query}")
        return pages[0]

    return opened


def click_row(browser: Any, test: str, expected: str) -> None:
    browser.js(
        "[...document.querySelectorAll(`[data-testid=${arguments[0]}] tbody tr`)]"
        ".find((r) => r.innerText.includes(arguments[1])).click()",
        test,
        expected,
    )


def test_the_wait_belongs_to_the_depth_beside_it() -> None:
    assert wait_text(45_000, 1_000_000_000) == "360 µs"
    assert wait_text(0, 1_000_000_000) == "—", "only flow reports show the contention"
    assert wait_text(45_000, 0) == "—", "the rate is unknown"


def test_empty_tabs_explain_the_missing_inputs(fabric: Any, show: Any, browser: Any, until: Any) -> None:
    page = show("contention")
    until("said", lambda: browser.text("bars-empty").startswith("No contention window yet"))
    until("time without bars", lambda: (browser.last("bars") or {}).get("bars") == [])
    until("words", lambda: browser.text("deepest-empty") == "No queue inferred yet.")
    link = fabric.up("leaf1", 1)
    fabric.publish(("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 45_000.0}})))
    until("the deepest queue", lambda: "45.0 kB" in browser.text("deepest"))
    assert browser.text("deepest-empty") == ""
    show("alerts")
    until("said", lambda: browser.text("alerts-empty").startswith("No alert yet. Alerts are raised"))
    assert browser.text("badge") == ""
    calm(browser, page)


def test_an_active_window_is_a_bar_with_flows_job_and_link(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    page = show("contention")
    link, other = fabric.up("leaf1", 2), fabric.back(fabric.first("h7/eth1"))
    expected = "leaf1 to spine2: 2 flows collide, 720 µs deep, job llama"
    window = fabric.contention(
        link,
        text=expected,
        jobs=["llama"],
        flows_total=2,
        candidates=[fabric.up("leaf1", 3)],
        flows=[
            fabric.contending(1, "h1/eth1", "h5/eth1", job="llama"),
            fabric.contending(2, "h2/eth1", "h7/eth1"),
        ],
    )
    now = time.time_ns()
    closed = fabric.contention(
        other, kind="INCAST", state="CLOSED", opened_ns=now - 100 * S, closed_ns=now - 70 * S
    )
    until("the tab listens", lambda: "No contention" in browser.text("bars-empty"))
    fabric.publish(("fabric.contention", link, window), ("fabric.contention", other, closed))
    until("told", lambda: expected == browser.text("window-text"))
    until("both bars", lambda: len((browser.last("bars") or {"bars": []})["bars"]) == 2)
    assert browser.last("bars")["rows"] == ["leaf1:swp4 → spine2:swp1", "leaf4:swp1 → h7:eth1"]
    assert browser.text("bars-note").startswith("2 windows on 2 links, 1 active")
    until("its kind", lambda: browser.text("window-kind") == "collision in the fabric, confidence 90%")
    candidates = r"candidates\s+leaf1:swp5 → spine3:swp1"
    until("its figures", lambda: re.search(candidates, browser.text("window-figures")))
    until("its flows", lambda: "h1/eth1 → h5/eth1" in browser.text("window-flows"))
    for figure in ("500 Mbit/s", "50%", "llama"):
        assert figure in browser.text("window-flows")
    until("both rows", lambda: "incast" in browser.text("windows"))
    click_row(browser, "windows", "incast")
    until("the other", lambda: browser.text("window-title") == "leaf4:swp1 → h7:eth1")
    until("its address", lambda: "window=" in browser.driver.current_url)
    browser.js(
        "[...document.querySelectorAll('[data-testid=windows] tbody tr')]"
        ".find((r) => r.innerText.includes('collision')).focus()"
    )
    browser.driver.switch_to.active_element.send_keys("\n")
    until("the first, by the keyboard", lambda: browser.text("window-text") == expected)
    until("its job", lambda: browser.text("window-jobs") != "")
    browser.js("document.querySelector('[data-testid=window-jobs] a').click()")
    until("the fabric", lambda: "/fabric" in browser.driver.current_url)
    until("its link", lambda: browser.text("link-title") == "leaf1:swp4 ⇄ spine2:swp1")
    until("its notes", lambda: "contention leaf1 to spine2: 2 flows collide" in browser.text("notes"))
    until("its job", lambda: browser.text("job-chip") == "llama: stop showing")
    calm(browser, page)


def test_a_change_renders_nothing_else(fabric: Any, show: Any, browser: Any, until: Any) -> None:
    """An `update` of NiceGUI has it render the whole page: a tenth of a second on a busy machine."""
    page = show("contention")
    link = fabric.up("leaf1", 2)
    until("the tab listens", lambda: "No contention" in browser.text("bars-empty"))

    def update(figure: int) -> None:
        expected = f"leaf1 to spine2: 2 flows collide, {figure} µs deep"
        fabric.publish(("fabric.contention", link, fabric.contention(link, text=expected, jobs=["llama"])))
        until("told", lambda: browser.text("window-text") == expected)
        until("its row", lambda: "collision" in browser.text("windows"))

    update(1)
    browser.js("window.ftUpdates = 0; window.socket.on('update', () => { window.ftUpdates++; })")
    update(2)
    update(3)
    assert browser.js("return window.ftUpdates") == 0
    calm(browser, page)


def test_an_alert_is_counted_on_every_tab_and_its_evidence_opens(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    page = show(TABS[0])
    link = fabric.up("leaf3", 1)
    now = time.time_ns()
    record = fabric.health(link, "DOWN", evaluated_ns=now, paths_dead=17)
    lost = {
        "nic": "h5/eth1",
        "shard": "fabric",
        "run": 1,
        "event": 3,
        "kind": "PROBE",
        "clock_ns": 5,
        "system_ns": now,
        "interval_ns": 10**7,
    }
    fabric.publish(
        ("fabric.link-health", fabric.cable(link), record),
        ("fabric.links", "fabric", {**lost, "nic": "h6/eth1"}),
        ("fabric.links", "fabric", lost),
    )
    expected = "leaf3 to spine1 is DOWN since 12:00:00"
    alert = fabric.alert(
        fabric.cable(link),
        expected,
        links=[link],
        jobs=["llama"],
        grouped=["h5/eth1>h1/eth1"],
        evidence=[
            {"topic": "fabric.link-health", "key": fabric.cable(link), "at_ns": now, "text": "17 paths dead"},
            {"topic": "fabric.links", "key": "fabric", "at_ns": now + 1, "text": "h5/eth1 lost 8 in a row"},
            {"topic": "fabric.link-health", "key": "gone", "at_ns": now, "text": "an old one"},
        ],
    )
    until("the first tab stands", lambda: browser.text("kpi-age") != "")
    fabric.publish(("fabric.alerts", alert["alert_id"], alert))
    until("counted", lambda: browser.text("badge") == "1")
    for tab in TABS[1:]:
        show(tab)
        until(f"counted on {tab}", lambda: browser.text("badge") == "1")
    until("its row", lambda: expected in browser.text("alerts"))
    until("its title", lambda: browser.text("alert-title") == expected)
    until("its figures", lambda: "h5/eth1 → h1/eth1" in browser.text("alert-figures"))
    until("its evidence", lambda: "an old one" in browser.text("evidence"))
    browser.js("document.querySelector('[data-testid=evidence-0]').click()")
    until("the record", lambda: "paths_dead\n17" in browser.text("record-0"))
    browser.js("document.querySelector('[data-testid=evidence-1]').click()")
    until("its NIC's", lambda: "nic\nh5/eth1" in browser.text("record-1"))
    browser.js("document.querySelector('[data-testid=evidence-2]').click()")
    until("none", lambda: "fabric.link-health has no record of gone" in browser.text("record-2"))

    browser.js("window.ftEvidence = document.querySelector('[data-testid=evidence-0]')")
    longer = f"{expected}, 5 s"
    fabric.publish(("fabric.alerts", alert["alert_id"], {**alert, "update": 1, "text": longer}))
    until("its new text", lambda: browser.text("alert-title") == longer)
    assert browser.js("return window.ftEvidence.isConnected"), "a click under way would be lost"
    assert "paths_dead\n17" in browser.text("record-0")

    cleared = {**alert, "update": 2, "state": "CLEARED", "cleared_ns": now + S}
    fabric.publish(("fabric.alerts", alert["alert_id"], cleared))
    until("counted no more", lambda: browser.text("badge") == "")
    until("listed as cleared", lambda: "cleared" in browser.text("alerts"))
    browser.toggle("listed", "active")
    until("no row", lambda: browser.text("alerts-empty") == "No alert is active.")
    show("alerts", f"?alert={alert['alert_id']}".replace(">", "%3E").replace("<", "%3C"))
    until("opened by its address", lambda: browser.text("alert-title") == expected)
    until("its links", lambda: browser.text("alert-links") != "")
    browser.js("document.querySelector('[data-testid=alert-links] a').click()")
    until("its link", lambda: browser.text("link-title") == "leaf3:swp3 ⇄ spine1:swp3")
    calm(browser, page)


def test_names_from_the_network_are_shown_and_never_run(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    node = "<img\tsrc=x\tonerror=window.hacked=1\t"
    evil = f"{node}>"
    link = f"{node}:1>leaf1:9"
    alert = fabric.alert(fabric.cable(link), evil, links=[link], jobs=[evil])
    fabric.publish(
        ("fabric.inventory", f"{node}/e", fabric.nic(f"{node}/e", rack=evil, host=node)),
        ("fabric.link-health", fabric.cable(link), fabric.health(link, "DOWN", text=evil, candidates=[evil])),
        ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 9e4}})),
        ("fabric.contention", link, fabric.contention(link, text=evil, jobs=[evil])),
        ("fabric.alerts", alert["alert_id"], alert),
    )
    for tab, test in (("fabric", "trouble"), ("contention", "window-text"), ("alerts", "alert-title")):
        show(tab)
        until(f"shown on {tab}", lambda test=test: "<img src=x" in browser.text(test))
    show("fabric")
    until("its row", lambda: "<img src=x" in browser.text("trouble"))
    plan = "return document.querySelector('[data-testid=fabric]')?.ft?.drawer?.plan != null"
    until("its map", lambda: browser.js(plan))
    html = browser.js(
        "const d = document.querySelector('[data-testid=fabric]').ft.drawer;"
        "const e = document.createElement('div');"
        "d.plan.cables.forEach((_, k) => { e.innerHTML += d.tip({kind: 'cable', k}); });"
        "d.plan.nodes.forEach((_, k) => { e.innerHTML += d.tip({kind: 'node', k}); });"
        "d.plan.nics.forEach((_, k) => { e.innerHTML += d.tip({kind: 'nic', k}); });"
        "document.body.append(e); return e.querySelectorAll('img').length"
    )
    assert html == 0
    click_row(browser, "trouble", "src=x")
    until("its panel", lambda: "<img src=x" in browser.text("link-text"))
    until("what is about it", lambda: "<img src=x" in browser.text("notes"))
    assert browser.js("return window.hacked ?? null") is None
