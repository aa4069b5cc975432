"""Counts visible words of the page that are in neither a list of plain English nor the glossary.

Chromium shows all tabs of a simulated fleet before, during and after an incident. Names of objects, units and
commands do not count. A title that appears under the mouse counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._waiting import wait_until
from fabrictime.bench.detect.web_reader import BrowserReader, browser_missing
from fabrictime.bench.history import running_server
from fabrictime.bench.web._recorded import recorded, shown, write_history
from fabrictime.bench.web.axe import OPENED, READY_S, SETTLED
from fabrictime.web.tabs.base import PAGES
from fabrictime.web.time_bar import time_of
from producers.sim.settings import JobSettings, SimSettings

S: Final = 1_000_000_000
ENGLISH: Final = Path("/usr/share/dict/american-english")
GLOSSARY: Final = Path(__file__).resolve().parents[3] / "docs" / "glossary.md"
UNITS: Final = re.compile(r"ns|µs|ms|s|min|h|d|[kMGT]i?B|B|[kMGT]?bits?|UTC|px|ppb|ppm|pps|fabrictime")
"""Units, and the name of the product."""
NAME: Final = re.compile(r"[^\W_]*[\d/:>=_@.⇄→*\\][^\s]*\S")
"""A token that is no term: the name of an object, a number, an address or an option."""
TERM: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
MOMENTS_S: Final = (8, 25, 39)
"""Moments before, during and after the incident, s after the begin."""
RECORDED_S, FAULT_S, FAULT_END_S = 40, 12, 20
VISIBLE: Final = """
const texts = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const seen = (part) => part.checkVisibility({opacityProperty: true, visibilityProperty: true});
const skipped = 'script, style, code, pre, i.q-icon';
while (walk.nextNode()) {
  const part = walk.currentNode.parentElement;
  if (!part.closest(skipped) && seen(part)) texts.push(walk.currentNode.textContent);
}
for (const part of document.querySelectorAll('[title], [placeholder]'))
  if (seen(part)) texts.push(part.title, part.placeholder ?? '');
return texts.filter((text) => text.trim());
"""


def glossary_terms(markdown: str) -> set[str]:
    """Return the words that the glossary's entries explain, in lower case; states anywhere in a row count."""
    rows = [line.split("|") for line in markdown.splitlines() if line.startswith("| ")]
    terms = [term for row in rows for term in TERM.findall(row[1])]
    states = re.findall(r"[A-Z][A-Z_]+", markdown)
    return {
        term.lower() for term in (*terms, *states, *(part for state in states for part in state.split("_")))
    }


def terms_in(text: str) -> Iterator[str]:
    """Yield the words of a text without names of objects, numbers and units."""
    for token in re.split(r"[\s(),;\"]+", text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")):
        token = re.sub(r"^\W+|('s)?\W+$", "", token).removesuffix("'s")
        if token and not NAME.fullmatch(token):
            yield from (term for term in TERM.findall(token) if not UNITS.fullmatch(term))


def unexplained(texts: Iterable[str], english: set[str], glossary: set[str]) -> dict[str, str]:
    """Return the words that are in neither list, each with a text that contains it."""
    missing: dict[str, str] = {}
    for text in texts:
        for term in terms_in(text):
            lower = term.lower()
            is_explained = bool({lower, lower.removesuffix("s")} & glossary)
            if len(term) > 1 and not is_explained and not {term, lower, term.capitalize()} & english:
                missing.setdefault(lower, text.strip())
    return missing


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figure; `quick` takes one moment."""
    missing = browser_missing()
    if missing is None and not ENGLISH.exists():
        missing = f"{ENGLISH} is missing (Debian: apt-get install wamerican)"
    if missing is None and not GLOSSARY.exists():
        missing = f"{GLOSSARY} is missing (it is part of the source)"
    if missing:
        return {"words_without_entry": Missing(missing)}
    texts = visible_texts(MOMENTS_S[1:2] if quick else MOMENTS_S)
    english = set(ENGLISH.read_text(encoding="utf-8").split())
    missing_terms = unexplained(texts, english, glossary_terms(GLOSSARY.read_text(encoding="utf-8")))
    for term, text in sorted(missing_terms.items()):
        progress(f"{term}: {text:.100}")
    count = len({term for text in texts for term in terms_in(text)})
    return {"words_without_entry": Figure(len(missing_terms), note=f"of {count} words in {len(texts)} texts")}


def visible_texts(moments_s: Iterable[float]) -> list[str]:
    """Return the texts of all tabs at `moments_s` of a fleet with a job, a grey and a dead link."""
    settings = SimSettings(
        nics=8,
        jobs=(JobSettings(name="train", nics=8, bytes=2e8, compute_ms=20),),
        rate_pps=100,
        faults=(
            f"grey 20% leaf1>spine1 after {FAULT_S}s for {FAULT_END_S}s",
            f"down leaf2>spine2 after {FAULT_S}s for {FAULT_END_S}s",
        ),
    )
    start_ns = time.time_ns() - (RECORDED_S + 60) * S
    records = recorded(settings, RECORDED_S, start_ns)
    moments = [f"at={time_of(start_ns + round(moment_s * S))}" for moment_s in moments_s]
    paths = [*(path.strip("/") for path in PAGES), *OPENED]
    with ExitStack() as stack:
        history = stack.enter_context(running_server())
        write_history(history, records)
        url = stack.enter_context(shown(records, history))
        browser = stack.enter_context(closing(BrowserReader(url)))
        return [
            text
            for moment in (*moments, "")
            for path in paths
            for text in _texts_at(browser.driver, f"{url}{path}{'&' if '?' in path else '?'}{moment}")
        ]


def _texts_at(driver: Any, address: str) -> list[str]:
    driver.get(address)
    with suppress(TimeoutError):  # a view that still waits is read as it is
        wait_until(lambda: driver.execute_script(SETTLED), READY_S, address)
    driver.execute_async_script("requestIdleCallback(arguments[0], {timeout: 5000})")
    texts: list[str] = driver.execute_script(VISIBLE)
    return texts
