"""The tab Now and the search field in Chromium, on a page that reads a real log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fabrictime.evidence import FreshEvidence
from tests.fabrictime.job_records import JobRecords
from tests.fabrictime.web.processes import calm

pytestmark = pytest.mark.chromium

S = 1_000_000_000


@pytest.fixture
def show(
    log_address: str, browser: Any, shared_server: Any, start_page: Callable[..., Any]
) -> Callable[..., Any]:
    """Opens an address of one page."""
    pages: list[Any] = []

    def opened(path: str = "now", **window: Any) -> Any:
        if not pages:
            pages.append(start_page(shared_server, kafka={"bootstrap": log_address}))
        browser.open(f"{pages[0].url}{path}", **window)
        return pages[0]

    return opened


@pytest.fixture
def evidence(log_address: str) -> Iterator[FreshEvidence]:
    with FreshEvidence(log_address) as running:
        yield running


def publish_incident(fabric: Any) -> str:
    """A link loses packets and slows a job; two of its flows were moved, one failed. Return the link."""
    link = fabric.up("leaf1", 1)
    cable = fabric.cable(link)
    text = "leaf1 to spine1 loses 20% of its packets since 12:03:11"
    health = fabric.health(link, "GREY", links=[link], loss_rate=0.2, text=text)
    alert = fabric.alert(cable, text, kind="LINK_GREY", severity="WARNING", links=[link], jobs=["llama"])
    job = JobRecords(fabric)
    blamed = {"subject": link, "links": [link], "verdict": "GREY_LINK", "text": f"{link} loses packets"}
    fabric.publish(
        *((topic, key, record) for topic, key, record in fabric.fleet()),
        ("fabric.config", "*", fabric.config()),
        ("fabric.link-health", cable, health),
        ("fabric.alerts", alert["alert_id"], alert),
        ("fabric.diagnoses", "llama", job.diagnosis(1, fabric.now_ns, slow=0, **blamed)),
    )
    for number in range(3):
        decision = fabric.decision(
            number, fabric.flow(number, "h1/eth1", "h5/eth1"), f"{cable}/1", kind="GREY"
        )
        outcome = "FAILED" if number == 2 else "APPLIED"
        fabric.publish(
            ("fabric.decisions", "h1", decision), ("fabric.actions", "h1", fabric.action(decision, outcome))
        )
    return str(link)


def press(browser: Any, *keys: str) -> None:
    """Type keys into the page."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser.driver).send_keys(*keys).perform()


def below_the_fold(browser: Any) -> list[str]:
    """Return the parts of the page that do not fit on the first screen, or are wider than it."""
    return list(
        browser.js(
            "return [...document.querySelectorAll('.ft-card, .ft-health-line, .ft-top')]"
            ".filter((e) => { const b = e.getBoundingClientRect();"
            " return b.bottom > innerHeight || b.right > innerWidth || b.left < 0; }).map((e) => e.className)"
        )
    )


def test_before_the_first_agent_the_page_names_the_next_step(show: Any, browser: Any, until: Any) -> None:
    page = show()
    sentence = "Nothing is measured yet: no NIC has announced itself."
    until("the sentence", lambda: browser.text("health-sentence") == sentence)
    assert browser.text("incidents-empty").startswith("Start the agent on your hosts")
    until("no link", lambda: "no cable is measured yet" in browser.text("worst-now"))
    assert below_the_fold(browser) == []
    calm(browser, page)


def test_a_healthy_fleet_then_late_evidence(
    records: Any, log_address: str, show: Any, browser: Any, until: Any
) -> None:
    fabric = records(log_address)
    up = [
        ("fabric.link-health", fabric.cable(link), fabric.health(link, "UP")) for link in fabric.links()[::2]
    ]
    fabric.publish(*fabric.fleet(), *up)
    with FreshEvidence(log_address):
        page = show()
        sentence = "Nothing is wrong: 24 cables UP, 8 NICs on 8 hosts, no active alert."
        until("healthy", lambda: browser.text("health-sentence") == sentence)
        assert browser.text("health-consequence") == ""
        assert browser.text("incidents-empty") == "Nothing."
        until("no bad link", lambda: "24 cables UP" in browser.text("worst-now"))
    until("not known", lambda: browser.text("health-sentence") == "Health is not known now.")
    until(
        "old", lambda: browser.text("health-consequence").startswith("Links, alerts, delays and clocks are")
    )
    assert "no fresh probe results" in browser.text("health-cause").lower()
    assert browser.text("incidents-empty") == "No problem was active in the last known state."
    assert "24 cables UP" not in browser.text("worst-now")
    calm(browser, page)


def test_an_incident_is_named_and_leads_to_its_link(
    records: Any, log_address: str, evidence: Any, show: Any, browser: Any, until: Any
) -> None:
    fabric = records(log_address)
    publish_incident(fabric)
    page = show(width=1440, height=900)
    sentence = "1 problem: link loses packets at leaf1:swp3 ⇄ spine1:swp1, job llama."
    until("the sentence", lambda: browser.text("health-sentence") == sentence)
    until("all actions", lambda: "3 actions on 1 fault" in browser.text("last-actions-note"))
    for expected in (
        "WARNING",
        "same cause: job llama, grey link",
        "Clean or replace the optics",
        "runbook link-grey",
    ):
        until(expected, lambda expected=expected: expected in browser.text("incidents"))
    until("the actions", lambda: "2 flows moved, 1 failed, within 12.0 ms" in browser.text("incidents"))
    assert "1.5 times its baseline" in browser.text("slow-jobs")
    assert "loss at leaf1:swp3 ⇄ spine1:swp1" in browser.text("last-actions")
    assert below_the_fold(browser) == []
    browser.js("document.querySelector('[data-testid=incidents] a').click()")
    until("the link", lambda: browser.text("link-title") == "leaf1:swp3 ⇄ spine1:swp1")
    calm(browser, page)


def test_a_phone_needs_no_scrolling_to_the_side(
    records: Any, log_address: str, evidence: Any, show: Any, browser: Any, until: Any
) -> None:
    publish_incident(records(log_address))
    page = show(width=390, height=844)
    until("the incident", lambda: "Clean or replace" in browser.text("incidents"))
    assert browser.js("return document.documentElement.scrollWidth") <= 390
    calm(browser, page)


def test_the_first_page_is_now_and_choices_of_delays_stay(
    records: Any, log_address: str, show: Any, browser: Any, until: Any
) -> None:
    page = show("")
    until("the sentence", lambda: browser.text("health-sentence"))
    show("?nic=h1/eth1&peer=h2/eth1")
    until("the tab Delays", lambda: browser.js("return !!document.querySelector('[data-testid=heat]')"))
    calm(browser, page)


def test_search_by_keyboard_opens_an_object(
    records: Any, log_address: str, evidence: Any, show: Any, browser: Any, until: Any
) -> None:
    from selenium.webdriver.common.keys import Keys

    fabric = records(log_address)
    publish_incident(fabric)
    page = show()
    until("the fleet", lambda: "leaf1" in browser.text("health-sentence"))
    press(browser, "/", "leaf1")
    until("the switch", lambda: browser.text("search-results").startswith("switches\nleaf1"))
    until("no other switch", lambda: "leaf2" not in browser.text("search-results"))
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    row = "return document.querySelector('[data-testid=search-results] [aria-selected=true]').innerText"
    assert "leaf1:swp3 ⇄ spine1:swp1" in browser.js(row)
    press(browser, Keys.ENTER)
    until("the link", lambda: browser.text("link-title") == "leaf1:swp3 ⇄ spine1:swp1")
    press(browser, "/", "llam", Keys.ENTER)  # Enter before the results are there
    until("the job", lambda: browser.js("return location.pathname + location.search") == "/jobs?job=llama")
    until("the search field", lambda: browser.js("return !!document.querySelector('[data-testid=search]')"))
    press(browser, "/", "nosuch")
    until("no result", lambda: browser.text("search-results").startswith("No host, NIC, link, job"))
    press(browser, Keys.ESCAPE)
    assert browser.text("search-results") == ""
    calm(browser, page)


def test_names_from_the_network_are_text(
    records: Any, log_address: str, evidence: Any, show: Any, browser: Any, until: Any
) -> None:
    fabric = records(log_address)
    evil = "<img src=x onerror=window.ran=1>"
    alert = fabric.alert("h1", evil, kind="HOST_DOWN", jobs=[evil])
    fabric.publish(*fabric.fleet(peers=1), ("fabric.alerts", alert["alert_id"], alert))
    page = show()
    until("the alert", lambda: evil in browser.text("incidents"))
    press(browser, "/", "<img")
    until("the result", lambda: evil in browser.text("search-results"))
    assert browser.js("return window.ran") is None
    assert browser.js("return document.querySelectorAll('img').length") == 0
    calm(browser, page)


def test_a_thousand_nics_fit_on_the_first_screen(
    records: Any, log_address: str, evidence: Any, show: Any, browser: Any, until: Any
) -> None:
    large = records(log_address, hosts=1_024, leaves=32, spines=8)
    down = [large.up(f"leaf{k}", 3) for k in (1, 2, 5, 7)]
    alerts = [large.alert(large.cable(link), f"{link} is down", links=[link]) for link in down]
    slow_hosts = [f"h{k}" for k in range(20, 29)]
    alerts += [large.alert(h, f"{h} is late", kind="AGENT", severity="WARNING") for h in slow_hosts]
    large.publish(*large.fleet(peers=2), *(("fabric.alerts", alert["alert_id"], alert) for alert in alerts))
    page = show(width=1440, height=900)
    sentence = "2 problems: link down at 4 links of spine3; prober in trouble at h20, h21, h22 and 6 more."
    until("two incidents", lambda: browser.text("health-sentence") == sentence)
    assert below_the_fold(browser) == []
    press(browser, "/", "h1000")
    until("the host", lambda: browser.text("search-results").startswith("hosts\nh1000\n1 NIC"))
    calm(browser, page)
