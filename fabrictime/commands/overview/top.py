"""Shows the fleet in the terminal: one sentence, problems by cause, slow jobs, the longest queue."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.overview.report import incident_rows, job_rows
from fabrictime.commands.screen import keep_live, table_of, terminal
from fabrictime.state.evidence_reader import EvidenceSettings
from fabrictime.state.labels import LEVEL_COLOURS, arrow
from fabrictime.state.overview_reader import OverviewReader, View
from schemas.units import bytes_text, counted, delay_text

if TYPE_CHECKING:
    from rich.console import RenderableType

PERIOD_S: Final = 1.0
FRAME_LINES: Final = 12
"""Lines of the screen that hold no problem."""
_SEVERITY_COLOURS: Final = {"CRITICAL": "red", "WARNING": "yellow"}


def main(settings: EvidenceSettings, *, once: bool, as_json: bool) -> None:
    """Show the overview until SIGINT. Print it once with `once`, as JSON, or if stdout is no terminal.

    Raises ValueError if the log cannot be read.
    """
    console = terminal(250)
    with OverviewReader(settings) as reader:
        reader.catch_up()
        if as_json:
            print(json.dumps(as_record(reader.view()), allow_nan=False))
        elif once or not console.is_terminal:
            console.print(draw(reader.view()))
        else:
            _follow(reader, console)


def _follow(reader: OverviewReader, console: Any) -> None:
    def drawn() -> RenderableType:
        return draw(reader.view(), max(3, console.size.height - FRAME_LINES))

    with contextlib.suppress(KeyboardInterrupt):
        keep_live(console, drawn, lambda: time.sleep(PERIOD_S))


def as_record(view: View) -> dict[str, Any]:
    """Return the overview as a JSON object: health, fleet, problems, slow jobs."""
    overview = view.overview
    names = ("severity", "problem", "place", "since", "jobs", "done", "next_step")
    return {
        "at_ns": view.now_ns,
        "health": asdict(overview.health),
        "fleet": asdict(overview.fleet),
        "problems": [dict(zip(names, row, strict=True)) for row in incident_rows(overview, view.now_ns)],
        "slow_jobs": [dict(head) for head in overview.slow_jobs],
    }


def draw(view: View, rows: int = 40) -> RenderableType:
    """Return the overview, with at most `rows` problems, as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    overview, now_ns = view
    fleet = overview.fleet
    cables = ", ".join(f"{count:,} {state}" for state, count in fleet.cables.items() if count)
    size = f"{counted(fleet.nics, 'NIC')} on {counted(fleet.hosts, 'host')}"
    parts: list[RenderableType] = [
        Text(overview.health.sentence, f"bold {LEVEL_COLOURS[overview.health.level]}"),
        *([Text(overview.health.consequence, "yellow")] if overview.health.consequence else []),
        Text(f"{size}; {counted(fleet.jobs, 'running job')}; cables: {cables or 'none'}", "dim"),
        Text(_queue_text(view), "dim"),
    ]
    problems = incident_rows(overview, now_ns)
    if problems:
        titles = ("severity", "problem", "place", "since (UTC)", "jobs", "done", "next step")
        parts += [Text(), _table(titles, problems[:rows])]
    if len(problems) > rows:
        parts.append(Text(f"and {len(problems) - rows:,} more, no worse than these", "dim"))
    if overview.slow_jobs:
        parts += [
            Text(),
            _table(("slow job", "verdict", "for", "text"), job_rows(overview.slow_jobs[:5], now_ns)),
        ]
    groups = overview.actions[:3]
    if groups:
        actions = [(group.cause, group.counts) for group in groups]
        parts += [Text(), _table(("newest actions on", "actions"), actions)]
    return Group(*parts)


def _queue_text(view: View) -> str:
    worst = view.overview.worst_queue
    if worst is None:
        return "no queue is worth a remark"
    link, queue = worst
    mean = queue.mean_bytes
    return f"longest queue {bytes_text(mean)} ({delay_text(queue.delay_ns(mean))}) at {arrow(link)}"


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> RenderableType:
    from rich.text import Text

    cells = [[Text(cell, _SEVERITY_COLOURS.get(cell, "")) for cell in row] for row in rows]
    return table_of(titles, cells, wrapped=titles)
