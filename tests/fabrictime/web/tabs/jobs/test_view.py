"""The Jobs tab in Chromium: from a slow iteration to the link in three clicks, and down to queue pairs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.web.tabs.jobs.view import JobsChoice
from tests.fabrictime.evidence import FreshEvidence
from tests.fabrictime.job_records import INTERVAL_NS, JobRecords
from tests.fabrictime.web.processes import calm

S = 1_000_000_000


def test_choices_of_an_address() -> None:
    choice = JobsChoice.parse(
        {"job": "llama", "interval": "1-2", "rank": "3", "span": "300", "ranks": "map", "metric": "data"}
    )
    assert choice == JobsChoice("llama", "1-2", 3, None, None, 300, "map", metric="data")
    assert choice.address() == "job=llama&interval=1-2&rank=3&span=300&ranks=map&metric=data"
    assert JobsChoice.parse({"rank": "x", "span": "7", "ranks": "pie", "sort": "job", "flow": ""}) == (
        JobsChoice()
    )


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

    def opened(query: str = "", **size: int) -> Any:
        if not pages:
            pages.append(start_page(shared_server, kafka={"bootstrap": fabric.bootstrap}))
        browser.open(f"{pages[0].url}jobs{query}", **size)
        return pages[0]

    return opened


def publish(made: JobRecords, count: int = 24, slow_from: int = 16) -> list[Any]:
    """Publish a job's last two minutes; in the last intervals the flow of rank 2 is slow."""
    now = time.time_ns()
    records = [
        made.diagnosis(k, now - (count - 1 - k) * INTERVAL_NS, 2 if k >= slow_from else None)
        for k in range(count)
    ]
    made.fabric.publish(*(("fabric.diagnoses", made.job, record) for record in records))
    return records


def click_row(browser: Any, test: str, expected: str) -> None:
    browser.js(
        "[...document.querySelectorAll(`[data-testid=${arguments[0]}] tbody tr`)]"
        ".find((r) => r.innerText.includes(arguments[1])).click()",
        test,
        expected,
    )


def click_at(browser: Any, test: str, spot: str) -> None:
    """Click a chart with the mouse where the JavaScript expression `spot` of its element `e` lies."""
    from selenium.webdriver.common.action_chains import ActionChains

    x, y = browser.js(
        "const e = document.querySelector(`[data-testid=${arguments[0]}]`);"
        "e.scrollIntoView({block: 'center'});"
        "const c = e.querySelector('canvas'), b = c.getBoundingClientRect();"
        f"const p = {spot}; return [b.left + p[0], b.top + p[1]]",
        test,
    )
    chain = ActionChains(browser.driver)
    chain.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    chain.click()
    chain.perform()


@pytest.mark.chromium
def test_without_a_job_the_tab_names_the_profilers(show: Any, browser: Any, until: Any) -> None:
    page = show()
    until("said", lambda: browser.text("jobs-empty").startswith("No job yet. Load a profiler into a job"))
    assert "FABRICTIME_COLLECTIVES" in browser.text("export")
    assert browser.text("job") == ""
    show("?job=gone")
    until("unknown", lambda: browser.text("job-text").startswith("No diagnosis of this job"))
    calm(browser, page)


@pytest.mark.chromium
def test_three_clicks_lead_from_a_slow_iteration_to_its_link(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    made = JobRecords(fabric)
    page = show("?job=llama")
    publish(JobRecords(fabric, "calm-job", ranks=2, seed=3), slow_from=99)
    records = publish(made)
    until("both jobs", lambda: "calm-job" in browser.text("jobs"))
    until("its verdict", lambda: browser.text("job-verdict") == "slow flow")
    assert "94 µs, others 4 µs" in browser.text("job-text")
    assert browser.text("job-remedy").startswith("Remedy: move the flow")
    until("all intervals", lambda: len((browser.last("iterations") or {"keys": []})["keys"]) == 24)
    frame = browser.last("iterations")
    assert [mark[2] for mark in frame["marks"]] == ["network"]
    until("drawn", lambda: browser.frames("rank-bars") > 0)

    middle = (frame["begin"][18] + frame["end"][18]) // 2
    click_at(browser, "iterations", f"[e.ft.chart.convertToPixel({{xAxisIndex: 0}}, {middle}), 120]")
    until("its interval", lambda: frame["keys"][18] in browser.driver.current_url)
    until("pinned", lambda: browser.text("interval-note").startswith("all parts below show"))
    until("its ranks", lambda: ((browser.last("rank-bars") or {}).get("ranks") or [[9]])[0][0] == 2)
    click_at(
        browser, "rank-bars", "[e.ft.chart.getWidth() / 2, e.ft.chart.convertToPixel({yAxisIndex: 0}, 0)]"
    )
    until("the rank", lambda: browser.text("rank-title") == "Rank 2 on h3")
    until("its flow", lambda: browser.text("flow-title") == "h3/eth1 → h4/eth1")
    link = made.slow_link(2)
    assert link in records[18]["links"]
    near, far = link.split(">")
    assert f"{near} → {far}" in browser.text("flow-links")
    browser.js(
        "[...document.querySelectorAll('[data-testid=flow-links] a')]"
        ".find((a) => a.innerText.includes(arguments[0])).click()",
        near,
    )
    until("the fabric", lambda: "/fabric" in browser.driver.current_url)
    until("its link", lambda: near in browser.text("link-title"))
    until("its job", lambda: browser.text("job-chip") == "llama: stop showing")
    until("the way back", lambda: "open the job" in browser.text("to-job"))
    browser.js("document.querySelector('[data-testid=to-job] a').click()")
    until("back", lambda: browser.text("job-title") == "llama")
    calm(browser, page)


@pytest.mark.chromium
def test_from_the_rack_to_a_nic_its_queue_pairs_and_the_job(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    made = JobRecords(fabric)
    publish(made, count=3, slow_from=1)
    page = show()
    until("listed", lambda: "llama" in browser.text("jobs"))
    browser.open(f"{page.url}fabric?rack=r2")
    until("the rack", lambda: browser.text("node-title") == "Rack r2")
    until("its NICs", lambda: "h3/eth1" in browser.text("node-table"))
    click_row(browser, "node-table", "h3/eth1")
    until("its cable", lambda: "h3:eth1" in browser.text("link-title"))
    browser.js("document.querySelector('[data-testid=link-nics] a').click()")
    until("the NIC", lambda: browser.text("nic-title") == "Queue pairs of h3/eth1")
    assert browser.text("nic-place") == "host h3, rack r2, 1.00 Gbit/s"

    def profiled() -> bool:
        """Whether the newest batch is shown; the process publishes one after the other, as in a job."""
        batch = made.batch(2, time.monotonic_ns() // 1_000_000, time.time_ns())
        fabric.publish(("fabric.collectives", "llama", batch))
        return "1.90 ms" in browser.text("queue-pairs")

    until("its queue pairs", profiled)
    assert browser.text("nic-counters") == "1,204 CNPs received"
    click_row(browser, "queue-pairs", "202")
    until("the job", lambda: browser.text("job-title") == "llama")
    calm(browser, page)


@pytest.mark.chromium
@pytest.mark.slow("draws a thousand ranks")
def test_a_thousand_ranks_and_256_nics_stay_fluid(
    records: Any, log_address: str, browser: Any, shared_server: Any, start_page: Any, until: Any
) -> None:
    fabric = records(log_address, hosts=32, nics=8)
    publish(JobRecords(fabric, ranks=1_000), count=2, slow_from=1)
    page = start_page(shared_server, kafka={"bootstrap": log_address})
    browser.open(f"{page.url}jobs?job=llama&ranks=map&flows=matrix")
    until("all ranks", lambda: len((browser.last("rank-map") or {"ranks": []})["ranks"]) == 1_000)
    until("all NICs", lambda: len((browser.last("matrix") or {"names": []})["names"]) == 256)
    draw_ms = browser.js(
        "const d = document.querySelector('[data-testid=matrix]').ft.drawer;"
        "d.levels = d.levels.map((_, i) => 1 + (i % 255)); d.color();"
        "return Array.from({length: 20}, (_, k) => {"
        "  const t = performance.now(); d.hovered = [k, k]; d.draw(); return performance.now() - t;"
        "}).sort((a, b) => a - b)[0]"
    )  # the fastest: each does the same work, and a busy machine delays some
    print(f"matrix of 256 NICs, every cell filled: {draw_ms:.1f} ms a frame")
    assert draw_ms < 16
    click_at(browser, "matrix", "e.ft.drawer.spot(2, 3)")
    until("its flow", lambda: browser.text("flow-title") == "h1/eth3 → h1/eth4")
    calm(browser, page)


@pytest.mark.chromium
def test_names_from_the_network_are_shown_and_never_run(
    fabric: Any, show: Any, browser: Any, until: Any
) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    record = JobRecords(fabric, "bad-job").diagnosis(
        1, time.time_ns(), 2, text=evil, remedy=evil, missing=[evil], subject=evil, jobs=[evil]
    )
    fabric.publish(("fabric.diagnoses", "bad-job", record))
    page = show("?job=bad-job")
    until("shown", lambda: browser.text("job-text") == evil)
    until("drawn", lambda: browser.frames("iterations") > 0)
    tips = browser.js(
        "const d = document.querySelector('[data-testid=iterations]').ft.drawer;"
        "const e = document.createElement('div'); e.innerHTML = d.tip([{axisValue: d.last.begin[0]}]);"
        "return e.querySelectorAll('img').length"
    )
    assert tips == 0
    assert browser.js("return window.hacked ?? null") is None
    calm(browser, page)
