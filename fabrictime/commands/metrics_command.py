"""The commands about metrics: `fabrictime size` and `fabrictime metrics`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fabrictime.commands.options import Json

metrics_app = typer.Typer(no_args_is_help=True, help="Metrics for Prometheus and OpenTelemetry.")


@metrics_app.command("rules")
def metrics_rules(
    tests: Annotated[
        bool, typer.Option("--tests", help="Print the tests of the alerts for `promtool test rules`.")
    ] = False,
    runbook: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Page about these alerts; without it that of a release's package."),
    ] = None,
) -> None:
    """Print the recording and alert rules for Prometheus."""
    from fabrictime.metrics.rules import RUNBOOK, promtool_tests, rules_file

    typer.echo(promtool_tests() if tests else rules_file(runbook or RUNBOOK), nl=False)


def size(
    hosts: Annotated[int, typer.Option(min=1, help="Hosts of the fleet.")] = 1,
    nics: Annotated[int, typer.Option(min=1, help="NICs of each host.")] = 8,
    links: Annotated[
        int | None, typer.Option(min=0, help="Cables of the fabric; without it three for each NIC.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Workers of the control plane.")] = 2,
    as_json: Json = False,
) -> None:
    """Print the largest number of metric series that a fleet of this size exports."""
    from fabrictime.metrics.sizing import FleetSize

    cables = 3 * hosts * nics if links is None else links
    fleet = FleetSize(hosts, nics, 2 * cables, workers)
    if as_json:
        typer.echo(json.dumps({**fleet.series(), "by default": fleet.default_total()}))
        return
    for part, count in fleet.series().items():
        typer.echo(f"{count:>12,} series {part}")
    typer.echo(f"{fleet.default_total():>12,} series by default, all agents and the control plane")
