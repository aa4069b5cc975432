"""Counts accessibility violations that axe finds on all tabs: light and dark, on a desktop and a phone.

The page shows a moment after an incident of a simulated fleet with a job, also with an object opened. A rule
of axe that fails on a view counts once. A part of a page that is wider than a phone counts as a violation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any, Final, NamedTuple

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._waiting import wait_until
from fabrictime.bench.detect.web_reader import BrowserReader, browser_missing
from fabrictime.bench.history import running_server
from fabrictime.bench.web._recorded import recorded, shown, write_history
from fabrictime.web.tabs.base import PAGES
from fabrictime.web.time_bar import time_of
from producers.sim.settings import JobSettings, SimSettings

RECORDED_S: Final = 40
SIZES: Final[Mapping[str, tuple[int, int]]] = {"desktop": (1440, 900), "phone": (390, 844)}
OPENED: Final = (
    "fabric?link=leaf1%3Aswp5%3Espine1%3Aswp1",
    "jobs?job=train",
    "delays?nic=h1%2Feth1&peer=h5%2Feth1",
)
"""Addresses with an object opened."""
READY_S: Final = 10.0
"""Longest wait for a view that has its data; one that still waits then is judged as it is."""
SETTLED: Final = "return !document.querySelector('.ft-banner.ft-wait')?.checkVisibility()"
RUN: Final = """
const done = arguments[arguments.length - 1];
axe.run({exclude: [['i.q-icon']]}, {resultTypes: ['violations']}).then(
  (found) => done(found.violations.map((v) => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 160)])),
  (error) => done([['axe', 1, String(error)]]));
"""
"""Icons are left out: their font writes a picture with letters, which axe takes for a text."""
FINAL_COLOURS: Final = """
const style = document.createElement('style');
style.textContent = '*, *::before, *::after { transition: none !important; animation: none !important; }';
document.head.append(style);
requestAnimationFrame(() => requestAnimationFrame(arguments[0]));
"""
"""Ends the transitions of colours, in whose middle a text may lack contrast."""
CLIPPED: Final = """
const wide = document.documentElement.scrollWidth, limit = innerWidth;
return wide > limit ? [`${wide} px wide on a screen of ${limit} px`] : [];
"""


class Violation(NamedTuple):
    """A rule that a view of the page breaks."""

    view: str
    rule: str
    example: str


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figure; `quick` measures only the tab Now."""
    missing = browser_missing()
    if missing:
        return {"axe_violations": Missing(missing)}
    settings = SimSettings(
        nics=8,
        jobs=(JobSettings(name="train", nics=8, bytes=2e8, compute_ms=20),),
        rate_pps=100,
        faults=("grey 20% leaf1>spine1 after 15s",),
    )
    records = recorded(settings, RECORDED_S, time.time_ns() - (RECORDED_S + 60) * 1_000_000_000)
    moment = f"at={time_of(records[-1].at_ns - 1_000_000_000)}"
    paths = ["now"] if quick else [*(path.strip("/") for path in PAGES), *OPENED]
    with ExitStack() as stack:
        history = stack.enter_context(running_server())
        write_history(history, records)
        url = stack.enter_context(shown(records, history))
        browser = stack.enter_context(closing(BrowserReader(url)))
        addresses = [f"{url}{path}{'&' if '?' in path else '?'}{moment}" for path in paths]
        violations = [one for address in addresses for one in violations_of(browser.driver, address)]
    for violation in violations:
        progress(f"{violation.view.removeprefix(url)}: {violation.rule}: {violation.example}")
    views = len(paths) * len(SIZES) * 2
    return {"axe_violations": Figure(len(violations), note=f"{views} views of {len(paths)} addresses")}


def violations_of(driver: Any, address: str) -> Iterator[Violation]:
    """Yield the violations of one address in both sizes and colour schemes."""
    from axe_core_python.base import AXE_SCRIPT

    for size, (width, height) in SIZES.items():
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            driver.get(address)
            with suppress(TimeoutError):
                wait_until(lambda: driver.execute_script(SETTLED), READY_S, address)
            driver.execute_async_script("requestIdleCallback(arguments[0], {timeout: 5000})")
            driver.execute_async_script(FINAL_COLOURS)
            driver.execute_script(AXE_SCRIPT)
            view = f"{address} {size} {scheme}"
            for rule, nodes, example in driver.execute_async_script(RUN):
                yield Violation(view, f"{rule} ({nodes})", example)
            for text in driver.execute_script(CLIPPED):
                yield Violation(view, "clipped", text)
