"""The commands `explain` and `jobs`: the route of a flow, the speed of a job, the running jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fabrictime.commands.completion import job_names
from fabrictime.commands.options import (
    Json,
    duration_s,
    running_log,
    stop,
    stop_if_any,
    with_settings,
)
from schemas.input_error import InputError

if TYPE_CHECKING:
    from fabrictime.runtime.config import Config
    from schemas.kafka.settings import KafkaSettings


@with_settings
def explain(
    settings: Any,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB|FLOW",
            help="Name of a job; or flow id or a part of it, or its source as address:port or host:port.",
            autocompletion=job_names,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Explain a job from the files that it left: dumps, traces, NCCL's logs, tables, accounting.",
        ),
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="RUN RUN", help="Compare two runs: each a job, or an interval FROM..TO such as 20m..10m."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Interval: 1h for a job, 5m for a flow, unless given."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 unless the job's verdict is HEALTHY.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the job's operations as a trace for Perfetto (JSON)."),
    ] = None,
    chakra: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write them as Chakra execution traces, one file a rank."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain the speed of a job, the route of a flow, or with --folder why a job died, hung or was slow."""
    if folder is not None:
        _explain_folder(folder, settings, check, as_json)
        return
    if subject is None:
        stop("explain: no job and no flow, expected JOB, FLOW or --folder DIR")
    seconds = None if since is None else duration_s(since)
    try:
        cluster = running_log(settings)
        if export is not None or chakra is not None:
            _export(cluster, subject, export, chakra, seconds)
        elif between is not None:
            _compare(cluster, subject, between, seconds, as_json)
        else:
            _explain(cluster, subject, seconds, check, as_json)
    except OSError as error:
        stop(str(error))


def _explain_folder(folder: Path, settings: Config, check: bool, as_json: bool) -> None:
    """Explain a job from its files, and by a fleet's network at that time.

    Exit with code 2 if no file has a known format, with `check` with code 1 unless the job is HEALTHY.
    """
    from fabrictime.commands.jobs import explain_job
    from fabrictime.commands.jobs.network import network_report
    from fabrictime.postmortem import report

    try:
        reading, verdict = report.explain_folder(folder)
    except OSError as error:
        stop(str(error), 2)
    network = network_report(settings, reading.observations)
    explanation = report.as_json(folder, reading, verdict, network)
    explain_job.show(explanation, report.draw(reading, verdict, network), as_json=as_json)
    if check and verdict.best.verdict != "HEALTHY":
        stop(f"{folder}: {verdict.best.verdict}: {verdict.best.text}", 1)


def _export(
    cluster: KafkaSettings, job: str, file: Path | None, folder: Path | None, since_s: float | None
) -> None:
    from fabrictime.commands.jobs import export as export_job
    from fabrictime.commands.jobs import records as job_records

    seconds = since_s or job_records.RECENT_S
    if file is not None:
        typer.echo(export_job.export_chrome(cluster, job, file, seconds, cluster.registry()))
    if folder is not None:
        typer.echo(export_job.export_chakra(cluster, job, folder, seconds, cluster.registry()))


def _compare(
    cluster: KafkaSettings, job: str, between: tuple[str, str], since_s: float | None, as_json: bool
) -> None:
    from fabrictime.commands.jobs import explain_job
    from fabrictime.commands.jobs import records as job_records
    from fabrictime.state import job_story

    runs = explain_job.between(cluster, job, between, since_s or job_records.RECENT_S, cluster.registry())
    compared = job_story.compare(*runs)
    explain_job.show(compared, explain_job.draw_comparison(compared), as_json=as_json)


def _explain(cluster: KafkaSettings, subject: str, since_s: float | None, check: bool, as_json: bool) -> None:
    from fabrictime.commands.jobs import explain_job
    from fabrictime.commands.jobs import records as job_records
    from fabrictime.state import job_story
    from fabrictime.state.simulated_time_reader import fabric_now_ns

    run = explain_job.read(cluster, subject, since_s or job_records.RECENT_S, cluster.registry())
    if run is None:
        _explain_flow(cluster, subject, since_s or 300.0, as_json, check)
        return
    explanation = job_story.explain(run, fabric_now_ns(cluster, cluster.registry()))
    explain_job.show(explanation, explain_job.draw(explanation), as_json=as_json)
    record = explanation["diagnosis"]
    if check and record["verdict"] != "HEALTHY":
        stop(f"job {subject}: {record['verdict']}: {record['text']}", 1)


def _explain_flow(cluster: KafkaSettings, subject: str, since_s: float, as_json: bool, check: bool) -> None:
    """Explain a flow. If `subject` is no flow, raise ValueError with the known jobs."""
    from fabrictime.commands.jobs.records import newest_of_jobs
    from fabrictime.commands.views import explain as reader

    try:
        if check:
            raise InputError(f"job {subject!r}: no such job; --check expects one")
        reader.main(cluster, subject, since_s=since_s, as_json=as_json, registry=cluster.registry())
    except InputError as error:
        jobs = ", ".join(newest_of_jobs(cluster, None, cluster.registry())) or "none"
        raise InputError(
            f"{error}\njob {subject!r}: no job of that name published anything; jobs seen: {jobs}"
        ) from None


@with_settings
def jobs(
    settings: Any,
    since: Annotated[str, typer.Option(metavar="TIME", help="Interval of the log to search.")] = "2m",
    everything: Annotated[bool, typer.Option("--all", help="Include jobs that have ended.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 unless every running job is HEALTHY.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the jobs that run, each with its verdict, speed and explanation."""
    from fabrictime.commands.jobs import table as reader

    cluster = running_log(settings)
    failures = reader.main(
        cluster, duration_s(since), everything=everything, as_json=as_json, registry=cluster.registry()
    )
    if check:
        stop_if_any(failures)
