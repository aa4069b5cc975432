"""The `fabrictime audit` commands that check this host or a fleet, and that compare two runs."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fabrictime.commands.audit.baseline import baseline_app
from fabrictime.commands.audit.collectives import collectives
from fabrictime.commands.audit.node_commands import act, admit, repairs, webhook
from fabrictime.commands.audit.traffic import traffic
from fabrictime.commands.options import (
    AuditRunName,
    ConfigFile,
    DataDir,
    Everything,
    HtmlFile,
    Json,
    JunitFile,
    Log,
    duration_s,
    host_list,
    running_log,
    settings_of,
    stop,
    with_settings,
)

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
    everything: Everything = False,
    list_: Annotated[bool, typer.Option("--list", help="List the checks, and run none.")] = False,
    as_json: Json = False,
    fleet: Annotated[bool, typer.Option("--fleet", help="Audit all hosts, through their agents.")] = False,
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="H1,H2", help="Audit these hosts of the fleet, or patterns.")
    ] = "",
    active: Annotated[
        bool, typer.Option("--active", help="Run checks that put load on hosts and network too.")
    ] = False,
    limit: Annotated[
        str, typer.Option("--limit", metavar="TIME", help="End of a fleet's run, such as 2m.")
    ] = "2m",
    html: HtmlFile = None,
    junit: JunitFile = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Compare a fleet with this baseline.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="PATH",
            help="Audit the host of an unpacked sosreport or sysinfo-snapshot, or an nvidia-bug-report log.",
        ),
    ] = None,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Check whether this host, or with --fleet every host, is fit for a long run.

    With --bundle no command runs; checks whose source the bundle lacks are skipped.

    Exit code 0: no error, 1: an error, 2: nothing could be checked, or no answer. The host is not changed.
    """
    if context.invoked_subcommand is not None:
        return
    if bundle and (fleet or hosts):
        stop("--bundle: expected without --fleet and --hosts")
    if fleet or hosts:
        from fabrictime.audit.fleet import Request
        from fabrictime.commands.audit import fleet as audit_fleet

        names = host_list(hosts)
        request = Request(names, tuple(only or ()), active, math.ceil(duration_s(limit)))
        output = audit_fleet.Output(as_json, everything, html, junit, against)
        settings = settings_of(config, directory, log)
        try:
            raise typer.Exit(audit_fleet.main(settings, running_log(settings), request, output))
        except ValueError as error:
            stop(str(error))
    if active or html or junit or against:
        stop("--active, --html, --junit, --against: expected with --fleet or --hosts")
    from fabrictime.commands.audit import run as auditor

    if list_:
        auditor.show_list()
        return
    settings = settings_of(config, directory, log).audit
    try:
        code = auditor.main(
            only or (), as_json_line=as_json, everything=everything, settings=settings, bundle=bundle
        )
    except ValueError as error:
        stop(str(error))
    raise typer.Exit(code)


@audit_app.command("diff")
@with_settings
def audit_diff(
    settings: Any,
    before: AuditRunName,
    after: AuditRunName,
    as_json: Json = False,
) -> None:
    """Compare two runs: new failures first, then other changes and changed values.

    Exit code 0: no new error, 1: a new error, 2: a run cannot be read.
    """
    from fabrictime.commands.audit import diff as command

    log_of = partial(running_log, settings)
    code = command.main(before, after, log_of, as_json=as_json)
    raise typer.Exit(code)


audit_app.command("collectives")(collectives)
audit_app.command("gate")(admit)
audit_app.command("act")(act)
audit_app.command("repairs")(repairs)
audit_app.command("webhook")(webhook)
audit_app.command("traffic")(traffic)
