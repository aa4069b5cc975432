"""Audits the hosts of a fleet through their agents: progress, report, files, exit code."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fabrictime.audit.collect import Progress
from fabrictime.audit.draw import draw
from fabrictime.audit.evaluate import evaluated, for_agents
from fabrictime.audit.fleet import Request, audit_fleet
from fabrictime.audit.html import page
from fabrictime.audit.junit import junit
from fabrictime.audit.report import AuditReport, verdict
from fabrictime.audit.stored import as_json
from schemas.kafka.settings import KafkaSettings

__all__ = ["Output", "main", "progress_line", "show"]


class Output(NamedTuple):
    """Forms of the report. `html` and `junit`: files that are written beside it."""

    as_json_line: bool = False
    everything: bool = False
    html: Path | None = None
    junit: Path | None = None


def progress_line(progress: Progress) -> str:
    """Return the state of a run in one line."""
    return (
        f"{progress.complete:,} of {progress.hosts:,} hosts, "
        f"{progress.results:,} of {progress.announced:,} announced results"
    )


def main(cluster: KafkaSettings, request: Request, output: Output) -> int:
    """Run an audit, show its report, and return the exit code. Raises ValueError with one line."""
    from rich.console import Console

    with Console(stderr=True).status("asking the hosts") as status:
        found = audit_fleet(
            cluster,
            request._replace(only=for_agents(request.only)),
            lambda progress: status.update(progress_line(progress)),
        )
    report = evaluated(found, request.only)
    show(report, output)
    return verdict(report)[0]


def show(report: AuditReport, output: Output) -> None:
    """Print a report and write its files. Raises ValueError for a file that cannot be written."""
    from rich.console import Console

    for path, text_of in ((output.html, page), (output.junit, junit)):
        if path is not None:
            try:
                path.write_text(text_of(report), encoding="utf-8")
            except OSError as error:
                raise ValueError(f"{path}: {error.strerror}, expected a file to write") from error
    if output.as_json_line:
        print(as_json(report))
    else:
        Console().print(draw(report, everything=output.everything), highlight=False)
