"""The Audit tab in Chromium: hosts, checks, results and findings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.web.tabs.audit.view import AuditChoice
from tests.fabrictime.audit.fleets import F, P, finding, fleet, result
from tests.fabrictime.web.processes import calm

S = 1_000_000_000


def test_choices_of_an_address() -> None:
    choice = AuditChoice.parse({"run": "r1", "host": "h1", "check": ""})
    assert choice == AuditChoice("r1", "", "h1", None)
    assert choice.address() == "run=r1&host=h1"
    assert AuditChoice().address() == ""


@pytest.fixture
def history(shared_server: Any) -> Any:
    """A writer on tables without a row."""
    writer = shared_server.writer()
    writer.create()
    writer.empty()
    return writer


@pytest.fixture
def show(
    shared_server: Any, history: Any, browser: Any, start_page: Callable[..., Any]
) -> Callable[..., Any]:
    """Opens the audit's page on this test's database."""

    def opened(query: str = "") -> Any:
        page = start_page(shared_server)
        browser.open(f"{page.url}audit{query}")
        return page

    return opened


def put(history: Any, hosts: int) -> None:
    now_ns = time.time_ns() // S * S
    findings = [finding("9000", P, "eth0"), finding("1500, others 9000", F, "eth1")]
    detailed = result(
        "backend.mtu", "node020", F, "eth1: 1500", findings=findings, checked_ns=now_ns + 1, run="r2"
    )
    some = (each for each in fleet(hosts) if hosts <= 64 or each["category"] == "BACKEND")
    history.audits(each | {"checked_ns": now_ns} for each in some)
    if hosts >= 20:
        history.audits([detailed])


def click(browser: Any, selector: str, expected: str) -> None:
    browser.js(
        "[...document.querySelectorAll(arguments[0])]"
        ".find((e) => e.innerText.includes(arguments[1])).click()",
        selector,
        expected,
    )


@pytest.mark.chromium
def test_without_an_audit_the_tab_names_the_command(show: Any, browser: Any, until: Any) -> None:
    page = show()
    until("said", lambda: browser.text("hint").startswith("No audit yet."))
    assert browser.text("checks-empty") == "Nothing is checked yet."
    calm(browser, page)


@pytest.mark.chromium
def test_from_the_fleet_to_a_host_a_check_and_its_findings(
    history: Any, show: Any, browser: Any, until: Any
) -> None:
    put(history, 64)
    page = show()
    until("the hosts", lambda: "node064" in browser.text("hosts"))
    assert browser.text("hint") == "7 of 64 hosts not fit. Choose a host or a check."
    assert browser.text("kpi-errors").split("\n") == ["errors", "7", "in 3 checks"]
    assert "RDMA interfaces of like cards have the same MTU" in browser.text("checks")
    click(browser, "[data-testid=hosts] a", "node020")
    until("its checks", lambda: "eth1: 1500" in browser.text("results"))
    assert browser.text("chosen-title") == "node020"
    assert "host=node020" in browser.driver.current_url
    click(browser, "[data-testid=results] tr", "same MTU")
    until("its findings", lambda: "1500, others 9000" in browser.text("findings"))
    assert browser.text("remedy").startswith("monitor: ip link set dev INTERFACE mtu MTU")
    assert "r2" in browser.text("figures")
    click(browser, "[data-testid=back]", "all hosts")
    until("the hint", lambda: browser.text("hint") != "")
    click(browser, "[data-testid=checks] tr", "NUMA balancing is off")
    until("its hosts", lambda: "node063" in browser.text("results"))
    assert browser.text("results-title") == "Did not pass on 21 hosts"
    click(browser, "[data-testid=runs] button", "hosts")
    until("one run", lambda: "run=" in browser.driver.current_url)
    calm(browser, page)


@pytest.mark.chromium
def test_one_host_and_a_thousand(history: Any, show: Any, browser: Any, until: Any) -> None:
    put(history, 1)
    page = show()
    until("one host", lambda: browser.text("hosts") == "node001")
    assert browser.text("checks-empty") == "All checks passed."
    put(history, 1000)
    count = "return document.querySelectorAll('[data-testid=hosts] a').length"
    until("a thousand", lambda: browser.js(count) == 1000)
    click(browser, "[data-testid=categories] button", "Back-end network")
    errors = "return document.querySelectorAll('[data-testid=hosts] .ft-error').length"
    until("errors of the category", lambda: browser.js(errors) == 29)
    calm(browser, page)
