"""The `fabrictime audit baseline` commands: save, learn and show the expected values of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fabrictime.commands.options import (
    AuditRunName,
    ConfigFile,
    DataDir,
    Json,
    Log,
    running_log,
    settings_of,
    stop,
)

if TYPE_CHECKING:
    from rich.table import Table

    from streams.audit.baseline import Baseline

baseline_app = typer.Typer(
    no_args_is_help=True, help="Save, learn and show the values that hosts are expected to have."
)

BaselineFile = Annotated[Path, typer.Option("--file", metavar="FILE", help="Baseline file, TOML.")]
DEFAULT_FILE = Path("baseline.toml")


@baseline_app.command("save")
def save(
    run: AuditRunName,
    golden: Annotated[
        str, typer.Option("--golden", metavar="HOST", help="Take this host's values, not the majority's.")
    ] = "",
    file: BaselineFile = DEFAULT_FILE,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Save the values of a run: those of a golden host, or of the larger part of each SKU's hosts."""
    from fabrictime.audit.evaluate import write_baseline
    from fabrictime.audit.stored import load
    from streams.audit.baseline import save as saved

    try:
        cluster = running_log(settings_of(config, directory, log))
        found = saved(load(run, cluster).all_results(), golden)
        write_baseline(file, found)
    except ValueError as error:
        stop(str(error))
    _print_saved(file, found)


@baseline_app.command("learn")
def learn(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs, or files of --json.")],
    file: BaselineFile = DEFAULT_FILE,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Learn from several runs: median and spread of figures, and all usual texts."""
    from fabrictime.audit.evaluate import write_baseline
    from fabrictime.audit.stored import load
    from streams.audit.baseline import learn as learned

    try:
        cluster = running_log(settings_of(config, directory, log))
        found = learned(load(run, cluster).all_results() for run in runs)
        write_baseline(file, found)
    except ValueError as error:
        stop(str(error))
    _print_saved(file, found)


@baseline_app.command("show")
def show(file: BaselineFile = DEFAULT_FILE, as_json: Json = False) -> None:
    """Show the expected values of a file."""
    from rich.console import Console

    from fabrictime.audit.evaluate import load_baseline

    try:
        found = load_baseline(file)
    except ValueError as error:
        stop(str(error))
    if as_json:
        print(found.model_dump_json())
    else:
        Console().print(draw(found))


def _print_saved(file: Path, found: Baseline) -> None:
    skus = sorted({each.sku or "unknown" for each in found.expected})
    typer.echo(f"{file}: {len(found.expected)} expected values of SKU {', '.join(skus)}")


def draw(found: Baseline) -> Table:
    """Return the table for rich."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("SKU", "value", "device", "expected", "learned from"):
        table.add_column(column, no_wrap=column != "expected")
    for each in found.expected:
        devices = f" x {each.devices}" if each.devices is not None else ""
        row = (
            each.sku or "unknown",
            each.fact,
            f"{each.subject}{devices}",
            str(each),
            f"{each.values} values",
        )
        table.add_row(*map(escape, row))
    return table
