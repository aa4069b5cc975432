"""How long the browser draws a fabric of a thousand NICs while everything changes. A measurement, no test:

FABRICTIME_WEB_FRAME_TIMES=1 python -m pytest -n0 -s tests/fabrictime/web/tabs/test_frame_times.py
It prints the times of drawing and the gaps between frames, which a loaded machine stretches, and the CPU that
the page's process took for one tab.
"""

from __future__ import annotations

import random
import time
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.chromium

SECONDS = 20
WATCH = """
window.gaps = []; let last = performance.now();
const tick = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(tick); };
requestAnimationFrame(tick);
"""
READ = """
return {draws: document.querySelector('[data-testid=fabric]').ft.drawer.draws, gaps: window.gaps};
"""


def share(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("metric", ["state", "queue"])
def test_frames_of_a_thousand_nics(
    records: Any, log_address: str, browser: Any, shared_server: Any, start_page: Any, until: Any, metric: str
) -> None:
    rng = random.Random(5)
    fabric = records(log_address, hosts=128, nics=8, leaves=4, spines=32)
    fabric.publish(*fabric.fleet(peers=10))
    links = fabric.links()
    ups = [link for link in links if link.startswith("leaf") and ">spine" in link]
    page = start_page(shared_server, kafka={"bootstrap": log_address})
    browser.open(f"{page.url}fabric?metric={metric}")
    until("drawn", lambda: browser.frames("fabric") > 1)

    def second() -> None:
        fabric.now_ns = time.time_ns()
        depth = {
            link: {"depth_mean_bytes": rng.lognormvariate(7, 1.5), "utilisation": rng.random()}
            for link in links
        }
        fabric.publish(("fabric.queues", "fabric", fabric.queues(depth)))
        for link in rng.sample(ups, 10):
            state = rng.choice(("UP", "DOWN", "GREY", "FLAPPING"))
            fabric.publish(("fabric.link-health", fabric.cable(link), fabric.health(link, state)))
        for host in range(1, 129):
            flows = [fabric.flow(k, f"h{host}/eth1", "h1/eth1") for k in range(8)]
            fabric.publish(("fabric.flows", f"h{host}", fabric.flows(f"h{host}", flows)))

    second()
    until("told", lambda: browser.text("kpi-cables").split("\n")[1] not in ("0", "—"))
    browser.js(WATCH)
    process = psutil.Process(page.process.child.pid)
    before = process.cpu_times()
    begin = time.monotonic()
    for k in range(SECONDS):
        second()
        left = begin + k + 1 - time.monotonic()
        time.sleep(max(0.0, left))
    took = process.cpu_times()
    seen = browser.js(READ)
    cpu_s = took.user + took.system - before.user - before.system
    draws, gaps = seen["draws"], seen["gaps"][5:]
    print(
        f"\n{metric}: {len(draws)} draws, ms p50 {share(draws, 0.5):.1f} p99 {share(draws, 0.99):.1f} "
        f"max {max(draws):.1f}; {len(gaps)} frames, gap ms p50 {share(gaps, 0.5):.1f} "
        f"p99 {share(gaps, 0.99):.1f} max {max(gaps):.1f}; page's CPU {100 * cpu_s / SECONDS:.0f}% of a core"
    )
    assert browser.errors() == []
