"""The Delays tab in Chromium, on a real history server with known rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.chromium

S = 1_000_000_000
NICS = ("h1/eth0", "h1/eth1", "h2/eth0", "h2/eth1")


def fill(
    writer: Any, start_ns: int, nics: tuple[str, ...] = NICS, **special: dict[int, dict[str, Any]]
) -> None:
    """One window of a small fleet: every NIC probes the others on paths 1 and 2."""
    pairs = {
        (nic, peer): special.get(f"{nic}>{peer}", {1: {}, 2: {}})
        for nic in nics
        for peer in nics
        if nic != peer
    }
    hosts = sorted({nic.split("/")[0] for nic in nics})
    if pairs:
        writer.delays(start_ns, pairs)
    writer.clocks(start_ns, {f"{host}/system": {"bound_ns": 400.0 + 10 * i} for i, host in enumerate(hosts)})
    writer.pipeline(start_ns, {"fabric.probes/0": {"samples": 5_000 * len(nics)}})
    writer.nic_windows(start_ns, {nic: {} for nic in nics})


def now_ns() -> int:
    return time.time_ns() // S * S


@pytest.fixture
def small(shared_server: Any) -> Any:
    """A writer on tables without a row."""
    writer = shared_server.writer()
    writer.create()
    writer.empty()
    return writer


@pytest.fixture
def show(shared_server: Any, small: Any, browser: Any, start_page: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a page on this test's database."""

    def opened(query: str = "", **settings: Any) -> Any:
        page = start_page(shared_server, **settings)
        browser.open(page.url + query)
        return page

    return opened


def test_the_heat_map_shows_a_known_pair_and_a_click_opens_its_series(
    small: Any, show: Any, browser: Any, until: Any
) -> None:
    start = now_ns() - 12 * S
    small.nics({nic: {} for nic in NICS}, start)
    slow = {1: {"forward_p50_ns": 65_536.0, "lost": 10}, 2: {"forward_p50_ns": 65_536.0}}
    for second in range(12):
        fill(small, start + second * S, **{"h1/eth1>h2/eth0": slow})
    show("?metric=p50")
    cell = until("the cell is drawn", lambda: browser.cell("h1/eth1", "h2/eth0"))
    assert cell["p50"] == pytest.approx(65_536 * 1.125, rel=1e-3)  # the middle of its bucket
    assert cell["p99"] == pytest.approx(65_536 * 1.2475, rel=1e-3)
    assert (cell["lost"], cell["count"], cell["bound"]) == (100, 2_000, 800)
    assert cell["drawn"] == pytest.approx(4.8676, abs=1e-3)  # log10 of the value colours it
    assert browser.cell("h1/eth0", "h1/eth0") is None

    browser.hover_cell("h1/eth1", "h2/eth0")
    tip = until(
        "the tooltip",
        lambda: browser.js(
            "return [...document.querySelectorAll('[data-testid=heat] .ft-canvas > div')]"
            ".map((e) => e.innerText).find((t) => t.includes('p50')) || ''"
        ),
    )
    for expected in ("h1/eth1 → h2/eth0", "73.7 µs", "81.8 µs", "± 800 ns", "100 of 2100 (4.8%)"):
        assert expected in tip

    browser.click_cell("h1/eth1", "h2/eth0")
    until("the pair's title", lambda: browser.text("pair-title") == "h1/eth1 → h2/eth0")
    until("the series", lambda: browser.frames("pair") > 0)
    last = browser.js("return document.querySelector('[data-testid=pair]').ft.drawer.last")
    assert last["paths"] == [1, 2]
    assert last["series"]["1"]["forward"]["p50"][-3:] == [65_540] * 3
    assert last["series"]["1"]["forward"]["p99"][-3:] == [131_100] * 3
    assert last["series"]["2"]["reverse"]["p50"][-3:] == [9_000] * 3
    assert last["series"]["1"]["lost"][-3:] == [10] * 3
    assert last["bound"][-1] == 800
    assert "nic=h1%2Feth1" in browser.driver.current_url
    browser.driver.refresh()
    until("a reload opens the same pair", lambda: browser.text("pair-title") == "h1/eth1 → h2/eth0")
    assert browser.errors() == []


def test_metric_direction_and_span_change_the_heat_map(
    small: Any, show: Any, browser: Any, until: Any
) -> None:
    start = now_ns() - 70 * S
    early = {1: {"forward_p50_ns": 1_048_576.0, "lost": 50}}
    late = {1: {"forward_p50_ns": 8_192.0, "reverse_p50_ns": 32_768.0}}
    for second in range(70):
        fill(small, start + second * S, **{"h1/eth0>h2/eth1": early if second < 40 else late})
    show("?metric=p50&span=1")

    def shows(metric: str, value: float) -> None:
        def same() -> bool:
            cell = browser.cell("h1/eth0", "h2/eth1")
            return (
                cell is not None
                and cell["metric"] == metric
                and cell["value"] == pytest.approx(value, rel=2e-3)
            )

        until(f"{metric} {value}", same)

    shows("p50", 8_192 * 1.125)
    browser.toggle("metric", "p99")
    shows("p99", 8_192 * 1.2475)
    browser.toggle("direction", "back")
    shows("p99", 32_768 * 1.2475)
    browser.toggle("direction", "out")
    browser.toggle("span", "1 min")
    shows("p99", 1_048_576 * 1.245)
    browser.toggle("metric", "loss")
    shows("loss", 50 / 150)
    browser.toggle("span", "10 s")
    shows("loss", 0)
    assert browser.errors() == []


def test_an_empty_history_is_reported_and_the_first_window_appears(
    small: Any, show: Any, browser: Any, until: Any
) -> None:
    show()
    until("the banner", lambda: browser.text("banner") == "No probes yet: waiting for the first window.")
    until("no cells", lambda: browser.text("heat-empty") == "Waiting for the first window.")

    def shown(seen: Callable[[], Any]) -> bool:
        fill(small, now_ns() - S)  # the banner returns when the newest window is old
        return bool(seen())

    fill(small, now_ns() - S)
    until("the first cells", lambda: browser.cell("h1/eth0", "h2/eth0"))
    until("no banner", lambda: shown(lambda: browser.text("banner") == ""))
    until("no words", lambda: browser.text("heat-empty") == "")
    until("NICs", lambda: browser.text("kpi-nics").split("\n")[:2] == ["NICs probing", "4"])
    assert browser.errors() == []


def test_a_narrow_window_keeps_the_heat_map(small: Any, show: Any, browser: Any, until: Any) -> None:
    start = now_ns() - 3 * S
    small.nics({nic: {} for nic in NICS}, start)
    for second in range(3):
        fill(small, start + second * S)
    browser.open(show().url, width=900)
    until("the heat map", lambda: browser.frames("heat") > 0)
    assert browser.js("return document.querySelector('[data-testid=heat]').offsetHeight") > 250
    assert browser.js("return document.documentElement.scrollWidth") <= 900


def test_a_single_nic_is_a_row_and_no_error(small: Any, show: Any, browser: Any, until: Any) -> None:
    start = now_ns() - 3 * S
    small.nics({"h1/eth0": {}}, start)
    for second in range(3):
        fill(small, start + second * S, ("h1/eth0",))
    show()
    until("its row", lambda: browser.frames("heat") > 0)
    rows = browser.js("return document.querySelector('[data-testid=heat]').ft.drawer.rows")
    assert [row["text"] for row in rows] == ["h1/eth0"]
    assert rows[0]["silent"]
    until("its clock", lambda: "h1/system" in browser.text("clock-table"))
    assert browser.errors() == []


def test_a_new_window_shows_within_two_seconds(small: Any, show: Any, browser: Any, until: Any) -> None:
    start = now_ns() - 5 * S
    fill(small, start)
    show("?metric=p50&span=1")
    until("the first cells", lambda: browser.cell("h1/eth0", "h2/eth0"))
    took = []
    for second, p50 in enumerate((16_384.0, 131_072.0, 32_768.0), 1):
        fill(small, start + second * S, **{"h1/eth0>h2/eth0": {1: {"forward_p50_ns": p50}}})
        inserted = time.monotonic()
        want = pytest.approx(p50 * 1.125, rel=2e-3)
        until("the new value", lambda want=want: browser.cell("h1/eth0", "h2/eth0")["value"] == want)
        took.append(time.monotonic() - inserted)
    assert sorted(took)[1] < 2.0, took


def test_clocks_show_faults(small: Any, show: Any, browser: Any, until: Any) -> None:
    start = now_ns() - 20 * S
    for second in range(20):
        at = start + second * S
        fill(small, at)
        small.clocks(at, {"h2/system": {"state": "HOLDOVER", "bound_ns": 9_500.0, "offset_ns": -3_000_000}})
    show()
    until("the clock", lambda: "HOLDOVER" in browser.text("clock-table"))
    first = browser.text("clock-table").split("\n")
    row = first[first.index("h2/system") :] if "h2/system" in first else first
    assert "-3.00 ms" in " ".join(row)
    assert "± 9.50 µs" in browser.text("kpi-bound")
    until("clock lines", lambda: browser.frames("clock-chart") > 0)
    names = browser.js(
        "return document.querySelector('[data-testid=clock-chart]').ft.drawer.last.lines.map((l) => l.name)"
    )
    assert names == ["h1/system", "h2/system"]
    assert browser.errors() == []


def test_names_from_the_network_are_shown_and_never_run(
    small: Any, show: Any, browser: Any, until: Any
) -> None:
    evil = "<img/src=x\tonerror=window.hacked=1>"
    start = now_ns() - 2 * S
    fill(small, start, (evil, "h2/eth0"))
    show("?span=1")
    until("its cell", lambda: browser.cell(evil, "h2/eth0"))
    browser.hover_cell(evil, "h2/eth0")
    browser.click_cell(evil, "h2/eth0")
    until("its title", lambda: browser.text("pair-title").startswith("<img/src=x"))
    until("its series", lambda: browser.frames("pair") > 0)
    assert browser.js("return window.hacked ?? null") is None


def test_everything_comes_from_the_page_s_own_server(small: Any, show: Any, browser: Any, until: Any) -> None:
    fill(small, now_ns() - S)
    page = show()
    until("the first cells", lambda: browser.cell("h1/eth0", "h2/eth0"))
    names = browser.js("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert names
    assert [name for name in names if not name.startswith((page.url, page.url.replace("http", "ws")))] == []


@pytest.mark.slow("draws a thousand NICs")
def test_a_thousand_nics_update_without_stutter_and_drill_down_to_a_nic(
    small: Any, show: Any, browser: Any, until: Any
) -> None:
    nics = [f"h{i // 8 + 1}/eth{i % 8}" for i in range(1_000)]
    pairs = {(nic, nics[(i * 37 + k * 101 + 1) % 1_000]) for i, nic in enumerate(nics) for k in range(10)}
    start = now_ns() - 3 * S

    def window(second: int) -> None:
        at = start + second * S
        p50 = 8_192.0 * 2 ** (second % 4)
        small.delays(at, {pair: {1: {"forward_p50_ns": p50}} for pair in pairs})
        small.clocks(at, {f"h{i}/system": {"bound_ns": 400.0 + i} for i in range(1, 126)})

    small.nics({nic: {"rack": f"r{i // 32 + 1}"} for i, nic in enumerate(nics)}, start)
    window(0)
    show("?span=1&metric=p50")
    until("racks", lambda: browser.cell("r1", "r2"))
    browser.js(
        "window.gaps = []; window.updates = []; let was = performance.now();"
        "(function tick(now) { gaps.push(now - was); was = now; requestAnimationFrame(tick); })(was);"
        "new MutationObserver(() => updates.push(performance.now()))"
        ".observe(document.querySelector('[data-testid=heat]'), {attributeFilter: ['data-frames']})"
    )
    for second in range(1, 5):
        window(second)
        value = pytest.approx(8_192.0 * 2 ** (second % 4) * 1.125, rel=2e-3)
        until("the new window", lambda value=value: browser.cell("r1", "r2")["value"] == value, 15)
    updates, gaps = browser.js("return [window.updates, window.gaps]")
    assert len(updates) >= 4
    assert max(gaps) < 700, f"the browser's main thread stood still for {max(gaps):.0f} ms"
    assert "1,000" in browser.text("kpi-nics")
    assert "1-7 of 125" in browser.text("clock-table")
    names = browser.js(
        "return document.querySelector('[data-testid=clock-chart]').ft.drawer.last.lines.map((l) => l.name)"
    )
    assert names == ["widest bound", "p99", "p90", "median"]

    browser.click_cell("r1", "r2")
    nic, peer = sorted(p for p in pairs if nics.index(p[0]) < 32 <= nics.index(p[1]) < 64)[0]
    until("the NICs of the two racks", lambda: browser.cell(nic, peer))
    assert browser.text("scope-back") == "r1 → r2: back to the fleet"
    browser.click_cell(nic, peer)
    until("the pair", lambda: browser.text("pair-title") == f"{nic} → {peer}")
    browser.js("document.querySelector('[data-testid=scope-back]').click()")
    until("racks again", lambda: browser.cell("r1", "r2"))
    assert browser.errors() == []


def test_a_stopped_history_raises_the_banner_and_its_return_clears_it(
    new_server: Any, start_page: Callable[..., Any], browser: Any, until: Any
) -> None:
    writer = new_server.writer()
    writer.create()
    for second in range(3):
        fill(writer, now_ns() - (3 - second) * S)
    page = start_page(
        new_server, stale_after_s=3.0
    )  # as the reader: SELECT on the project's tables is enough
    browser.open(page.url)
    until("the first cells", lambda: browser.cell("h1/eth0", "h2/eth0"))
    until(
        "stale",
        lambda: "old: probers, log, workers or history are late" in browser.text("banner"),
    )
    new_server.stop()
    until("down", lambda: f"history at {new_server.url} does not answer since" in browser.text("banner"))
    assert browser.cell("h1/eth0", "h2/eth0") is not None, "the last state stays"
    assert page.healthz()[0] == 503
    new_server.start()
    writer = new_server.writer()

    def fresh() -> bool:
        fill(writer, now_ns() - S)
        return browser.text("banner") == ""

    until("no banner", fresh)
    assert page.healthz()[0] == 200
