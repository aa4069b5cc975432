"""The `fabrictime audit` commands."""

from __future__ import annotations

from typing import Annotated

import typer

from fabrictime.commands.audit_baseline import baseline_app
from fabrictime.commands.options import ConfigFile, DataDir, Json, Log, running_log, settings_of, stop

__all__ = ["audit", "audit_app"]

Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME", help="Run this category or check; may be repeated."),
]

audit_app = typer.Typer(invoke_without_command=True)
audit_app.add_typer(baseline_app, name="baseline")


@audit_app.callback()
def audit(
    context: typer.Context,
    only: Only = None,
    everything: Annotated[bool, typer.Option("--all", help="Show passed and skipped checks too.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the checks, and run none.")] = False,
    as_json: Json = False,
) -> None:
    """Check whether this host is fit: software, memory, storage, PCIe, RDMA ports, kernel log.

    Exit code 0: no error, 1: an error, 2: nothing could be checked. Nothing is changed.
    """
    if context.invoked_subcommand is not None:
        return
    from fabrictime.commands import audit as auditor

    if list_:
        auditor.show_list()
        return
    try:
        code = auditor.main(only or (), as_json_line=as_json, everything=everything)
    except ValueError as error:
        stop(str(error))
    raise typer.Exit(code)


Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or a file that --json wrote.")]


@audit_app.command("diff")
def audit_diff(
    before: Run,
    after: Run,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Compare two runs: new failures first, then other changes and changed values.

    Exit code 0: no new error, 1: a new error, 2: a run cannot be read.
    """
    from fabrictime.commands import audit_diff as command

    try:
        cluster = running_log(settings_of(config, directory, log))
        code = command.main(before, after, cluster, as_json=as_json)
    except ValueError as error:
        stop(str(error))
    raise typer.Exit(code)
