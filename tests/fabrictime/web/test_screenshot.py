"""The README's picture, taken of the real page on a small fabric's figures.

Written only where FABRICTIME_WEB_SCREENSHOT names the file, so that a test run leaves the tree as it is:
FABRICTIME_WEB_SCREENSHOT=docs/live-page.png python -m pytest tests/fabrictime/web/test_screenshot.py
With FABRICTIME_WEB_TAB=delays it is of that tab, else of the tab Fabric.
With FABRICTIME_WEB_URL it shows the page that runs there, a real pipeline's, instead of filled figures.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.chromium

S = 1_000_000_000
HOSTS, RAILS, PATHS, SECONDS = 8, 2, 4, 240
WANTED = os.environ.get("FABRICTIME_WEB_SCREENSHOT", "")
RUNNING = os.environ.get("FABRICTIME_WEB_URL")
DELAYS = os.environ.get("FABRICTIME_WEB_TAB") == "delays"


def save(browser: Any) -> None:
    target = Path(WANTED).resolve()
    browser.js("document.activeElement?.blur()")
    target.parent.mkdir(parents=True, exist_ok=True)
    assert browser.driver.save_screenshot(str(target))
    assert browser.errors() == []


@pytest.mark.skipif(RUNNING is None, reason="FABRICTIME_WEB_URL names no running page")
def test_picture_of_a_running_pipeline(browser: Any, until: Any) -> None:
    """The page at FABRICTIME_WEB_URL, its worst pair opened where the address names none."""
    browser.open(str(RUNNING))
    until("all is drawn", lambda: min(browser.frames("heat"), browser.frames("clock-chart")) >= 3)
    if "nic=" not in str(RUNNING):
        browser.js("document.querySelector('[data-testid=worst] tbody tr').click()")
    until("the pair", lambda: browser.frames("pair") >= 2)
    save(browser)


@pytest.mark.skipif(
    RUNNING is not None or DELAYS, reason="the picture of another page or of another tab is asked for"
)
@pytest.mark.timeout(240)
def test_picture_of_the_fabric(
    records: Any,
    log_address: str,
    fresh_evidence: None,
    shared_server: Any,
    start_page: Callable[..., Any],
    browser: Any,
    until: Any,
) -> None:
    """One link loses a fifth of its packets and is opened; two flows of a job collide on another."""
    rng = random.Random(4)
    fabric = records(log_address)
    writer = shared_server.writer()
    writer.create()
    fabric.publish(*fabric.fleet())
    now = time.time_ns() // S * S
    grey, hot = fabric.up("leaf1", 2), fabric.up("leaf3", 4)
    near, far = grey.split(">")
    expected = f"{near.split(':')[0]} to {far.split(':')[0]} loses 20% of its packets (17% to 23%) since "
    expected += time.strftime("%H:%M:%S", time.gmtime(now / S - 240))
    down = now - 1_500 * S
    cable = fabric.cable(grey)
    alert = fabric.alert(cable, expected, kind="LINK_GREY", severity="WARNING", links=[grey])
    fabric.publish(
        ("fabric.link-health", cable, fabric.health(grey, "DOWN", since_ns=down, text="dead")),
        ("fabric.link-health", cable, fabric.health(grey, "UP", since_ns=down + 90 * S, before="DOWN")),
        (
            "fabric.link-health",
            cable,
            fabric.health(
                grey,
                "GREY",
                links=[grey],
                since_ns=now - 240 * S,
                loss_rate=0.2,
                loss_rate_low=0.17,
                loss_rate_high=0.23,
                flaps_hour=1,
                flaps_total=1,
                flap_ns=[down],
                text=expected,
                paths_dead=0,
                paths_living=12,
            ),
        ),
        ("fabric.alerts", alert["alert_id"], alert),
    )
    opened = now - 9 * S

    def second(at: int) -> None:
        fabric.now_ns = at
        depth = {}
        for link in fabric.links():
            size = rng.lognormvariate(6.2, 0.9) * (60 if link == hot else 8 if link == grey else 1)
            use = min(0.98, rng.uniform(0.05, 0.3) + size / 1.2e5)
            depth[link] = {"depth_mean_bytes": size, "depth_max_bytes": 3 * size, "utilisation": use}
        flows = [
            fabric.flow(k, nic, peer, spine, job="train-7", rate_bps=rng.uniform(3.2e8, 3.6e8))
            for k, (nic, peer, spine) in enumerate(
                (("h1/eth1", "h5/eth1", 2), ("h2/eth1", "h7/eth1", 2), ("h5/eth1", "h3/eth1", 4))
            )
        ]
        is_active = fabric.contention(hot, text="two flows collide", jobs=["train-7"], opened_ns=opened)
        fabric.publish(
            ("fabric.queues", "fabric", fabric.queues(depth, at)), ("fabric.contention", hot, is_active)
        )
        for flow in flows:
            host = flow["nic"].partition("/")[0]
            fabric.publish(("fabric.flows", host, fabric.flows(host, [flow])))
        paths: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for nic in fabric.nics:
            for peer in fabric.nics:
                if nic != peer:
                    base = rng.uniform(6e3, 9e3)
                    lossy = nic in ("h1/eth1", "h2/eth1") and peer not in ("h1/eth1", "h2/eth1")
                    paths[nic, peer] = {
                        40_000 + k: {
                            "forward_p50_ns": base * (1.6 if lossy and k == 1 else 1),
                            "reverse_p50_ns": base,
                            "lost": rng.randint(17, 24) if lossy and k == 1 else 0,
                        }
                        for k in range(4)
                    }
        writer.delays(at, paths)

    for back in range(62, 0, -1):
        second(now - back * S)
    page = start_page(shared_server, kafka={"bootstrap": log_address})
    browser.open(f"{page.url}fabric?link={grey.replace('>', '%3E')}")
    written = now

    def drawn() -> bool:
        nonlocal written
        while written + S < time.time_ns():
            second(written)
            written += S
        charts = min(browser.frames("hour"), browser.frames("minute"))
        return charts >= 3 and "µs" in browser.text("paths") and "train-7" in browser.text("flows")

    until("all charts", drawn)
    save(browser)


@pytest.mark.skipif(not DELAYS, reason="FABRICTIME_WEB_TAB is not delays")
@pytest.mark.timeout(240)
def test_picture_of_the_live_page(
    new_server: Any, start_page: Callable[..., Any], browser: Any, until: Any
) -> None:
    """Eight hosts with two rails; one spine's queue fills every so often and slows one path of a NIC."""
    writer = new_server.writer()
    writer.create()
    start = time.time_ns() // S * S - SECONDS * S
    fleet = Fleet(random.Random(7))
    writer.nics({nic: {"rack": f"r{1 + i // 8}"} for i, nic in enumerate(fleet.nics)}, start)
    for second in range(SECONDS):
        fleet.window(writer, start + second * S, second)
    page = start_page(new_server)
    browser.open(page.url + "?nic=h3/eth0&peer=h6/eth1&span=10")
    second = SECONDS

    def drawn() -> bool:
        nonlocal second
        while start + (second + 1) * S < time.time_ns():
            fleet.window(writer, start + second * S, second)
            second += 1
        charts = ("heat", "pair", "clock-chart")
        frames = min(browser.frames(chart) for chart in charts)
        return frames >= 3 and slow(second - 10) and slow(second)

    until("all charts", drawn)
    save(browser)


def slow(second: int) -> bool:
    """Whether the queue is full in this second."""
    return second % 60 not in range(24, 47)


class Fleet:
    """Figures of a small leaf-spine fabric with kernel stamps."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nics = [f"h{h + 1}/eth{r}" for h in range(HOSTS) for r in range(RAILS)]
        self.peers = {nic: rng.sample([p for p in self.nics if p[:2] != nic[:2]], 10) for nic in self.nics}
        self.peers["h3/eth0"] = sorted({*self.peers["h3/eth0"], "h6/eth1"})
        self.base = {(nic, peer): rng.uniform(10e3, 15e3) for nic in self.nics for peer in self.peers[nic]}

    def window(self, writer: Any, at: int, second: int) -> None:
        writer.delays(
            at,
            {
                pair: {40_001 + k: self.path(pair, k, slow(second), second) for k in range(PATHS)}
                for pair in self.base
            },
        )
        hosts = range(HOSTS)
        writer.clocks(
            at,
            {
                f"h{h + 1}/system": {
                    "offset_ns": (h - 3.6) * 1.1e6
                    + second * (h - 3.3) * 2_900
                    + 220 * math.sin(second / 40 + h),
                    "drift_ppb": (h - 3.3) * 2_900 + 5 * math.cos(second / 40 + h),
                    "bound_ns": 610 + 45 * h + 25 * math.sin(second / 13 + 2 * h),
                    "pairs": 19 + h % 3,
                    "residual_ns": 140 + 11 * h,
                }
                for h in hosts
            },
        )
        writer.pipeline(
            at,
            {
                f"fabric.probes/{k}": {
                    "samples": 10_000 + self.rng.randint(-90, 90),
                    "lag_messages": self.rng.randint(0, 2),
                }
                for k in range(8)
            },
        )
        writer.nic_windows(at, {nic: {"lost": int(self.rng.random() < 0.1)} for nic in self.nics})

    def path(self, pair: tuple[str, str], k: int, busy: bool, second: int) -> dict[str, Any]:
        rng = self.rng
        factor = 1.0
        if busy and pair[0] == "h3/eth0" and k == 1:
            factor = 4.2 + rng.uniform(-0.4, 0.4)
        forward = self.base[pair] * (1 + 0.025 * k) * rng.lognormvariate(0, 0.03) * factor
        back = self.base[pair] * (1.04 + 0.02 * k) * rng.lognormvariate(0, 0.03)
        lossy = factor > 1 or (pair[1] == "h7/eth0" and k == 2)
        return {
            "count": 125,
            "lost": rng.randint(0, 3) * (rng.random() < 0.35) if lossy else 0,
            "forward_min_ns": forward * 0.9,
            "forward_p50_ns": forward,
            "forward_p99_ns": forward * rng.uniform(1.5, 1.9),
            "reverse_min_ns": back * 0.9,
            "reverse_p50_ns": back,
            "reverse_p99_ns": back * rng.uniform(1.5, 1.8),
            "bound_ns": 1_480 + 60 * math.sin(second / 17),
        }
