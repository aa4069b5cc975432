"""Runs benches and prints their reports, as JSON lines or as tables below a progress line.

The exit code is 0 if all benches ran and 1 if one could not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fabrictime.bench import Progress, Report, load, names, run_bench

REMARKS_BESIDE_COLUMNS: Final = 130
"""On screens narrower than this, remarks are printed below the table."""
PIPED_COLUMNS: Final = 240
"""Width of output that does not go to a terminal; it leaves space for remarks."""


def print_list(*, as_json: bool) -> None:
    """Print the benches with their targets."""
    targets = {
        name: {
            key: {"unit": target.unit, "target": target.text()} for key, target in load(name).TARGETS.items()
        }
        for name in names()
    }
    if as_json:
        print(json.dumps(targets))
        return
    table = Table("bench", "figure", "target", "unit", box=None)
    for name, figures in targets.items():
        for key, target in figures.items():
            table.add_row(name, key, target["target"] or "", target["unit"])
    Console().print(table)


def run(bench_names: Sequence[str], *, as_json: bool, quick: bool, parts: Sequence[str] = ()) -> int:
    """Run benches one by one, print each report when its bench has ended, and return the exit code.

    `parts` selects parts of a single bench. With `as_json` several reports are printed as one JSON list.
    """
    # as ^C: the process that started a fabric ends it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Console(stderr=True)
    reports: list[Report] = []
    failed = 0
    for name in bench_names:
        with progress_of(name, screen) as progress:
            try:
                reports.append(run_bench(load(name), progress, quick=quick, parts=parts))
            except Exception as error:
                if len(bench_names) == 1:
                    raise
                failed += 1
                screen.print(f"{name}: {type(error).__name__}: {error}", style="red", markup=False)
                continue
        if not as_json:
            _print(reports[-1])
    if as_json:
        print(json.dumps(reports[0] if len(bench_names) == 1 else reports))
    return 1 if failed else 0


@contextmanager
def progress_of(name: str, screen: Console) -> Iterator[Progress]:
    """Yield a function that shows the present step: in one changing line on a terminal, else line by line."""
    with screen.status(f"{name}: starting") as status:

        def progress(line: str) -> None:
            status.update(escape(f"{name}: {line}"))
            if not screen.is_terminal:
                print(f"{name}: {line}", file=sys.stderr, flush=True)

        yield progress


def _remark(figure: Mapping[str, Any]) -> str:
    return figure.get("reason") or figure.get("note") or ""


def _print(report: Report) -> None:
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=PIPED_COLUMNS)
    beside = console.width >= REMARKS_BESIDE_COLUMNS
    remarks = {key: _remark(figure) for key, figure in report["figures"].items()}
    host = report["machine"]
    console.print(
        f"[bold]{report['name']}[/bold]: {host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, "
        f"kernel {host['kernel']}, Python {host['python']}, load {host['load_1min_at_start']}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None)
    for title in ("figure", "value", "unit", "target", "met"):
        table.add_column(title, no_wrap=True)
    if beside:
        table.add_column("remark")
    for key, figure in report["figures"].items():
        met = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}[figure["met"]]
        value = "missing" if figure["value"] is None else f"{figure['value']:,.6g}"
        row = (key, value, figure["unit"] or "", figure["target"] or "", met)
        table.add_row(*row, *([escape(remarks[key])] if beside else []))
    console.print(table)
    for key, remark in remarks.items():
        if remark and not beside:
            console.print(f"{key}: {remark}", highlight=False, markup=False)
