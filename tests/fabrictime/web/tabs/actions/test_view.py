"""The Actions tab in Chromium, on a page that reads a real log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.fabrictime.evidence import FreshEvidence
from tests.fabrictime.web.processes import calm

pytestmark = pytest.mark.chromium

S = 1_000_000_000


@pytest.fixture
def fabric(records: Any, log_address: str) -> Any:
    """Eight NICs under four leaves and four spines, announced and traced."""
    made = records(log_address)
    made.publish(*made.fleet())
    with FreshEvidence(log_address):
        yield made


@pytest.fixture
def show(fabric: Any, browser: Any, shared_server: Any, start_page: Callable[..., Any]) -> Callable[..., Any]:
    """Opens the tab of one page."""
    pages: list[Any] = []

    def opened(query: str = "") -> Any:
        if not pages:
            pages.append(start_page(shared_server, kafka={"bootstrap": fabric.bootstrap}))
        browser.open(f"{pages[0].url}actions{query}")
        return pages[0]

    return opened


def click_row(browser: Any, test: str, expected: str) -> None:
    browser.js(
        "[...document.querySelectorAll(`[data-testid=${arguments[0]}] tbody tr`)]"
        ".find((r) => r.innerText.includes(arguments[1])).click()",
        test,
        expected,
    )


def report(fabric: Any, flow: dict[str, Any], number: int, **more: Any) -> None:
    """The flow's host reports it, as of an interval of 20 ms that ends now."""
    host = flow["flow_id"].partition("/")[0]
    reported = {**flow, "interval_ns": 20_000_000, **more}
    fabric.publish(("fabric.flows", host, fabric.flows(host, [reported], report=number)))


def test_an_empty_tab_shows_the_mode_and_missing_inputs(show: Any, browser: Any, until: Any) -> None:
    page = show()
    until(
        "no decision", lambda: browser.text("actions-empty").startswith("No decision yet: the policy decides")
    )
    until("not known", lambda: "No policy cycle yet" in browser.text("suppressed-empty"))
    assert "not known" in browser.text("kpi-suppressed")
    assert browser.text("mode") == "OBSERVE: decisions are only published; the default"
    assert "OBSERVE" in browser.text("kpi-mode")
    until("nothing is paced", lambda: browser.text("paced-note") == "No flow is paced.")
    calm(browser, page)


def test_a_move_shows_cause_action_and_effect(fabric: Any, show: Any, browser: Any, until: Any) -> None:
    page = show()
    link = fabric.up("leaf1", 1)
    flow = fabric.flow(17, "h1/eth1", "h5/eth1", spine=1)
    until("the tab listens", lambda: browser.text("actions-empty"))
    fabric.publish(
        (
            "fabric.config",
            "*",
            fabric.config(slices=[{"tenant": "red", "guarantee_bps": 10**8, "ceiling_bps": 10**9}]),
        )
    )
    until(
        "the mode", lambda: browser.text("mode").startswith("ACT: decisions are carried out; set by ann@ops")
    )
    flow |= {"tenant": "red", "rtt_ns": 900_000, "rate_bps": 2e7, "rate_limit_bps": 5 * 10**8}
    report(fabric, flow, 1)
    time_ns = time.time_ns
    subject = fabric.cable(link)
    alert = fabric.alert(subject, "leaf1 to spine1 is DOWN", links=[link])
    fabric.publish(
        ("fabric.link-health", subject, fabric.health(link, "DOWN")),
        ("fabric.alerts", alert["alert_id"], alert),
    )
    decision = fabric.decision(3, flow, f"{subject}/1", at_ns=time_ns())
    fabric.publish(("fabric.decisions", "h1", decision))
    until("it waits", lambda: "waiting" in browser.text("actions"))
    done = fabric.action(decision)
    fabric.publish(("fabric.actions", "h1", done))
    until("done", lambda: "done" in browser.text("actions"))
    until("its time has passed", lambda: time_ns() > done["at_ns"] + 30_000_000)
    after = {
        "rate_bps": 6.4e8,
        "rtt_ns": 80_000,
        "source_port": flow["source_port"] + 1,
        "links": fabric.hops("h1/eth1", "h5/eth1", 2),
    }
    report(fabric, flow, 2, **after)
    until("its effect", lambda: "20.0 Mbit/s → 640 Mbit/s" in browser.text("actions"))
    row = browser.text("actions")
    for expected in ("h1 sock:17", "is down", "move, port 50017 → 50018", "12.0 ms", "900 µs → 80.0 µs"):
        assert expected in row
    until("its figures", lambda: "3.00 ms of it SOCKET" in browser.text("action-figures"))
    assert "leaf1:swp3 → spine1:swp1" in browser.text("action-figures")
    assert browser.text("action-title") == "h1 sock:17"
    frame = until("its picture", lambda: browser.last("flow-history"))
    until("both reports", lambda: [x for x in browser.last("flow-history")["rate"] if x] == [2e7, 6.4e8])
    assert [mark[1:4:2] for mark in frame["marks"]] == [["DOWN", "APPLIED"]]
    until(
        "the pace",
        lambda: "limit" in browser.text("paced").lower() and "500 Mbit/s" in browser.text("paced"),
    )
    until("the slice", lambda: "red" in browser.text("slices") and "100 Mbit/s" in browser.text("slices"))
    assert "1 of" in browser.text("limits")
    links = browser.js(
        "return [...document.querySelectorAll('[data-testid=action-links] a')].map((a) => a.innerText)"
    )
    assert links[:2] == ["leaf1:swp3 ⇄ spine1:swp1 in the fabric", "alert: leaf1 to spine1 is DOWN"]
    browser.js("document.querySelector('[data-testid=action-links] a').click()")
    until("its link", lambda: browser.text("link-title") == "leaf1:swp3 ⇄ spine1:swp1")
    calm(browser, page)


def test_suppressed_actions_are_shown_until_they_end(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    page = show()
    flow = fabric.flow(4, "h2/eth1", "h6/eth1")
    window = fabric.contention(fabric.up("leaf1", 1))["window_id"]
    fabric.publish(
        ("fabric.config", "*", fabric.config(mode="OBSERVE")),
        ("fabric.config", "h2", fabric.config(host="h2", mode="ACT")),
        (
            "fabric.policy-cycles",
            "fabric",
            fabric.rounds(0, [(flow["flow_id"], "REROUTE", "PROTECTED", window)]),
        ),
    )
    until("suppressed", lambda: "the job is protected (protected_jobs)" in browser.text("suppressed"))
    assert "a queue persists at leaf1:swp3 → spine1:swp1" in browser.text("suppressed")
    until("counted", lambda: "1" in browser.text("kpi-suppressed"))
    until("the mode", lambda: "Exceptions (ACT): h2" in browser.text("mode"))
    fabric.publish(("fabric.policy-cycles", "fabric", fabric.rounds(1, None, at_ns=time.time_ns())))
    fabric.publish(("fabric.policy-cycles", "fabric", fabric.rounds(2, [], at_ns=time.time_ns())))
    until("no more", lambda: browser.text("suppressed-empty") == "Nothing is suppressed.")
    calm(browser, page)


def test_a_thousand_decisions_are_listed_newest_first_and_found_by_flow(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    begin = time.time_ns() - 120 * S
    made = []
    for k in range(1_000):
        nic = fabric.nics[k % 8]
        flow = fabric.flow(10_000 + k, nic, fabric.nics[(k + 4) % 8])
        decision = fabric.decision(
            k,
            flow,
            fabric.contention(fabric.up("leaf2" if k % 100 == 7 else "leaf1", 1))["window_id"],
            kind="COLLISION",
            at_ns=begin + k * S // 10,
        )
        made.append(("fabric.decisions", decision["host"], decision))
        if k % 2:
            outcome = "APPLIED" if k % 4 == 1 else "LIMITED"
            made.append(("fabric.actions", decision["host"], fabric.action(decision, outcome)))
    fabric.publish(*made)
    page = show()
    until("all", lambda: "1,000" in browser.text("kpi-decided"))
    until("counted", lambda: browser.text("actions-note").startswith("250 done, 250 limited"))
    assert "the newest 250 of 1,000 are listed" in browser.text("actions-note")
    first = "return document.querySelector('[data-testid=actions] tbody tr')?.innerText ?? ''"
    until("the newest first", lambda: "sock:10999" in browser.js(first))
    assert browser.text("faults-note").startswith("1,000 actions on 2 faults")
    click_row(browser, "faults", "leaf2")
    until("one fault", lambda: browser.text("actions-note") == "10 limited")
    click_row(browser, "faults", "leaf2")
    until("all again", lambda: browser.text("actions-note").startswith("250 done, 250 limited"))
    browser.toggle("listed", "done")
    until("done alone", lambda: browser.text("actions-note") == "250 done")
    flow_id = fabric.flow(10_500, fabric.nics[500 % 8], "h1/eth1")["flow_id"]
    show(f"?flow={quote(flow_id, safe='')}")
    until("one", lambda: browser.text("actions-note") == "1 unanswered")
    until("its flow", lambda: browser.text("action-title").endswith("sock:10500"))
    assert browser.text("flow-history-empty").startswith("No reports of this flow in this span")
    until("why not", lambda: "no actuator answered" in browser.text("action-figures"))
    calm(browser, page)


def test_a_flow_without_decisions_is_recorded_while_it_is_shown(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    flow = fabric.flow(9, "h3/eth1", "h7/eth1", rtt_ns=50_000)
    page = show(f"?flow={quote(flow['flow_id'], safe='')}")
    until(
        "nothing of it",
        lambda: "no reports or decisions of exactly one such flow" in browser.text("action-nothing"),
    )
    report(fabric, flow, 1)
    until("found", lambda: browser.text("action-title") == "h3 sock:9")
    report(fabric, flow, 2)
    until("two reports", lambda: len((browser.last("flow-history") or {"t": []})["t"]) == 2)
    assert browser.text("actions-empty") == "No decision about this flow within the last hour."
    calm(browser, page)


def test_names_from_the_network_are_shown_and_never_run(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    node = "<img\tsrc=x\tonerror=window.hacked=1\t"
    flow = fabric.flow(1, "h1/eth1", "h5/eth1")
    flow["flow_id"] = f"h1/boot/sock:{node}>"
    suppressed = (flow["flow_id"], "REROUTE", "NO_BETTER_PATH", flow["flow_id"])
    decision = fabric.decision(0, flow, f"{node}>/1", text=f"{node}>", at_ns=time.time_ns())
    fabric.publish(
        ("fabric.config", "*", fabric.config(by=f"{node}>")),
        ("fabric.decisions", "h1", decision),
        ("fabric.actions", "h1", fabric.action(decision, detail=f"{node}>")),
        ("fabric.policy-cycles", "fabric", fabric.rounds(0, [suppressed])),
    )
    page = show()
    until("shown", lambda: "<img src=x" in browser.text("action-text"))
    until("suppressed", lambda: "<img src=x" in browser.text("suppressed"))
    until("the mode", lambda: "<img src=x" in browser.text("mode"))
    assert browser.js("return window.hacked ?? null") is None
    calm(browser, page)


def test_decisions_of_one_fault_differ_and_begin_on_the_first_screen_of_a_phone(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    for number in range(8):
        subject = fabric.cable(fabric.links()[2 * number])
        decision = fabric.decision(number, fabric.flow(number, "h1/eth1", "h5/eth1"), f"{subject}/1")
        fabric.publish(("fabric.decisions", "h1", decision))
    again = {**fabric.flow(9, "h1/eth1", "h6/eth1"), "source_port": decision["from_path"]}
    decision = fabric.decision(9, again, f"{subject}/1")
    fabric.publish(("fabric.decisions", "h1", decision))
    page = show()
    until("the decisions", lambda: "9 actions on 8 faults" in browser.text("faults-note"))
    browser.open(f"{page.url}actions", width=390, height=844)
    until("on a phone", lambda: "h1/eth1 to h6/eth1" in browser.text("actions"))
    top, bottom, first, second = browser.js(
        "const [a, b] = document.querySelectorAll('[data-testid=actions] tbody tr');"
        "const box = a.getBoundingClientRect(); return [box.top, box.bottom, a.innerText, b.innerText]"
    )
    assert 0 < top < bottom <= 844
    assert first != second
    assert browser.js("return document.documentElement.scrollWidth") <= 390
    assert browser.errors() == []
