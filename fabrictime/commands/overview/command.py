"""The commands that show the whole fleet at once: `top` live in the terminal, `report` as one HTML file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fabrictime.commands.options import (
    Json,
    duration_s,
    evidence_of,
    stop,
    with_settings,
)


@with_settings
def top(
    settings: Any,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    as_json: Json = False,
) -> None:
    """Show the fleet live: one sentence, problems by cause with jobs, actions and next step, slow jobs."""
    from fabrictime.commands.overview import top as viewer

    viewer.main(evidence_of(settings), once=once, as_json=as_json)


@with_settings
def report(
    settings: Any,
    span: Annotated[str, typer.Argument(metavar="[TIME]", help="Interval before now, at most 1h.")] = "10m",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="File to write; without it one named by the time."),
    ] = None,
) -> None:
    """Write one HTML file for a ticket: present problems, and alerts and actions of the last minutes."""
    from fabrictime.commands.overview import report as writer
    from fabrictime.state.overview_reader import OverviewReader

    span_s = duration_s(span)
    if span_s > writer.MAX_SPAN_S:
        stop(f"{span}: expected at most 1h; Grafana shows longer intervals")
    path = output or Path(f"fabrictime-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.html")
    try:
        with OverviewReader(evidence_of(settings)) as reader:
            reader.catch_up()
            view = reader.view()
            with reader.state.lock:
                text = writer.page(reader.state, view, span_s)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        stop(str(error))
    typer.echo(f"{path}: {view.overview.health.sentence}")
