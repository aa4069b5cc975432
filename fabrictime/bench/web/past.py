"""Measures the time until the page shows the map at a random moment of a recorded past of 1,024 NICs.

The operators make ten seconds of records with a dead link and a job, which are repeated with later times. The
time runs from the reader's choice until Chromium has drawn the map of that moment. Each moment is chosen only
once; the first one, for which the page reads the records of all links, counts too.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._waiting import wait_until
from fabrictime.bench.detect.web_reader import BrowserReader, browser_missing
from fabrictime.bench.web._recorded import recorded, repeated, shown
from producers.sim.settings import JobSettings, SimSettings

NICS: Final = 1_024
PERIOD_S: Final = 10
"""Simulated time, s."""
SPAN_S: Final = 120
"""Length of the past, s: the log of an hour has 12 GB. The log finds a time by its index."""
MOMENTS: Final = 40
DRAWN_S: Final = 60.0
READY: Final = """
const drawer = document.querySelector('[data-testid=fabric]')?.ft?.drawer;
const slider = document.querySelector('[data-testid=time-slider]');
return drawer?.plan?.nics.length === arguments[0] && drawer.plan.cables.length > 0 && slider?.step === "1000";
"""
SEEK: Final = """
const [at, done] = arguments, bar = document.querySelector('.ft-time'), begin = performance.now();
const map = document.querySelector('[data-testid=fabric]'), before = +map.dataset.frames;
const slider = document.querySelector('[data-testid=time-slider]');
slider.value = at;
slider.dispatchEvent(new Event('change'));
const check = () => {
  if (+bar.dataset.at === at && +map.dataset.frames > before && map.ft.drawer.links)
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
  else setTimeout(check, 2);
};
check();
"""
"""Script that chooses a moment and returns the time until its map is drawn, ms."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figure; `quick`: 16 NICs and a few moments."""
    missing = browser_missing()
    if missing:
        return {"past_moment_ms": Missing(missing)}
    nics, span_s, moments = (16, 120, 5) if quick else (NICS, SPAN_S, MOMENTS)
    job = JobSettings(name="train", nics=nics // 4, bytes=1e8)
    settings = SimSettings(nics=nics, jobs=(job,), rate_pps=20, faults=("down leaf1>spine1 after 3s for 4s",))
    start_ns = time.time_ns() - (span_s + 60) * 1_000_000_000
    begin_s = time.monotonic()
    records = recorded(settings, PERIOD_S, start_ns)
    progress(f"{nics} NICs: {PERIOD_S} s simulated in {time.monotonic() - begin_s:.0f} s")
    rounds = repeated(records, PERIOD_S * 1_000_000_000, span_s // PERIOD_S)
    with shown(rounds) as url, closing(BrowserReader(url)) as browser:
        browser.driver.set_script_timeout(DRAWN_S)
        browser.driver.get(f"{url}fabric?range=21600")
        wait_until(lambda: browser.driver.execute_script(READY, nics), DRAWN_S, "the map")
        progress(f"the page shows {nics} NICs")
        rng, first_s = np.random.default_rng(17), start_ns // 1_000_000_000
        times_ms = [1000 * (first_s + int(rng.integers(PERIOD_S, span_s))) for _ in range(moments)]
        took_ms = [float(browser.driver.execute_async_script(SEEK, at_ms)) for at_ms in times_ms]
    note = f"median {statistics.median(took_ms):.0f}, worst {max(took_ms):.0f} of {moments} moments"
    note += f"; {len(records):,} records of {PERIOD_S} s, repeated over {span_s} s"
    return {"past_moment_ms": Figure(float(np.percentile(took_ms, 95)), note=note)}
