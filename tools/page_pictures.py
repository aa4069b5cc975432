"""Takes a picture of each tab of the live page, with an incident of a simulated fleet and its job.

    python -m tools.page_pictures FOLDER                          # one picture per tab: docs, `make docs`
    python -m tools.page_pictures FOLDER --nics 256 --all         # desktop and phone, light and dark

The operators compute the records from the simulated fleet, so the pictures show what the present code shows.
"""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

from fabrictime.bench._waiting import wait_until
from fabrictime.bench.detect.web_reader import BrowserReader
from fabrictime.bench.history import running_server
from fabrictime.bench.web._recorded import Record, recorded, shown, write_history
from fabrictime.bench.web.axe import FINAL_COLOURS, READY_S, SETTLED, SIZES
from fabrictime.web.tabs.base import PAGES
from fabrictime.web.time_bar import time_of
from producers.sim.settings import JobSettings, SimSettings
from schemas import codec
from schemas.topics import AUDIT

S: Final = 1_000_000_000
OPENED: Final = {"fabric": "link=leaf1%3Aswp5%3Espine1%3Aswp1", "jobs": "job=train"}
"""Objects that the tabs open."""
QUIET_S, FAULT_S, AFTER_S = 10, 20, 10
"""Simulated time before, during and after the incident, s."""
IDLE: Final = "requestIdleCallback(arguments[0], {timeout: 8000})"
CHECKS: Final = (
    (
        "node.memory",
        "Memory is as large as that of its peers",
        "FAILED",
        "ERROR",
        "REPLACE",
        "1,920 of 2,048 GiB",
    ),
    ("backend.mtu", "NICs have the MTU of the fabric", "FAILED", "WARNING", "MONITOR", "1500, expected 9000"),
    ("gpu.ecc", "GPUs have no uncorrected errors", "PASSED", "ERROR", "RESET", "0 errors"),
)


def fleet_records(nics: int, incident: bool = True) -> list[Record]:
    """Return the records of a fleet in which a link loses packets, until now."""
    job = JobSettings(name="train", nics=min(nics, 64), bytes=2e8, compute_ms=20)
    line = f"grey 20% leaf1>spine1 after {QUIET_S}s for {FAULT_S}s"
    seconds = QUIET_S + FAULT_S + AFTER_S
    settings = SimSettings(nics=nics, jobs=(job,), rate_pps=100, faults=(line,) if incident else ())
    start_ns = time.time_ns() - (seconds + 60) * S
    records = recorded(settings, seconds, start_ns)
    return [*records, *_audit(start_ns, min(nics, 64))]


def _audit(at_ns: int, hosts: int) -> Iterator[Record]:
    for host in range(1, hosts + 1):
        for check, title, status, severity, action, text in CHECKS:
            passes = status == "PASSED" or host % 4
            result = {
                "run": "start-up", "host": f"h{host}", "shard": "sim", "sku": "sim", "check": check,
                "category": check.partition(".")[0].upper(), "title": title,
                "status": "PASSED" if passes else status, "severity": severity, "action": action,
                "remedy": "Compare with a peer", "text": text, "checked_ns": at_ns, "took_ns": 1_000_000,
                "checks": len(CHECKS), "findings": [], "facts": [],
            }  # fmt: skip
            value = codec.encode(AUDIT.type, result)
            yield Record(at_ns, AUDIT.name, "start-up", value)


def views(whole: bool) -> Iterator[tuple[str, str]]:
    """Yield the size and colour scheme of each picture to take of a tab; `whole` selects all combinations."""
    for size in SIZES:
        for scheme in ("light", "dark"):
            if whole or (size, scheme) == ("desktop", "light"):
                yield size, scheme


def take(driver: Any, address: str, size: str, scheme: str, file: Path) -> None:
    """Save a picture of the page at one address."""
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.get(address)
    time.sleep(1.5)  # until the banner says that the view waits
    with suppress(TimeoutError):  # a view without data is taken as it is
        wait_until(lambda: driver.execute_script(SETTLED), READY_S, address)
    driver.execute_async_script(IDLE)
    driver.execute_async_script(FINAL_COLOURS)
    file.write_bytes(picture_of(driver, width, height, size == "phone"))


def picture_of(driver: Any, width: int, height: int, is_tall: bool) -> bytes:
    """Return a picture of the visible screen or, if `is_tall`, of the whole page."""
    if is_tall:
        height = max(height, int(driver.execute_script("return document.documentElement.scrollHeight")))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    options = {"captureBeyondViewport": is_tall, "clip": clip}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])


def main() -> None:
    """Take the pictures of all tabs, as the command line describes."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nics", type=int, default=16)
    parser.add_argument("--all", action="store_true", help="all sizes and schemes")
    parser.add_argument("--before-end", type=float, default=AFTER_S + 1, metavar="S")
    parser.add_argument("--quiet", action="store_true", help="without an incident")
    parser.add_argument("--tabs", nargs="*", default=[path.strip("/") for path in PAGES])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    records = fleet_records(options.nics, not options.quiet)
    newest_ns = max(record.at_ns for record in records)
    moment = f"at={time_of(newest_ns - round(options.before_end * S))}"
    with ExitStack() as stack:
        history = stack.enter_context(running_server())
        write_history(history, records)
        page_records = sorted(r for r in records if r.topic != AUDIT.name)
        url = stack.enter_context(shown(page_records, history))
        browser = stack.enter_context(closing(BrowserReader(url)))
        for tab in options.tabs:
            address = f"{url}{tab}?{'&'.join(filter(None, (OPENED.get(tab), moment)))}"
            for size, scheme in views(options.all):
                suffix = f"-{size}-{scheme}" if options.all else ""
                take(browser.driver, address, size, scheme, options.folder / f"{tab}{suffix}.png")


if __name__ == "__main__":
    main()
