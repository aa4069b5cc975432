"""Audits the hosts of a fleet through their agents: shows progress, prints a report, and writes files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from fabrictime.audit.collect import Progress
from fabrictime.audit.draw import draw
from fabrictime.audit.evaluate import evaluated, for_agents, load_baseline
from fabrictime.audit.fabric import read_fabric
from fabrictime.audit.fleet import Request, audit_fleet, publish, read_nics
from fabrictime.audit.html import page
from fabrictime.audit.junit import junit
from fabrictime.audit.report import AuditReport, verdict
from fabrictime.audit.stored import as_json
from fabrictime.commands.views.topology import source_of
from fabrictime.runtime.config import Config
from schemas.input_error import InputError
from schemas.kafka.settings import KafkaSettings
from schemas.records import AuditResult
from schemas.topics import AUDIT


class Output(NamedTuple):
    """The format of the printed report, and the files to which it is also written (`html`, `junit`)."""

    as_json_line: bool = False
    everything: bool = False
    html: Path | None = None
    junit: Path | None = None
    against: Path | None = None
    """File of the baseline with which the hosts are compared."""


def progress_line(progress: Progress) -> str:
    """Return the progress of a fleet's audit run as one line."""
    return (
        f"{progress.complete:,} of {progress.hosts:,} hosts, "
        f"{progress.results:,} of {progress.announced:,} announced results"
    )


def main(config: Config, cluster: KafkaSettings, request: Request, output: Output) -> int:
    """Audit a fleet's hosts, print the report, and return the exit code. Raises ValueError with one line."""
    from rich.console import Console

    baseline = None if output.against is None else load_baseline(output.against)
    source, peers = source_of(config), config.value("probes", "peers")
    with Console(stderr=True).status("asking the hosts") as status:
        nics = read_nics(cluster)
        agent_report = audit_fleet(
            cluster,
            request._replace(only=for_agents(request.only)),
            nics,
            lambda progress: status.update(progress_line(progress)),
        )
        status.update("evaluating")
        fabric = read_fabric(cluster, nics, source.topology, before_ns=agent_report.started_ns, peers=peers)
        report = evaluated(agent_report, request.only, fabric, baseline)
        publish(cluster, AUDIT, computed(agent_report, report))
    show(report, output)
    return verdict(report)[0]


def computed(agent_report: AuditReport, report: AuditReport) -> list[AuditResult]:
    """Return the results of `report` that no agent published: this command computed them."""
    missing = set(agent_report.missing)
    return [
        result
        for result in report.all_results()
        if result["host"] in missing
        or agent_report.results.get(result["host"], {}).get(result["check"]) != result
    ]


def show(report: AuditReport, output: Output) -> None:
    """Print a report and write its files. Raises ValueError for a file that cannot be written."""
    from rich.console import Console

    for path, parts_of in ((output.html, page), (output.junit, junit)):
        if path is not None:
            try:
                with path.open("w", encoding="utf-8") as file:
                    file.writelines(parts_of(report))
            except OSError as error:
                raise InputError(f"{path}: {error.strerror}, expected a file to write") from error
    if output.as_json_line:
        sys.stdout.writelines(as_json(report))
        print()
    else:
        Console().print(draw(report, everything=output.everything), highlight=False)
