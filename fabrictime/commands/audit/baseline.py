"""The `fabrictime audit baseline` commands: save, learn and show the expected values of a fleet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fabrictime.commands.options import (
    AuditRunName,
    Json,
    running_log,
    stop,
    with_settings,
)
from fabrictime.commands.screen import table_of

if TYPE_CHECKING:
    from rich.table import Table

    from streams.audit.hosts.baseline import Baseline

baseline_app = typer.Typer(
    no_args_is_help=True, help="Save, learn and show the values that hosts are expected to have."
)

BaselineFile = Annotated[Path, typer.Option("--file", metavar="FILE", help="Baseline file, TOML.")]
DEFAULT_FILE = Path("baseline.toml")


@baseline_app.command("save")
@with_settings
def save(
    settings: Any,
    run: AuditRunName,
    golden: Annotated[
        str, typer.Option("--golden", metavar="HOST", help="Take this host's values, not the majority's.")
    ] = "",
    file: BaselineFile = DEFAULT_FILE,
) -> None:
    """Save the values of a run as the baseline: those of a golden host, or the majority's for each SKU."""
    from fabrictime.audit.evaluate import write_baseline
    from fabrictime.audit.stored import load
    from streams.audit.hosts.baseline import save as saved

    log_of = partial(running_log, settings)
    baseline = saved(load(run, log_of).all_results(), golden)
    write_baseline(file, baseline)
    _print_saved(file, baseline)


@baseline_app.command("learn")
@with_settings
def learn(
    settings: Any,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs, or files of --json.")],
    file: BaselineFile = DEFAULT_FILE,
) -> None:
    """Learn from several runs: median and spread of figures, and all usual texts."""
    from fabrictime.audit.evaluate import write_baseline
    from fabrictime.audit.stored import load
    from streams.audit.hosts.baseline import learn as learned

    log_of = partial(running_log, settings)
    baseline = learned(load(run, log_of).all_results() for run in runs)
    write_baseline(file, baseline)
    _print_saved(file, baseline)


@baseline_app.command("show")
def show(file: BaselineFile = DEFAULT_FILE, as_json: Json = False) -> None:
    """Show the expected values of a file."""
    from rich.console import Console

    from fabrictime.audit.evaluate import load_baseline

    try:
        baseline = load_baseline(file)
    except ValueError as error:
        stop(str(error))
    if as_json:
        print(baseline.model_dump_json())
    else:
        Console().print(draw(baseline))


def _print_saved(file: Path, baseline: Baseline) -> None:
    skus = sorted({entry.sku or "unknown" for entry in baseline.expected})
    typer.echo(f"{file}: {len(baseline.expected)} expected values of SKU {', '.join(skus)}")


def draw(baseline: Baseline) -> Table:
    """Return the expected values of a baseline as a table for rich."""
    titles = ("SKU", "value", "device", "expected", "learned from")
    rows = [
        (
            entry.sku or "unknown",
            entry.fact,
            entry.subject if entry.devices is None else f"{entry.subject} x {entry.devices}",
            str(entry),
            f"{entry.values} values",
        )
        for entry in baseline.expected
    ]
    return table_of(titles, rows, wrapped=("expected",))
