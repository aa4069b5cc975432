"""Reads the rows of the live page with their times: in Chromium, or through the page's own code.

A `Sight` has the rows shown from a time on (ms of CLOCK_REALTIME). In a browser a row counts once it is
painted. Otherwise a row counts once the page's code has derived it from the topics, before transfer and
painting.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from fabrictime.bench._waiting import wait_for
from fabrictime.state.fabric_consumer import FabricConsumer
from fabrictime.state.fabric_state import FabricState, Part
from fabrictime.web.live_fabric import PERIOD_S
from fabrictime.web.tabs.contention import frames
from fabrictime.web.tabs.fabric import frames as fabric_frames
from schemas import codec
from schemas.topics import FLOWS

CHROMIUM: Final = "/usr/bin/chromium"
CHROMEDRIVER: Final = "/usr/bin/chromedriver"
Tab = Literal["fabric", "contention"]


class Named(NamedTuple):
    """A row of the page: its subject, its kind and its text."""

    subject: str
    kind: str
    text: str


class Sight(NamedTuple):
    """The `rows` of the open tab, which the page showed from `at_ms` on."""

    at_ms: float
    rows: tuple[Named, ...]


class Reader(Protocol):
    """Reads the rows of one tab of the page at a time."""

    how: str

    def open(self, tab: Tab) -> None:
        """Open a tab, and forget earlier sightings."""

    def news(self) -> list[Sight]:
        """Return the changes of rows since the last call, oldest first."""

    def cables(self) -> set[str]:
        """Return the cables that the tab Fabric draws, by id."""

    def close(self) -> None:
        """Close the reader."""


def browser_missing() -> str | None:
    """Return why no browser can be used, or None if one can."""
    for path in (CHROMIUM, CHROMEDRIVER):
        if not Path(path).exists():
            return f"{path} is missing (Debian: apt-get install chromium chromium-driver)"
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed (pip install selenium)"
    return None


WATCH: Final = """
window.ftSeen = []; let shown = null, due = false;
const rows = arguments[0] === 'fabric'
  ? () => [...document.querySelectorAll('[data-testid=trouble] tbody tr')].map((r) => [
      r.querySelector('.ft-subject')?.textContent ?? '', r.querySelector('.ft-pill')?.textContent ?? '',
      r.querySelector('.ft-detail')?.textContent ?? '']).filter((r) => r[0])
  : () => [...document.querySelectorAll('[data-testid=windows] tbody tr')].filter(
      (r) => r.querySelector('.ft-active')).map((r) => {
      const c = [...r.querySelectorAll('td')].map((d) => d.textContent.trim());
      return [c[2], c[3], c[4]]; });
const read = () => {
  due = false;
  const found = rows(), said = JSON.stringify(found);
  if (said !== shown) { shown = said; window.ftSeen.push([Date.now(), found]); }
};
new MutationObserver(() => { if (!due) { due = true; requestAnimationFrame(() => setTimeout(read)); } })
  .observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true});
read();
"""
"""Script that records the rows after each change, once the frame that shows the change is painted."""

SHOWN_S: Final = 120.0
STANDS: Final = """
const picture = arguments[0] === 'fabric' ? 'fabric' : 'bars';
const cables = document.querySelector('[data-testid=kpi-cables] .ft-kpi-value')?.textContent ?? '—';
return !!document.querySelector(`[data-testid=${picture}]`) && cables !== '—';
"""
SHOWN: Final = "return document.body?.innerText ?? '';"
IDLE: Final = "requestIdleCallback(arguments[arguments.length - 1], {timeout: 10000});"
"""Script that waits until the browser is idle; a tab is complete once it shows figures and this returns."""

DRAWN: Final = """
const d = document.querySelector('[data-testid=fabric]')?.ft?.drawer;
if (!d?.plan) return null;
const n = d.plan.nodes;
return d.plan.cables.map((c) => [`${n[c[0]][0]}:${c[1]}`, `${n[c[2]][0]}:${c[3]}`]);
"""


class BrowserReader:
    """Reads the page in headless Chromium."""

    how = "as painted by headless Chromium"

    def __init__(self, url: str) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self._url = url
        self._profile = tempfile.TemporaryDirectory(
            prefix="fabrictime-chromium-",
            ignore_cleanup_errors=True,  # a renderer may still write while it ends
        )
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            f"--user-data-dir={self._profile.name}",
        ):
            options.add_argument(argument)
        self.driver: Any = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
        self.driver.set_window_size(1400, 900)

    def open(self, tab: Tab) -> None:
        """Open a tab, wait until it is complete, and forget earlier sightings."""
        self.driver.get(f"{self._url}{tab}")
        if wait_for(lambda: self.driver.execute_script(STANDS, tab), SHOWN_S, poll_s=0.05) is None:
            page_text = " ".join(str(self.driver.execute_script(SHOWN)).split())[:300]
            late = f"{self._url}{tab}: no cable on the page within {SHOWN_S:g} s"
            raise TimeoutError(f"{late}; it shows: {page_text or 'nothing'}")
        self.driver.execute_async_script(IDLE)
        self.driver.execute_script(WATCH, tab)

    def news(self) -> list[Sight]:
        """Return the changes of rows since the last call, oldest first."""
        changes = self.driver.execute_script("const s = window.ftSeen; window.ftSeen = []; return s;")
        return [
            Sight(at_ms, tuple(Named(_id(subject), kind, lines) for subject, kind, lines in rows))
            for at_ms, rows in changes
        ]

    def cables(self) -> set[str]:
        """Return the cables that the tab Fabric draws, by id."""
        return {"<>".join(sorted(ends)) for ends in self.driver.execute_script(DRAWN) or ()}

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
        self._profile.cleanup()


class TopicReader_:
    """Runs the page's own feed and rows in this process, on a machine without a browser."""

    how = f"as the page's feed makes it, {PERIOD_S * 1e3:g} ms added for the page's own period; not drawn"

    def __init__(self, bootstrap: str) -> None:
        self._state = FabricState(lambda value: codec.decode(value, FLOWS.type))
        self._seen: list[Sight] = []
        self._tab: Tab = "fabric"
        self._last: tuple[Named, ...] | None = None
        self._consumer = FabricConsumer(bootstrap, self._state, self._changed)
        self._consumer.start()

    def open(self, tab: Tab) -> None:
        """Select a tab, whose rows are then read, and forget earlier sightings."""
        with self._state.lock:
            self._tab, self._last = tab, None
            self._seen.clear()
        self._changed(frozenset())

    def news(self) -> list[Sight]:
        """Return the changes of rows since the last call, oldest first."""
        self._changed(frozenset())  # rows that end by time alone
        with self._state.lock:
            sights, self._seen = self._seen, []
        return sights

    def cables(self) -> set[str]:
        """Return the cables that the tab Fabric would draw, by id."""
        with self._state.lock:
            links = self._state.plan().links
            return {self._state.cable_graph.cable(number) for number in links[::2]}

    def close(self) -> None:
        """Close the feed."""
        self._consumer.stop()

    def _changed(self, parts: frozenset[Part]) -> None:
        now_ns = time.time_ns()
        with self._state.lock:
            rows = self._rows(now_ns)
            if rows != self._last:
                self._last = rows
                self._seen.append(Sight(now_ns / 1e6 + PERIOD_S * 1e3, rows))

    def _rows(self, now_ns: int) -> tuple[Named, ...]:
        if self._tab == "contention":
            return tuple(
                Named(window["link"], frames.KINDS.get(window["kind"], "unknown"), window["text"])
                for window in self._state.open_contention(now_ns)
            )
        rows = fabric_frames.trouble_rows(self._state)
        return tuple(Named(row["id"], row["state"], row["text"]) for row in rows)


def _id(subject: str) -> str:
    """Return the id of a link, cable, NIC or host from the text that the page shows for it."""
    return subject.replace(" ⇄ ", "<>").replace(" → ", ">")
