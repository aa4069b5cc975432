"""The Clocks tab in Chromium, on a real history server with known rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.fabrictime.web.processes import calm

pytestmark = pytest.mark.chromium

S = 1_000_000_000
CHARTS = ("bounds", "offsets", "residuals", "strip", "timeline", "mesh")


def now_ns() -> int:
    return time.time_ns() // S * S


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
    """Opens the clocks' page on this test's database."""

    def opened(query: str = "", **settings: Any) -> Any:
        page = start_page(shared_server, **settings)
        browser.open(f"{page.url}clocks{query}")
        return page

    return opened


def fill(history: Any, seconds: int = 20, clocks: int = 12) -> int:
    """A small fleet: h2 stepped, h3 in HOLDOVER, h4 UNSYNCED, one suspect pair; return the start."""
    start = now_ns() - seconds * S
    nics = [f"h{i}/eth0" for i in range(1, clocks + 1)]
    history.nics({nic: {"clock": nic.replace("eth", "ptp")} for nic in nics}, start)
    pairs = [(nic, nics[(i + k) % clocks]) for i, nic in enumerate(nics) for k in (1, 2)]
    for second in range(seconds):
        at = start + second * S
        rows: dict[str, dict[str, Any]] = {
            f"h{i}/ptp0": {
                "offset_ns": 1_000_000 * i + 250 * i * second,
                "drift_ppb": 250.0 * i,
                "bound_ns": 10.0 + i,
                "residual_ns": 3.0 + i / 10,
                "drift_sigma_ppb": 1.5,
            }
            for i in range(1, clocks + 1)
        }
        if second == 10:
            rows["h2/ptp0"] |= {"event": "STEP", "event_ns": 1_500.0}
        if second >= 12:
            rows["h3/ptp0"] |= {"state": "HOLDOVER", "bound_ns": 700.0}
            rows["h4/ptp0"] |= {"state": "UNSYNCED", "bound_ns": 1e9, "residual_ns": 250.0}
        if second == 12:
            rows["h4/ptp0"] |= {"event": "FALSETICKER", "event_ns": 250.0}
        history.suspects(at, {("h1/eth0", "h2/eth0"): {"asymmetry_ns": -412.0, "sigma_ns": 3.5}})
        history.clocks(at, rows)
        history.pipeline(at, {"fabric.probes/0": {}})
        history.pair_fits(at, pairs)
    return start


def test_the_fleets_clocks_are_listed_and_drawn(history: Any, show: Any, browser: Any, until: Any) -> None:
    fill(history)
    page = show()
    until("all charts", lambda: min(browser.frames(chart) for chart in CHARTS) > 0)
    assert browser.text("state-note") == "10 SYNCED · 1 HOLDOVER · 1 UNSYNCED"
    assert browser.text("kpi-bound").split("\n") == ["widest clock bound", "± 700 ns", "h3/ptp0"]
    assert browser.text("kpi-suspects").split("\n") == ["suspect pairs", "1", "h1/eth0 → h2/eth0"]
    events = browser.text("events")
    assert "STEP +1.50 µs" in events
    assert "FALSETICKER 250 ns rms" in events
    for expected in ("h1/eth0 → h2/eth0", "-412 ns", "3.50 ns", "5%"):
        assert expected in browser.text("suspects")
    assert browser.text("mesh-note").startswith("12 NICs, 24 directed pairs; 1 suspect pair, worst h1/eth0")

    def drawn() -> list[str]:
        return [line["name"] for line in browser.last("bounds")["lines"]]

    assert drawn()[:4] == ["widest", "p99", "p90", "median"]
    assert drawn()[4:] == ["h3/ptp0", "h11/ptp0", "h12/ptp0"], "the widest three over the span"
    wander = browser.last("offsets")["lines"][0]["v"]
    assert max(abs(v) for v in wander if v is not None) < 1
    timeline = browser.last("timeline")
    row = timeline["rows"].index("h4/ptp0")
    assert [segment[3] for segment in timeline["segments"] if segment[0] == row] == [0, 2]
    calm(browser, page)


def test_hovering_names_the_clock_the_nic_and_the_suspect_s_figures(
    history: Any, show: Any, browser: Any, until: Any
) -> None:
    fill(history)
    page = show()
    until("all charts", lambda: min(browser.frames(chart) for chart in CHARTS) > 0)
    until("the strip", lambda: len(browser.last("strip")["points"]) == 12)
    browser.hover_point("strip", "clocks", 1)
    tip = until("the strip's tooltip", lambda: browser.tip("strip"))
    for expected in ("h3/ptp0", "HOLDOVER", "± 700 ns"):
        assert expected in tip
    node = [n[0] for n in browser.last("mesh")["nodes"]].index("h1/eth0")
    browser.hover_point("mesh", "nics", node)
    tip = until("the mesh's tooltip", lambda: browser.tip("mesh"))
    for expected in ("h1/eth0", "h1/ptp0", "± 11.0 ns", "suspect pairs"):
        assert expected in tip
    suspect = browser.js(
        "const d = document.querySelector('[data-testid=mesh]').ft.drawer;"
        "return d.tip({seriesId: 'suspects', dataIndex: 0}) + d.tip({seriesId: 'pairs', dataIndex: 0})"
    )
    for expected in ("-412 ns ± 3.50 ns", "back is 824 ns slower than out", "5%", "smallest round trip"):
        assert expected in suspect
    calm(browser, page)


def test_a_clicked_clock_is_drawn_and_in_the_address(
    history: Any, show: Any, browser: Any, until: Any
) -> None:
    fill(history)
    page = show()
    until("the table", lambda: "h7/ptp0" in browser.text("clock-table"))
    browser.js(
        "[...document.querySelectorAll('[data-testid=clock-table] tbody tr')]"
        ".find((r) => r.innerText.includes('h7/ptp0')).click()"
    )

    def drawn() -> list[str]:
        return [line["name"] for line in (browser.last("bounds") or {"lines": []})["lines"][4:]]

    until("its line", lambda: drawn() == ["h7/ptp0"])
    assert browser.text("chosen") == "h7/ptp0"
    assert "clock=h7%2Fptp0" in browser.driver.current_url
    point = [p[3] for p in browser.last("strip")["points"]].index("h3/ptp0")
    browser.hover_point("strip", "clocks", point, click=True)
    until("a second line", lambda: drawn() == ["h3/ptp0", "h7/ptp0"])
    browser.toggle("view", "offset")
    until("offsets as they are", lambda: browser.last("offsets")["id"] == "offsets offset")
    before, last = browser.last("offsets")["lines"][1]["v"][-2:]
    assert last == pytest.approx(7e6 + 250 * 7 * 18, abs=250 * 7)
    assert last - before == pytest.approx(2 * 250 * 7), "a step of 2 s"
    browser.driver.refresh()
    until("the same after a reload", lambda: drawn() == ["h3/ptp0", "h7/ptp0"])
    browser.js("document.querySelector('[data-testid=chosen] button').click()")
    until("one less", lambda: browser.text("chosen") == "h3/ptp0" or browser.text("chosen") == "h7/ptp0")
    browser.js(
        "const e = document.querySelector('[data-testid=filter]'); e.value = 'H12';"
        "e.dispatchEvent(new Event('input'))"
    )
    until("one row", lambda: browser.text("clock-table").count("ptp0") == 1)
    calm(browser, page)


def test_nothing_yet_then_one_nic_then_its_first_peers(
    history: Any, show: Any, browser: Any, until: Any
) -> None:
    page = show()
    until("the banner", lambda: browser.text("banner") == "No probes yet: waiting for the first window.")
    until("the history's answer", lambda: browser.text("state-note") == "No clock solved yet.")
    assert browser.text("bounds") == browser.text("strip") == "Nothing to draw yet."
    history.nics({"h1/eth0": {"clock": "h1/ptp0"}}, now_ns())
    history.clocks(now_ns() - S, {"h1/ptp0": {"state": "UNSYNCED", "bound_ns": 1e9, "pairs": 0}})
    until("one clock", lambda: browser.text("state-note") == "1 UNSYNCED")
    until("said", lambda: browser.text("mesh-note").startswith("A single NIC"))
    until("its mark", lambda: [p[1] for p in (browser.last("strip") or {"points": []})["points"]] == [None])
    assert browser.text("kpi-synced").split("\n")[1:] == ["0", "of 1"]
    fill(history, 3, 3)
    until("three clocks", lambda: browser.text("state-note") == "3 SYNCED")
    until("the mesh", lambda: len(browser.last("mesh")["edges"]) == 3)
    calm(browser, page)


def test_a_thousand_clocks_stay_legible(history: Any, show: Any, browser: Any, until: Any) -> None:
    nics = [f"h{i // 8 + 1}/eth{i % 8}" for i in range(1_000)]
    start = now_ns() - 4 * S
    history.nics(
        {nic: {"rack": f"r{i // 32}", "clock": nic.replace("eth", "ptp")} for i, nic in enumerate(nics)},
        start,
    )
    for second in range(4):
        at = start + second * S
        history.suspects(at, {(nics[3], nics[700]): {}, (nics[3], nics[9]): {"asymmetry_ns": 25.0}})
        history.clocks(
            at,
            {
                nic.replace("eth", "ptp"): {"bound_ns": 10.0 + i / 100, "event": "NONE" if second else "NEW"}
                for i, nic in enumerate(nics)
            },
        )
        history.pipeline(at, {"fabric.probes/0": {}})
        history.pair_fits(
            at, [(nic, nics[(i * 37 + k + 1) % 1_000]) for i, nic in enumerate(nics) for k in range(10)]
        )
    page = show()
    until("all charts", lambda: min(browser.frames(chart) for chart in CHARTS) > 0)
    note = "1,000 NICs, 10,000 directed pairs; 2 suspect pairs"
    until("the mesh is told", lambda: browser.text("mesh-note").startswith(note))
    assert browser.text("mesh-note").endswith("Only these and their 3 NICs are drawn.")
    mesh = browser.last("mesh")
    assert ([len(mesh[part]) for part in ("nodes", "edges", "suspects")]) == [3, 0, 2]
    assert [line["name"] for line in browser.last("bounds")["lines"]] == [
        "widest",
        "p99",
        "p90",
        "median",
        "h125/ptp5",
        "h125/ptp6",
        "h125/ptp7",
    ]
    assert len(browser.last("strip")["points"]) <= 601
    assert len(browser.last("timeline")["rows"]) == 16
    assert "1-9 of 1000" in browser.text("clock-table")
    calm(browser, page)


def test_names_from_the_network_are_shown_and_never_run(
    history: Any, show: Any, browser: Any, until: Any
) -> None:
    evil = "<img/src=x\tonerror=window.hacked=1>"
    start = now_ns() - 3 * S
    for second in range(3):
        at = start + second * S
        history.suspects(at, {(evil, "b/eth0"): {}})
        history.clocks(at, {evil: {"event": "STEP", "event_ns": 5.0}, "b/eth0": {}})
        history.pipeline(at, {"fabric.probes/0": {}})
        history.pair_fits(at, [(evil, "b/eth0")])
    show()
    until("all charts", lambda: min(browser.frames(chart) for chart in CHARTS) > 0)
    until("its row", lambda: "<img/src=x" in browser.text("clock-table"))
    html = browser.js(
        "const d = (t) => document.querySelector(`[data-testid=${t}]`).ft.drawer;"
        "const f = d('bounds').last; const e = document.createElement('div');"
        "e.innerHTML = d('mesh').tip({seriesId: 'suspects', dataIndex: 0}) + d('strip').tip({dataIndex: 0})"
        " + d('strip').tip({dataIndex: 1}) + d('timeline').tip({seriesId: 'events', dataIndex: 0})"
        " + d('bounds').tip([{axisValue: f.t[0]}]) + d('mesh').tip({seriesId: 'nics', dataIndex: 0});"
        "document.body.append(e); return e.querySelectorAll('img').length"
    )
    assert html == 0
    assert browser.js("return window.hacked ?? null") is None


def test_both_tabs_link_to_each_other(history: Any, show: Any, browser: Any, until: Any) -> None:
    fill(history, 2, 3)
    page = show()
    until("the clocks", lambda: browser.text("state-note") == "3 SYNCED")
    browser.js("[...document.querySelectorAll('nav a')].find((a) => a.innerText === 'Delays').click()")
    until("the delays", lambda: browser.driver.current_url == f"{page.url}delays")
    until("its clocks", lambda: "h3/ptp0" in browser.text("clock-table"))
    browser.js("[...document.querySelectorAll('nav a')].find((a) => a.innerText === 'Clocks').click()")
    until("the clocks again", lambda: browser.text("state-note") == "3 SYNCED")
    calm(browser, page)
