"""The commands that show what the fleet does: clocks, links, alerts, actions and records."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fabrictime.commands.completion import nic_names, topic_names
from fabrictime.commands.options import (
    Json,
    Names,
    Watch,
    duration_s,
    evidence_of,
    running_log,
    stop,
    stop_if_any,
    with_settings,
)


@with_settings
def clock(
    settings: Any,
    clocks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLOCK]...", help="Clocks such as h1/ptp0 or 'h1*'.", autocompletion=nic_names
        ),
    ] = None,
    host: Annotated[list[str] | None, typer.Option(help="Only the clocks of this host, or of 'h1*'.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the table live until Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="List every clock.")] = False,
    worst: Annotated[int | None, typer.Option(min=1, help="List only this many, the worst first.")] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="Show events of this interval.")] = "60s",
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 unless every clock is SYNCED.")
    ] = False,
    bound_us: Annotated[
        float | None, typer.Option(min=0, help="With --check: require bounds of at most this.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show all clocks with state, offset, drift and bound, the worst first, and the suspect pairs."""
    from fabrictime.commands.views import clock as reader
    from fabrictime.commands.views.clock_table import Wanted

    if bound_us is not None and not check:
        stop("--bound-us: expected with --check")
    if check and watch:
        stop("--check: expected without --watch")
    query = Wanted(
        tuple(clocks or ()), tuple(host or ()), worst, everything, duration_s(since), as_json=as_json
    )
    if watch:
        reader.watch(running_log(settings), query, registry=settings.kafka.registry())
        return
    picture = reader.main(running_log(settings), query, registry=settings.kafka.registry())
    if check:
        stop_if_any(picture.wrong(bound_us))


@with_settings
def links(
    settings: Any,
    names: Names = None,
    watch: Watch = False,
    everything: Annotated[bool, typer.Option("--all", help="Include those that are UP again.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if anything is not UP, or evidence is missing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show links, NICs and hosts that are DOWN, GREY or FLAPPING, since when, and the evidence."""
    _print_table("links", names, everything, watch, check, as_json, settings)


@with_settings
def alerts(
    settings: Any,
    names: Names = None,
    watch: Watch = False,
    everything: Annotated[bool, typer.Option("--all", help="Include cleared alerts.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if an alert is active, or evidence is missing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the active alerts, one per cause."""
    _print_table("alerts", names, everything, watch, check, as_json, settings)


def _print_table(
    kind: str,
    names: list[str] | None,
    everything: bool,
    watch: bool,
    check: bool,
    as_json: bool,
    settings: Any,
) -> None:
    from fabrictime.commands.views import links as reader

    if check and watch:
        stop("--check: expected without --watch")
    query = reader.Wanted(tuple(names or ()), everything, as_json=as_json)
    if watch:
        reader.watch(evidence_of(settings), reader.KINDS[kind], query)
        return
    wrong = reader.main(evidence_of(settings), reader.KINDS[kind], query)
    if check:
        stop_if_any(wrong)


@with_settings
def actions(
    settings: Any,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only flows or links that contain this, such as h3."),
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="Show decisions of this interval.")] = "5m",
    suppressed: Annotated[
        bool, typer.Option("--suppressed", help="Only actions that are suppressed now, with the reason.")
    ] = False,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Show decisions with cause and outcome, suppressed actions, and the mode in force."""
    from fabrictime.commands.views import actions as reader

    query = reader.Wanted(tuple(names or ()), duration_s(since), suppressed, as_json=as_json)
    show = reader.watch if watch else reader.main
    show(running_log(settings), query, registry=settings.kafka.registry())


@with_settings
def tail(
    settings: Any,
    topic: Annotated[
        str, typer.Argument(help="Topic, as listed in docs/topics.md.", autocompletion=topic_names)
    ],
    start: Annotated[str, typer.Option("--from", help="Start at the beginning or the end.")] = "end",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    as_json: Json = False,
) -> None:
    """Follow a topic and print its decoded records."""
    from fabrictime.commands.views import tail as reader

    if start not in ("beginning", "end"):
        stop(f"--from {start!r}: expected beginning or end")
    reader.main(
        running_log(settings),
        topic,
        from_beginning=start == "beginning",
        limit=limit,
        as_json=as_json,
        registry=settings.kafka.registry(),
    )
