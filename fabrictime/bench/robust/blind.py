"""Measures for how long a command or the page reports health without fresh evidence.

`fabrictime up` runs on loopback. Its probers, its worker and its links service are stopped in turn, with
every process that `up` starts in their place. Meanwhile each command runs repeatedly with `--check`, and a
browser reads the page. A command whose evidence comes from the stopped service must not exit with 0, and the
page must show its banner. The figure is the time over which command or page reported health all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, address_of, up_in_folder, with_any_ports
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.detect.web_reader import BrowserReader, browser_missing
from fabrictime.runtime import status

PROBER, WORKER, LINKS = "prober", "worker", "links"
SERVICES: Final = (PROBER, WORKER, LINKS)


class Command(NamedTuple):
    """A command that reports health; without the services in `needs` it has no fresh evidence."""

    name: str
    needs: frozenset[str]


COMMANDS: Final = (
    Command("clock", frozenset({PROBER, WORKER})),
    Command("links", frozenset({PROBER, LINKS})),
    Command("alerts", frozenset(SERVICES)),
    Command("status", frozenset(SERVICES)),
)
PAGE_TABS: Final = {PROBER: "fabric", WORKER: "clocks", LINKS: "fabric"}
"""The tab of the page that needs each service, by service."""

FRESH_S: Final = 7.0
"""Evidence up to this age counts as fresh: the product's 5 s, its period of 1 s, and one second more."""
STOP_S, QUICK_STOP_S = 60.0, 20.0
WELL_S: Final = 90.0
"""Maximum time until everything reports health, before a service is stopped."""
COMMAND_S: Final = 30.0
HUNT_S: Final = 0.1
START_S: Final = 600
SETTINGS: Final = """
[up]
clock_pages = false
"""
BANNER: Final = """
const banner = document.querySelector('[data-testid=banner]');
return banner === null || (banner.offsetParent !== null ? banner.textContent : '');
"""


class Answer(NamedTuple):
    """Whether a command or the page reported health; `asked_s` is the time since the service was stopped."""

    name: str
    asked_s: float
    is_well: bool


def blind_s(answers: Iterable[Answer], fresh_s: float = FRESH_S) -> float:
    """Return the total time, s, over which commands and the page reported health without fresh evidence.

    An answer counts for the time since the previous answer of the same name, but not with fresh evidence.
    """
    blind = 0.0
    asked_s: dict[str, float] = {}
    for answer in sorted(answers, key=lambda one: one.asked_s):
        before_s = max(fresh_s, asked_s.get(answer.name, fresh_s))
        if answer.is_well and answer.asked_s > fresh_s:
            blind += answer.asked_s - before_s
        asked_s[answer.name] = answer.asked_s
    return blind


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about six minutes, or three with `quick`."""
    progress("blind: starting")
    options = ("--fleet", "loopback", "--for", f"{START_S}s")
    with up_in_folder(with_any_ports(SETTINGS), *options) as (_, data), _page(data) as page:
        survey = _Asked(data, page)
        answers_by_service: dict[str, list[Answer]] = {}
        unwell: set[str] = set()
        for service in SERVICES:
            unwell |= survey.wait_well(service, progress)
            answers_by_service[service] = survey.while_stopped(
                service, QUICK_STOP_S if quick else STOP_S, progress
            )
    return {
        "blind_but_well": _figure(answers_by_service, unwell, browser_missing() if page is None else None)
    }


def _figure(answers_by_service: dict[str, list[Answer]], unwell: Iterable[str], no_page: str | None) -> Value:
    parts: list[str] = []
    total_s = 0.0
    for service, answers in answers_by_service.items():
        for name in sorted({answer.name for answer in answers}):
            seconds = blind_s([answer for answer in answers if answer.name == name])
            total_s += seconds
            if seconds:
                parts.append(f"{name} {seconds:.0f} s without {service}")
    count = sum(map(len, answers_by_service.values()))
    parts.append(f"{count} answers while {', '.join(answers_by_service)} were stopped in turn")
    parts += [f"{name} reported no health before" for name in sorted(unwell)]
    if no_page is not None:
        parts.append(f"page not read: {no_page}")
    return Figure(total_s / 60, note="; ".join(parts))


class _Asked:
    """Runs the commands against one running `up`, and reads its page if a browser is installed."""

    def __init__(self, data: Path, page: _Page | None) -> None:
        self._data, self._page = data, page

    def wait_well(self, service: str, progress: Progress) -> set[str]:
        """Wait until all dependants of a service report health; return the names of those that do not."""
        progress(f"blind: waiting for health, before {service} is stopped")
        end_s = time.monotonic() + WELL_S
        unwell = {name for name, _ in self._questions(service)}
        while unwell and time.monotonic() < end_s:
            unwell = {name for name, ask in self._questions(service) if name in unwell and not ask()}
        return unwell

    def while_stopped(self, service: str, seconds: float, progress: Progress) -> list[Answer]:
        """Stop a service for `seconds`; return the answers of all dependants, which run repeatedly."""
        progress(f"blind: {service} is stopped for {seconds:g} s")
        answers: list[Answer] = []
        with _stopped(self._data, service):
            began_s = time.monotonic()
            while (now_s := time.monotonic() - began_s) < seconds:
                for name, ask in self._questions(service):
                    asked_s = time.monotonic() - began_s
                    answers.append(Answer(name, asked_s, ask()))
                time.sleep(max(0.0, now_s + 1 - (time.monotonic() - began_s)))
        return answers

    def _questions(self, service: str) -> Iterator[tuple[str, Callable[[], bool]]]:
        for command in COMMANDS:
            if service in command.needs:
                yield command.name, partial(self._is_well, command.name)
        if self._page is not None:
            page, tab = self._page, PAGE_TABS[service]
            yield f"page {tab}", lambda: page.is_well(tab)

    def _is_well(self, name: str) -> bool:
        command = [sys.executable, "-m", "fabrictime", name, "--check", "--dir", str(self._data)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


class _Page:
    """The page, opened in a browser with one tab at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._tab = ""
        self._browser = BrowserReader(url)

    def is_well(self, tab: str) -> bool:
        """Return whether the tab shows its elements and no banner."""
        if tab != self._tab:
            self._browser.driver.get(f"{self._url}{tab}")
            self._tab = tab
        return bool(self._browser.driver.execute_script(BANNER) == "")

    def close(self) -> None:
        """Close the browser."""
        self._browser.close()


@contextlib.contextmanager
def _page(data: Path) -> Iterator[_Page | None]:
    """Open the page and yield it, or yield None if there is no browser."""
    if browser_missing() is not None:
        yield None
        return
    if wait_for(lambda: address_of(data, "web"), WELL_S) is None:
        raise CannotRun(f"the page is not ready after {WELL_S:g} s")
    page = _Page(address_of(data, "web"))
    try:
        yield page
    finally:
        page.close()


@contextlib.contextmanager
def _stopped(data: Path, service: str) -> Iterator[None]:
    """Stop a service's processes during the block, and at once those that `up` starts instead."""
    up = psutil.Process(int(status.read(data)["pid"]))
    pids: set[int] = set()
    is_over = threading.Event()

    def hunt() -> None:
        while True:
            for child in up.children():
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if child.pid not in pids and kind_of(child.cmdline()) == service:
                        os.kill(child.pid, signal.SIGSTOP)
                        pids.add(child.pid)
            if is_over.wait(HUNT_S):
                return

    hunter = threading.Thread(target=hunt, name="stopper", daemon=True)
    hunter.start()
    try:
        yield
    finally:
        is_over.set()
        hunter.join()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def kind_of(command: Sequence[str]) -> str | None:
    """Return the kind of service that a command line of `up` starts, or None if it starts none."""
    module = "fabrictime.runtime.service"
    if module not in command[:-1]:
        return None
    return command[command.index(module) + 1]
