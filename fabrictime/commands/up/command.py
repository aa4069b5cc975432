"""The commands that start the pipeline and show its processes: `up`, `demo` and `status`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from fabrictime.commands.options import (
    ConfigFile,
    DataDir,
    Json,
    Log,
    duration_s,
    evidence_settings,
    settings_of,
    stop,
    stop_if_any,
)


class _Part(StrEnum):
    SERVICES = "services"


def up(
    fleet: Annotated[
        str | None, typer.Option(metavar="KIND", help="fabric, sim:NICS, loopback, none, or a fleet file.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Stop after this time and print a scorecard.")
    ] = None,
    log: Log = None,
    history: Annotated[
        str | None, typer.Option(metavar="URL", help="http://host:port of ClickHouse.")
    ] = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Faust workers on this machine.")] = None,
    with_: Annotated[
        _Part | None, typer.Option("--with", help="Start workers, history and page beside the agent.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start the pipeline on this machine and show it live; Ctrl-C stops every process.

    With a fleet file and --log, only this host's agent starts; other services run once for all hosts.
    """
    from fabrictime.commands.up import pipeline as runner

    seconds = None if for_ is None else duration_s(for_)
    changes = {
        "fleet": fleet,
        "log_url": log,
        "history_url": history,
        "workers": workers,
        "services": None if with_ is None else "on",
        "data_directory": None if directory is None else str(directory),
    }
    overrides = {key: value for key, value in changes.items() if value is not None}
    try:
        code = runner.main(config, overrides, for_s=seconds, as_json=as_json)
    except (ValueError, OSError) as error:
        stop(str(error))
    raise typer.Exit(code)


def demo(
    observe: Annotated[
        bool, typer.Option("--observe", help="Carry out no action; show what the policy would do.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Draw the faults of an earlier tour again.")
    ] = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Take a guided tour: load the testbed's fabric with two jobs, break it five times, and heal it."""
    from fabrictime.commands import demo as tour

    raise typer.Exit(tour.main(config, directory, observe=observe, as_json=as_json, seed=seed))


def status(
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if a service fails, or evidence is missing.")
    ] = False,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the health of the fleet in one sentence, and the processes and addresses of the running `up`."""
    from fabrictime.runtime import status as reader
    from fabrictime.state.overview_reader import read_health

    settings = settings_of(config, directory)
    try:
        run_status = reader.read(settings.up.data_directory)
    except ValueError as error:
        stop(str(error), 1)
    log = settings.kafka.model_copy(update={"bootstrap": run_status["addresses"]["log"]})
    run_status = reader.with_health(run_status, read_health(evidence_settings(settings, log)))
    if as_json:
        typer.echo(json.dumps(run_status))
    else:
        reader.show(run_status)
    if check:
        stop_if_any(reader.wrong(run_status))
