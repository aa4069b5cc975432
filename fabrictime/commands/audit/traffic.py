"""The command `fabrictime audit traffic`: loads the links between hosts in rounds, and compares the hosts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fabrictime.commands.options import (
    Everything,
    HtmlFile,
    Json,
    JunitFile,
    host_list,
    running_log,
    with_settings,
)

if TYPE_CHECKING:
    from fabrictime.audit.traffic import TrafficRequest
    from fabrictime.commands.audit.fleet import Output
    from fabrictime.runtime.config import Config
    from schemas.kafka.settings import KafkaSettings


@with_settings
def traffic(
    settings: Any,
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="H1,H2", help="Only these hosts of the fleet, or patterns.")
    ] = "",
    pattern: Annotated[
        str,
        typer.Option("--pattern", metavar="NAME", help="pairs, one-to-many, bisection, ring or burn."),
    ] = "pairs",
    passes: Annotated[
        int,
        typer.Option(
            "--passes",
            min=0,
            max=10_000,
            help="Passes with other partners; 0: two, of one-to-many all senders.",
        ),
    ] = 0,
    batch: Annotated[
        int,
        typer.Option("--batch", min=0, max=10_000, help="Pairs or receivers at a time; 0: all, 8 receivers."),
    ] = 0,
    everything: Everything = False,
    html: HtmlFile = None,
    junit: JunitFile = None,
    as_json: Json = False,
) -> None:
    """Load the links between hosts in rounds; find slow hosts, slow links and stragglers.

    For an idle fleet. The settings audit.traffic of each agent limit rate and time of a round.

    Exit code 0: no error, 1: an error, 2: nothing could be measured, or a host did not answer.
    """
    from fabrictime.audit.traffic import TrafficRequest
    from fabrictime.commands.audit.fleet import Output

    names = host_list(hosts)
    request = TrafficRequest(names, pattern, passes, batch)
    output = Output(as_json, everything, html, junit)
    code = main(settings, running_log(settings), request, output)
    raise typer.Exit(code)


def main(config: Config, cluster: KafkaSettings, request: TrafficRequest, output: Output) -> int:
    """Run the rounds, print the report, and return the exit code. Raises ValueError with one line."""
    from rich.console import Console

    from fabrictime.audit.fabric import read_fabric
    from fabrictime.audit.fleet import publish, read_nics
    from fabrictime.audit.report import verdict
    from fabrictime.audit.traffic import (
        evaluated_traffic,
        heat_maps,
        leaves_of_hosts,
        limits_of,
        merged,
        run_traffic,
    )
    from fabrictime.commands.audit.fleet import show
    from fabrictime.commands.views.topology import source_of
    from schemas.topics import AUDIT
    from streams.audit.traffic.pairs import figures_line

    settings, peers = config.audit.traffic, config.value("probes", "peers")
    with Console(stderr=True).status("reading the inventory") as status:
        nics = read_nics(cluster)
        topology = source_of(config).topology
        fabric = read_fabric(cluster, nics, topology, before_ns=time.time_ns(), peers=peers)
        run, started_ns, rounds = run_traffic(
            cluster, request, nics, leaves_of_hosts(fabric), settings, status.update
        )
        status.update("evaluating")
        report = merged(run, started_ns, time.time_ns(), rounds, nics)
        report = evaluated_traffic(report, rounds, fabric, limits_of(settings))
        publish(cluster, AUDIT, report.all_results())
    show(report, output)
    if not output.as_json_line:
        console = Console()
        for line in (figures_line(rounds), *heat_maps(report)):
            console.print(line, highlight=False, markup=False)
    return verdict(report)[0]
