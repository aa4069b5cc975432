"""The commands `pause` and `resume`, which stop and restore all actions."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fabrictime.commands.options import (
    Json,
    duration_s,
    live_records,
    stop,
    with_settings,
)


@with_settings
def pause(
    settings: Any,
    revert: Annotated[bool, typer.Option("--revert", help="Also undo the actions in force.")] = False,
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for the actuators.")] = "5s",
    as_json: Json = False,
) -> None:
    """Stop all action on all hosts; exit code 1 if an actuator does not confirm."""
    from fabrictime.commands.config import pause as actuation

    live = live_records(settings)
    confirmation = actuation.pause(live, revert=revert, wait_s=duration_s(wait), registry=live.registry)
    _print_actuators(confirmation, "all action is paused", as_json)


@with_settings
def resume(
    settings: Any,
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for the actuators.")] = "5s",
    as_json: Json = False,
) -> None:
    """End a pause: every host returns to its former mode."""
    from fabrictime.commands.config import pause as actuation

    live = live_records(settings)
    confirmation = actuation.resume(live, duration_s(wait), live.registry)
    _print_actuators(confirmation, "the former modes are restored", as_json)


def _print_actuators(confirmation: Any, summary: str, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(confirmation)))
    elif confirmation.actuators:
        typer.echo(
            f"{summary}: {confirmation.hosts} hosts of {confirmation.actuators} actuators "
            f"after {confirmation.took_ms:.0f} ms, {confirmation.in_force} actions in force"
        )
    else:
        typer.echo(f"{summary}; no actuator reported within the last 30 s")
    if confirmation.missing:
        stop("\n".join(f"actuator {name}: no confirmation" for name in confirmation.missing), 1)
