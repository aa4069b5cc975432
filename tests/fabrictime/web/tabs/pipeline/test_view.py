"""The Pipeline tab in Chromium, on a filled history."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.chromium

S = 1_000_000_000


def check(browser: Any, name: str) -> str:
    """Return the state and the text of a check."""
    return str(
        browser.js(
            "const e = document.querySelector(`[data-check='${arguments[0]}']`); if (!e) return '';"
            "return e.querySelector('.ft-state').className.match(/ft-(ok|warn|bad)/)[1] + ' ' + e.innerText",
            name,
        )
    )


def test_lag_losses_and_rejects_have_a_page(
    new_server: Any, start_page: Callable[..., Any], browser: Any, until: Any
) -> None:
    writer = new_server.writer()
    writer.create()
    start = time.time_ns() // S * S - 20 * S
    for second in range(20):
        at = start + second * S
        writer.clocks(at, {"h1/system": {}})
        writer.pipeline(at, {"fabric.probes/5": {"lag_messages": 4_321}})
        writer.nic_windows(at, {"h2/eth1": {"lost": 2_500}})
    detail = "samples[0].lost: -1, expected 0 or more"
    writer.rejects([{"append_ns": start, "offset": 7, "detail": detail, "recorded_ns": 1}])
    browser.open(f"{start_page(new_server).url}pipeline")
    until("lag is bad", lambda: check(browser, "Stream lag").startswith("bad"))
    assert "fabric.probes/5" in check(browser, "Stream lag")
    assert check(browser, "Probes lost").startswith("warn")
    assert "h2/eth1 (33%)" in check(browser, "Probes lost")
    assert check(browser, "Rejects").startswith("warn")
    assert browser.text("health-state") == "BAD"
    assert browser.text("kpi-lag").splitlines()[1:] == ["4,321 msg", "fabric.probes/5"]
    until("the reject", lambda: detail in browser.text("rejects"))
    assert browser.errors() == []
