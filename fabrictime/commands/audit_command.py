"""The `fabrictime audit` commands."""

from __future__ import annotations

from typing import Annotated

import typer

from fabrictime.commands.options import Json, stop

__all__ = ["audit", "audit_app"]

Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME", help="Run this category or check; may be repeated."),
]

audit_app = typer.Typer(invoke_without_command=True)


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
