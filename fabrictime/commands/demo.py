"""Runs the guided tour in a terminal: an introduction, the events as they happen, a table at the end.

Ctrl-C, a hang-up or SIGTERM ends the tour: faults are healed and the former mode is restored. Further signals
do not interrupt the healing.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from fabrictime.bench._fabric import CannotRun
from fabrictime.commands.options import settings_of
from fabrictime.demo import summary
from fabrictime.demo.pipeline import open_pipeline
from fabrictime.demo.result import TourResult
from fabrictime.demo.run import run_tour
from fabrictime.demo.script import STEPS, Step
from fabrictime.demo.story import Line
from fabrictime.testbed.control import NoFabric
from fabrictime.testbed.fabric.fabric import FabricError

INTRO: Final = (
    "fabrictime demo: a guided tour of about 90 seconds. Two jobs load a small fabric. Then five faults "
    "follow, one at a time: a grey link, a blackhole, a flapping link, a collision and an incast. Each is "
    "healed again. You see when it is detected, {done}, and how the iterations of the jobs change."
)
ACTING: Final = "which flows are moved or slowed down (mode ACT, and pacing is allowed)"
OBSERVING: Final = "which flows the policy would move or slow down (mode OBSERVE: nothing is done)"
PRIVATE: Final = (
    "Only the private testbed is touched: network namespaces of this machine. No real NIC, switch or host "
    "is involved. The end and Ctrl-C heal everything and restore the former mode."
)
STYLES: Final = {
    "broken": "bold red",
    "loaded": "bold red",
    "detected": "bold yellow",
    "cause": "yellow",
    "alert": "yellow",
    "action": "bold cyan",
    "wanted": "cyan",
    "healed": "bold green",
    "ended": "bold green",
    "missed": "bold red",
}
REFRESH_HZ: Final = 2.0
"""How often per second the phase is redrawn: seldom, because the tour itself needs the processors."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED: Final = 130


def main(
    config: Path | None, directory: Path | None, *, observe: bool, as_json: bool, seed: int | None = None
) -> int:
    """Run the tour; return the exit code: 1 if it cannot run or heal a fault, 130 if interrupted, else 0."""
    screen = Screen(Console(stderr=as_json, highlight=False))
    settings = settings_of(config, directory)
    with _interrupts():
        try:
            return _run(settings, screen, acting=not observe, as_json=as_json, seed=seed)
        except KeyboardInterrupt:
            screen.remark("Stopped. All faults are healed, and the former mode is restored.")
            return _INTERRUPTED
        except (ValueError, CannotRun, FabricError, NoFabric) as error:
            screen.error(str(error))
            return 1


def _run(settings: Any, screen: Screen, *, acting: bool, as_json: bool, seed: int | None) -> int:
    screen.remark(INTRO.format(done=ACTING if acting else OBSERVING))
    screen.remark(PRIVATE)
    with open_pipeline(settings, screen.remark) as pipeline:
        screen.remark(f"Live page: {pipeline.web or 'none, [up] web is off'}", "bold")
        with screen.waiting():
            result = run_tour(pipeline, screen, seed=seed, acting=acting)
        _ignore_signals()
    if as_json:
        print(summary.as_json(result), flush=True)
    screen.end(result)
    return 1 if summary.failures(result.outcomes) else 0


class Screen:
    """Prints the tour, at most 80 columns wide; as plain lines if the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._width = min(summary.WIDTH, console.width) if console.is_terminal else summary.WIDTH

    def remark(self, text: str, style: str = "") -> None:
        """Print a paragraph of text in a rich style."""
        for line in summary.paragraph(text, self._width):
            self._console.print(Text(line, style), soft_wrap=True)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Show the tour's phase below the printed lines while the context is active, on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status("", refresh_per_second=REFRESH_HZ) as self._status:
            yield
        self._status = None

    def phase(self, text: str) -> None:
        """Show a text as the tour's present phase, if the output is a terminal."""
        if self._status is not None:
            self._status.update(Text(text, "dim"))

    def error(self, text: str) -> None:
        """Print the reason why the tour cannot run, in one line."""
        Console(stderr=True, highlight=False).print(Text(f"fabrictime: {text}"), soft_wrap=True)

    def heading(self, number: int, step: Step) -> None:
        """Print the number and title of a step of the tour."""
        self._console.print()
        title = f"{number} of {len(STEPS)}: {step.fault.value}. {step.title[0].upper()}{step.title[1:]}."
        self.remark(title, "bold")

    def line(self, line: Line) -> None:
        """Print a line about an event of the tour."""
        for number, row in enumerate(summary.text_of(line, self._width)):
            text = Text(row)
            if number == 0 and (style := STYLES.get(line.label)):
                begin = row.index(line.label)
                text.stylize(style, begin, begin + len(line.label))
            self._console.print(text, soft_wrap=True)

    def end(self, result: TourResult) -> None:
        """Print the table that summarizes the tour."""
        head, *rows = summary.rows(result.outcomes, acting=result.acting)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for title in head:
            table.add_column(title, no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print()
        Console(file=self._console.file, width=self._width, highlight=False).print(table)
        self._console.print()
        for note in summary.notes(result.outcomes, acting=result.acting):
            self.remark(note)
        self.remark(
            f"Right within 3 s: {result.right_in_time} of {len(result.outcomes)}. Seed {result.seed}."
        )
        for failure in summary.failures(result.outcomes):
            self.remark(failure, "bold red")


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into KeyboardInterrupt; ignore later ones while faults are
    healed.
    """
    former = {number: signal.getsignal(number) for number in _SIGNALS}

    def interrupt(number: int, frame: object) -> None:
        _ignore_signals()
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
