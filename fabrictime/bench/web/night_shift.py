"""Measures whether the first screen of the tab Now names place, kind and job of an incident.

Twenty incidents are drawn, five of them without a fault, and run on a simulated fleet with a job. A script
reads only the text on the first screen at 1440 x 900. It answers with the first incident in the list, or that
no fault exists. An answer is right if kind, place and job are those of the fault. The job counts if its flows
crossed the link, or ran on the host, when the fault began.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from actuators.notify.runbooks import RUNBOOKS
from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._waiting import wait_until
from fabrictime.bench.detect.web_reader import BrowserReader, browser_missing
from fabrictime.bench.web._recorded import Record, recorded, shown
from fabrictime.web.time_bar import time_of
from producers.sim.settings import JobSettings, SimSettings
from schemas import codec
from schemas.records import AlertKind, Flow
from schemas.topics import FLOWS

INCIDENTS: Final = 20
QUIET: Final = 5
NICS: Final = 16
JOB: Final = "train"
FAULT_S: Final = 8
RECORDED_S: Final = 22
SEEN_BEFORE_END_S: Final = 1
READY_S: Final = 60.0
KINDS: Final = {
    "down": AlertKind.LINK_DOWN,
    "blackhole": AlertKind.LINK_DOWN,
    "grey": AlertKind.LINK_GREY,
    "flap": AlertKind.LINK_FLAPPING,
    "dead": AlertKind.HOST_DOWN,
    "incast": AlertKind.CONTENTION,
}
FIRST_SCREEN: Final = """
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const texts = [], range = document.createRange();
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const text = node.textContent.trim();
  if (!text || !node.parentElement.checkVisibility()) continue;
  range.selectNodeContents(node);
  const box = range.getBoundingClientRect();
  if (box.width && box.bottom <= innerHeight && box.right <= innerWidth && box.top >= 0) texts.push(text);
}
return texts;
"""
"""Script that returns the texts on the first screen, in the order of reading."""
SHOWS_MOMENT: Final = """
const sentence = document.querySelector('[data-testid=health-sentence]')?.innerText ?? '';
const banner = document.querySelector('[data-testid=banner]');
return sentence && !/not known|is measured yet/.test(sentence) && !banner.checkVisibility();
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A drawn incident: the line of its fault, empty for a quiet one, and the nodes at its place."""

    line: str
    nodes: tuple[str, ...] = ()

    @property
    def is_directed(self) -> bool:
        """Whether only one direction of a cable is at fault."""
        return len(self.nodes) == 2 and "<>" not in self.line and not self.line.startswith("down")

    @property
    def title(self) -> str:
        """The kind of the fault in the page's words; empty for a quiet incident."""
        return RUNBOOKS[KINDS[self.line.split()[0]]].title if self.line else ""


class Answer(NamedTuple):
    """The kind, place and jobs of the first incident; all empty if nothing is wrong."""

    title: str = ""
    where: str = ""
    jobs: frozenset[str] = frozenset()


def draw(seed: int) -> list[Case]:
    """Return the incidents in random order."""
    rng = np.random.default_rng(seed)
    cases = [Case("")] * QUIET
    kinds = list(KINDS)
    for number in range(INCIDENTS - QUIET):
        kind = kinds[number % len(kinds)]
        link = f"leaf{rng.integers(1, 5)}", f"spine{rng.integers(1, 5)}"
        host = f"h{rng.integers(1, NICS + 1)}"
        joint = ">" if rng.random() < 0.5 else "<>"
        target = joint.join(link)
        line, nodes = {
            "down": (f"down {target}", link),
            "blackhole": (f"blackhole {target}", link),
            "grey": (f"grey {rng.integers(10, 60)}% {target}", link),
            "flap": (f"flap {rng.integers(8, 12)} {target} every 1s", link),
            "dead": (f"dead {host}", (host,)),
            "incast": (f"incast {rng.integers(6, 12)} {host}/eth1", (host,)),
        }[kind]
        cases.append(Case(line, nodes))
    return [cases[k] for k in rng.permutation(len(cases))]


def read(texts: Sequence[str]) -> Answer:
    """Return the answer of a reader of the first screen. Raises ValueError if the screen gives none."""
    severities = [k for k, text in enumerate(texts) if text in ("CRITICAL", "WARNING", "INFO")]
    if not severities:
        if any(text.startswith("Nothing is wrong") for text in texts):
            return Answer()
        raise ValueError(f"neither an incident nor that nothing is wrong: {' | '.join(texts)[:300]}")
    row = list(texts[severities[0] + 1 :])
    title, _, where = row[0].partition(": ")
    since = next(k for k, text in enumerate(row) if re.fullmatch(r"\d\d:\d\d:\d\d", text))
    return Answer(title, where, frozenset(row[since + 2].replace(",", " ").split()) - {"none"})


def jobs_of(case: Case, records: Sequence[Record], begin_ns: int) -> set[str]:
    """Return the jobs with a flow on the place of a fault when it began."""
    jobs = set()
    for record in records:
        if record.topic == FLOWS.name and begin_ns - 2_000_000_000 < record.at_ns <= begin_ns:
            for flow in codec.decode(record.value, FLOWS.type)["flows"]:
                if flow["job"] and _is_at(flow, case):
                    jobs.add(flow["job"])
    return jobs


def _is_at(flow: Flow, case: Case) -> bool:
    """Return whether a flow crosses the place of a fault, in the direction that is at fault."""
    ends = [tuple(end.partition(":")[0] for end in link.split(">")) for link in flow["links"]]
    if case.is_directed:
        return case.nodes in ends
    return bool(case.nodes) and any(set(case.nodes) <= set(pair) for pair in ends)


def is_right(case: Case, answer: Answer, jobs: set[str]) -> bool:
    """Return whether an answer names the fault and, if the fault concerns a job, that job."""
    nodes = set(re.findall(r"(?:leaf|spine|h)\d+", answer.where))
    return answer.title == case.title and set(case.nodes) <= nodes and jobs <= answer.jobs


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figure; `quick` takes three of the incidents."""
    missing = browser_missing()
    if missing:
        return {"night_shift_right": Missing(missing)}
    right, misses = 0, []
    for case, answer, jobs in _answers(draw(11)[: 3 if quick else None]):
        is_case_right = not isinstance(answer, str) and is_right(case, answer, jobs)
        right += is_case_right
        line = f"{case.line or 'quiet'}, jobs {sorted(jobs)}: {answer}"
        progress(f"{'right' if is_case_right else 'WRONG'}: {line}")
        misses += [] if is_case_right else [case.line or "quiet"]
    return {"night_shift_right": Figure(right, note="wrong: " + "; ".join(misses) if misses else None)}


def _answers(cases: Sequence[Case]) -> Iterator[tuple[Case, Answer | str, set[str]]]:
    """Yield each case with its answer, or the reason for its lack, and the jobs concerned."""
    with closing(BrowserReader("")) as browser:
        metrics = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for number, case in enumerate(cases):
            start_ns = time.time_ns() - (RECORDED_S + 60) * 1_000_000_000
            settings = SimSettings(
                nics=NICS,
                seed=number + 1,
                rate_pps=100,
                load=0.05,
                jobs=(JobSettings(name=JOB, nics=8, bytes=2e7, compute_ms=20),),
                faults=(f"{case.line} after {FAULT_S}s",) if case.line else (),
            )
            records = recorded(settings, RECORDED_S, start_ns)
            jobs = jobs_of(case, records, start_ns + FAULT_S * 1_000_000_000)
            moment = time_of(records[-1].at_ns - SEEN_BEFORE_END_S * 1_000_000_000)
            with shown(records) as url:
                browser.driver.get(f"{url}now?at={moment}")
                texts = _settled(browser.driver)
            try:
                answer: Answer | str = read(texts)
            except ValueError as error:
                answer = str(error)
            yield case, answer, jobs


def _settled(driver: Any) -> list[str]:
    """Return the texts of the first screen once the page shows the selected moment."""
    wait_until(lambda: driver.execute_script(SHOWS_MOMENT), READY_S, "the tab Now")
    seen: list[str] = driver.execute_script(FIRST_SCREEN)
    return seen
