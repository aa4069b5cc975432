"""Measures the load time of the page, and the cost of a live page for the browser and the server.

A simulated fleet's records are published in real time while processor time is measured, in percent of one
processor. Then the page is loaded repeatedly. Load times end when the first figure of a tab is drawn; they
are divided by the times of a static page with the same nodes and bytes in the same run. The first paint is
measured in a browser with an empty cache.
"""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._stepped_log import SteppedLog
from fabrictime.bench._waiting import wait_until
from fabrictime.bench.detect.web_reader import BrowserReader, browser_missing
from fabrictime.bench.web import PARTS
from fabrictime.bench.web._recorded import (
    PARTITIONS,
    Record,
    later,
    recorded,
    running_page,
    write_log,
)
from fabrictime.state.fabric_consumer import TOPICS_READ
from fabrictime.web import first_paint
from producers.sim.settings import JobSettings, SimSettings
from schemas.kafka.producer import open_producer, produce
from schemas.kafka.settings import as_settings

NICS: Final = (8, 1_024)
PERIOD_S: Final = 10
"""Simulated time, s."""
LIVE_S: Final = 100
"""Time for which records are published, s."""
LEAD: Final = 1.5
"""Time after which publishing begins, over the time that making the records is expected to take."""
TABS: Final = ("now", "fabric", "contention", "jobs", "actions", "alerts")
"""Tabs whose first figures come from the log; those of the others come from the history."""
READ: Final = frozenset(topic.name for topic in TOPICS_READ)
"""Topics that the page reads from the log. Those of its history are not published: there is none."""
LOADS: Final = 20
TAB_S: Final = 4.0
VIEWERS: Final = 10
READY_S: Final = 60.0
BEGIN_LIMIT_S: Final = 900.0
"""Longest time in which the records are made, s."""
NOTE_DRAWN: Final = """
addEventListener('DOMContentLoaded', () => {
  const figures = () => [...document.querySelectorAll('.ft-kpi-value, [data-testid=health-sentence]')];
  const isDrawn = () => document.documentElement.dataset.static !== undefined
    || figures().some((part) => !['', '—'].includes(part.textContent));
  const check = () => {
    if (!isDrawn()) setTimeout(check, 4);
    else requestAnimationFrame(() => requestAnimationFrame(() => { window.ftDrawnMs = performance.now(); }));
  };
  check();
});
"""
"""Script of each new document: notes when its first figure is drawn, ms since the navigation began."""
TIMES: Final = """
const paint = performance.getEntriesByName('first-contentful-paint')[0];
return window.ftDrawnMs && paint ? [paint.startTime, window.ftDrawnMs] : null;
"""
SNAPSHOT: Final = """
const parts = [performance.getEntriesByType('navigation')[0], ...performance.getEntriesByType('resource')];
for (const script of document.querySelectorAll('script, link[rel=modulepreload]')) script.remove();
document.documentElement.dataset.static = '';
return [document.documentElement.outerHTML, parts.reduce((sum, part) => sum + part.decodedBodySize, 0)];
"""
"""Script that returns the page's HTML without scripts, and the bytes that the page had loaded."""
SEARCH: Final = """
const [query, done] = arguments, field = document.querySelector('[data-testid=search]');
const list = document.querySelector('[data-testid=search-results]'), before = list.textContent;
field.focus();
field.value = query;
const begin = performance.now();
field.dispatchEvent(new Event('input'));
const check = () => {
  if (!list.hidden && list.textContent !== before && list.textContent.toLowerCase().includes(query))
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
  else setTimeout(check, 2);
};
check();
"""
"""Script that types a query and returns the time until its results are drawn, ms."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Times of page loads, ms, [loads]: until the first paint and until the first figure is drawn."""

    paint_ms: Sequence[float]
    drawn_ms: Sequence[float]


def ratio(own_ms: Sequence[float], static_ms: Sequence[float]) -> Figure:
    """Return the ratio of the 95th percentiles of the page's times and the static page's times."""
    own, static = float(np.percentile(own_ms, 95)), float(np.percentile(static_ms, 95))
    return Figure(own / static, "x", f"{own:.0f} ms, the static page {static:.0f} ms, {len(own_ms)} loads")


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures; `quick`: 8 NICs and a few loads, which gives the figures of 8 alone."""
    missing = browser_missing()
    if missing:
        return dict.fromkeys(PARTS["load"], Missing(missing))
    figures: dict[str, Value] = {}
    for nics in NICS[:1] if quick else NICS:
        figures |= _measured(nics, 3 if quick else LOADS, progress)
    return dict.fromkeys(PARTS["load"], Missing("only with 1,024 NICs: not with --quick")) | figures


def _measured(nics: int, loads: int, progress: Progress) -> dict[str, Value]:
    with _live_page(nics, progress) as (url, publisher), closing(BrowserReader(url)) as browser:
        driver = browser.driver
        driver.set_script_timeout(READY_S)
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NOTE_DRAWN})
        used = {path: _browser_percent(driver, f"{url}{path}") for path in TABS}
        progress(f"{nics} NICs: {', '.join(f'{path} {percent:.0f} %' for path, percent in used.items())}")
        server = _server_percent(driver, url)
        if not publisher.is_alive():
            raise RuntimeError(f"{nics} NICs: no records after {LIVE_S} s, while processor time was measured")
        own = _loads(driver, url, loads)
        searches_ms = _searches(driver, url, nics, loads) if nics == NICS[-1] else ()
        with _static_pages(driver, url) as static_url:
            static = _loads(driver, static_url, loads)
    figures: dict[str, Value] = {
        f"first_paint_times_{nics}": ratio(own[0].paint_ms, static[0].paint_ms),
        f"tab_change_times_{nics}": ratio(own[1].drawn_ms, static[1].drawn_ms),
    }
    if nics == NICS[-1]:
        worst = max(used, key=lambda path: used[path])
        figures["browser_cpu_percent"] = Figure(used[worst], note=f"worst tab: {worst}")
        figures["server_cpu_percent"] = Figure(server, note=f"{VIEWERS} viewers")
        note = f"median {np.median(searches_ms):.0f} ms, {len(searches_ms)} queries, {nics} NICs"
        figures["search_ms"] = Figure(float(np.percentile(searches_ms, 95)), note=note)
    return figures


def _loads(driver: Any, url: str, count: int) -> tuple[Loads, Loads]:
    """Return the times of `count` loads with an empty cache, and of `count` loads with a full cache."""
    driver.execute_cdp_cmd("Network.enable", {})
    times: list[list[Sequence[float]]] = [[], []]
    for full, rows in enumerate(times):
        for number in range(count):
            if not full:
                driver.execute_cdp_cmd("Network.clearBrowserCache", {})
            rows.append(_load(driver, f"{url}{TABS[number % len(TABS)]}"))
    empty, full_cache = (Loads(*zip(*rows, strict=True)) for rows in times)
    return empty, full_cache


def _load(driver: Any, address: str) -> Sequence[float]:
    driver.get(address)
    wait_until(lambda: driver.execute_script(TIMES), READY_S, address)
    times: Sequence[float] = driver.execute_script(TIMES)
    return times


def _percent(processes: Callable[[], Sequence[psutil.Process]], seconds: float) -> float:
    """Return the processor time of processes over the next `seconds`, percent of one processor."""

    def used_s() -> Mapping[int, float]:
        return {one.pid: sum(one.cpu_times()[:2]) for one in processes()}

    before, begin_s = used_s(), time.monotonic()
    threading.Event().wait(seconds)
    after = used_s()
    return 100 * sum(after[pid] - before.get(pid, 0.0) for pid in after) / (time.monotonic() - begin_s)


def _mounted(driver: Any, address: str) -> None:
    """Load an address and wait until the live elements have replaced the static copy of the first paint."""
    _load(driver, address)
    script = f"return !document.getElementById('{first_paint.ID}')"
    wait_until(lambda: driver.execute_script(script), READY_S, f"the elements of {address}")


def _browser_percent(driver: Any, address: str) -> float:
    _mounted(driver, address)
    root = psutil.Process(driver.service.process.pid)
    return _percent(lambda: root.children(recursive=True), TAB_S)


def _server_percent(driver: Any, url: str) -> float:
    """Return the processor time of the page's process while `VIEWERS` windows show its tabs."""
    first = driver.current_window_handle
    for number in range(VIEWERS - 1):
        driver.switch_to.new_window("window")
        driver.get(f"{url}{TABS[number % len(TABS)]}")
    page = next(child for child in multiprocessing.active_children() if child.name == "page")
    percent = _percent(lambda: [psutil.Process(page.pid)], 2 * TAB_S)
    for window in driver.window_handles:
        if window != first:
            driver.switch_to.window(window)
            driver.close()
    driver.switch_to.window(first)
    return percent


def _searches(driver: Any, url: str, nics: int, count: int) -> list[float]:
    """Return the times, ms, until the results of `count` different queries, at most `nics`, are drawn."""
    _mounted(driver, f"{url}fabric")
    queries = [f"h{1 + number * nics // count}/eth1" for number in range(count)]
    return [float(driver.execute_async_script(SEARCH, query)) for query in queries]


@contextmanager
def _static_pages(driver: Any, url: str) -> Iterator[str]:
    """Serve a copy of each tab without scripts, padded to the bytes that the tab had loaded."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-web-") as folder:
        for path in TABS:
            _load(driver, f"{url}{path}")
            html, size = driver.execute_script(SNAPSHOT)
            padding = "x" * max(0, int(size) - len(html.encode()))
            (Path(folder) / path).with_suffix(".html").write_text(f"<!doctype html>{html}<!--{padding}-->")
        handler = functools.partial(_Quiet, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/"
            finally:
                server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return super().translate_path(path) + ".html"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def _live_page(nics: int, progress: Progress) -> Iterator[tuple[str, multiprocessing.process.BaseProcess]]:
    """Run the page on a log that gets a fleet's records in real time for `LIVE_S`.

    Yield the page's address and the process that publishes the records.
    """
    job = JobSettings(name="train", nics=max(2, nics // 4), bytes=1e8)
    begin_s = time.monotonic()
    records = [
        record
        for record in recorded(SimSettings(nics=nics, jobs=(job,), rate_pps=20), PERIOD_S, time.time_ns())
        if record.topic in READ
    ]
    progress(f"{nics} NICs: {PERIOD_S} s simulated in {time.monotonic() - begin_s:.0f} s")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabrictime-bench-web-")))
        write_log(folder / "log", ())
        log = stack.enter_context(SteppedLog(folder / "log", PARTITIONS))
        context = multiprocessing.get_context("spawn")
        has_begun, late_s = context.Event(), context.Value("d", 0.0)
        arguments = (log.bootstrap, records, has_begun, late_s)
        publisher = context.Process(target=_publish, args=arguments, daemon=True)
        publisher.start()
        stack.callback(publisher.join, 10)
        stack.callback(publisher.terminate)
        url = stack.enter_context(running_page(folder, log.bootstrap, None))
        wait_until(lambda: has_begun.is_set() or not publisher.is_alive(), BEGIN_LIMIT_S, "the first record")
        yield url, publisher
        if publisher.exitcode:
            raise RuntimeError(f"publisher of {nics} NICs' records: exit status {publisher.exitcode}")
        progress(f"{nics} NICs: {len(records) / PERIOD_S:.0f} records/s, up to {late_s.value:.1f} s late")


def _publish(bootstrap: str, records: Sequence[Record], has_begun: Any, late_s: Any) -> None:
    """Publish records repeatedly for `LIVE_S`, with the times at which they are published.

    `has_begun` is set when publishing has caught up with the present. From then on `late_s` gets the longest
    delay of a record, s.
    """
    rounds, first_ns = LIVE_S // PERIOD_S, records[0].at_ns
    sample = records[::20]
    list(later(sample, 0))  # parses the schemas
    began_s = time.monotonic()
    list(later(sample, 0))
    round_s = (time.monotonic() - began_s) * len(records) / len(sample)
    begin_ns = time.time_ns() + round(LEAD * rounds * round_s * 1e9)
    first = list(later(records, begin_ns - first_ns))
    # Routes and states go on: what began in the first round has not begun anew in a later one.
    rest = (later(first, number * PERIOD_S * 1_000_000_000, ("since_ns",)) for number in range(1, rounds))
    present = [*first, *(record for records_of_round in rest for record in records_of_round)]
    producer = open_producer(as_settings(bootstrap), {"linger.ms": 5})
    for record in present:
        wait_ns = record.at_ns - time.time_ns()
        if wait_ns > 5_000_000:
            producer.poll(0)
            time.sleep(wait_ns / 1e9)
            has_begun.set()
        if has_begun.is_set():
            late_s.value = max(late_s.value, -wait_ns / 1e9)
        produce(producer, record.topic, record.value, record.key)
    producer.flush(10)
