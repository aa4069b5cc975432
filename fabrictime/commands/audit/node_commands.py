"""The commands `fabrictime audit gate`, `act`, `repairs` and `webhook`, which act on audit results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fabrictime.commands.options import (
    Json,
    duration_s,
    running_log,
    stop,
    with_settings,
)
from schemas.input_error import InputError


@with_settings
def admit(
    settings: Any,
    hosts: Annotated[str, typer.Option("--hosts", metavar="NAMES", help="Hosts, such as h1,h2.")],
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only results of this run.")] = None,
    max_age: Annotated[
        str, typer.Option("--max-age", metavar="TIME", help="Only results of this interval.")
    ] = "2h",
    strict: Annotated[
        bool, typer.Option("--strict", help="An unknown check of severity error makes a host unknown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check whether a job may start on these hosts, by their newest audit results.

    Exit code 0: all hosts are fit, 1: one is not, with the reasons, 2: unknown. Nothing is changed.
    """
    from fabrictime.commands.audit import nodes as audit_nodes

    code = audit_nodes.admit(
        running_log(settings),
        audit_nodes.host_names(hosts),
        run=run,
        max_age_s=duration_s(max_age),
        strict=strict,
        as_json=as_json,
        registry=settings.kafka.registry(),
    )
    raise typer.Exit(code)


@with_settings
def act(
    settings: Any,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="slurm, kubernetes or slinky; default: actuators.nodes.scheduler."),
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Change nothing; show what would be done.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Drain unfit nodes of Slurm or Kubernetes once, and resume nodes that pass again.

    The service `drains` of `fabrictime up` does the same at once after each verdict. Nodes are changed in
    mode ACT if `allowed_actions` has DRAIN and RESUME (`fabrictime config set`); otherwise the actions are
    only shown and reported. Exit code 0: done, 1: an action failed, 2: scheduler or log did not answer.
    """
    from fabrictime.commands.audit import nodes as audit_nodes

    cluster = running_log(settings)
    try:
        actuators = settings.actuators
        nodes = actuators.nodes.model_copy(update={"scheduler": scheduler or actuators.nodes.scheduler})
        actuators = actuators.model_copy(update={"nodes": nodes, "kafka": cluster})
        code = audit_nodes.act(actuators, observe=observe, as_json=as_json)
    except OSError as error:
        stop(str(error))
    raise typer.Exit(code)


@with_settings
def repairs(
    settings: Any,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these nodes, hosts or racks.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show repairs that are over too.")] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Close the circuit breaker: allow drains again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the break-fix records of drained nodes: cause, jobs, remedy, end."""
    from fabrictime.audit.node_log import read_repairs
    from fabrictime.commands.audit import repairs as table
    from fabrictime.commands.config.live_config import LiveRecords

    cluster = running_log(settings)
    live = LiveRecords(cluster, settings.kafka.registry())
    records = read_repairs(cluster, settings.kafka.registry())
    if reset:
        table.reset(live)
    breaker = table.breaker_line(records, live, settings.actuators.nodes)
    table.show(table.selected(records, names or (), everything=everything), breaker, as_json=as_json)


@with_settings
def webhook(
    settings: Any,
    certificate: Annotated[Path, typer.Option(metavar="FILE", help="Certificate of the webhook, PEM.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Its private key, PEM.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the webhook; port 0 takes a free one.")
    ] = "127.0.0.1:8443",
) -> None:
    """Serve Kubernetes' admission webhook: refuse gangs that are pinned to unfit nodes.

    Refuses only objects labelled fabrictime.io/preflight=required; warns about all others. Nothing is
    changed.
    """
    from fabrictime.audit.webhook_server import serve

    host, _, port = listen.rpartition(":")
    nodes = settings.actuators.nodes
    try:
        if not host or not port.isdecimal():
            raise InputError(f"--listen {listen!r}: expected HOST:PORT")
        address = host.strip("[]"), int(port)
        serve(running_log(settings), address, certificate, key, nodes.max_age_s, nodes.hosts)
    except OverflowError as error:
        stop(str(error))
