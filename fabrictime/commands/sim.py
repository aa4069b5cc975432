"""Implements `fabrictime sim`: inspects the running simulated fleet, and injects faults.

Output is text, or JSON with --json. The commands connect to the simulated fleet of this machine's `fabrictime
up --fleet sim:...`, over the socket in its data directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fabrictime.commands.options import ConfigFile, DataDir, Json
from fabrictime.runtime.config import load
from producers.sim.control import NoFleet, ask, socket_path
from producers.sim.fault_grammar import GRAMMAR, parse_fault
from schemas.records import TrueFault
from schemas.simulation_pace import advice, pace_text

app = typer.Typer(no_args_is_help=True, help="The simulated fleet that runs on this machine.")

_LINKS_SHOWN = 4


@app.command()
def status(directory: DataDir = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Show the simulated fleet: its jobs, its faults and its true queues."""
    with _clear_errors():
        fleet_state = ask(_path(directory, config), "status")
        if as_json:
            print(json.dumps(fleet_state))
            return
        probes = fleet_state["probes"]
        seconds = (fleet_state["now_ns"] - fleet_state["start_ns"]) / 1e9
        size = f"{fleet_state['nics']} NICs, {fleet_state['links']} links, {fleet_state['flows']} flows"
        _plain(f"{size}; {seconds:.0f} s simulated, {probes['sent']:,} probes, {probes['lost']:,} lost")
        hint = advice(fleet_state["pace"], fleet_state["nics"])
        skipped = (
            f", {fleet_state['skipped_s']:.0f} s skipped since the start"
            if fleet_state["skipped_s"] >= 1
            else ""
        )
        _plain(f"{pace_text(fleet_state['pace'])}{skipped}{f'; {hint}' if hint else ''}")
        if fleet_state["jobs"]:
            table = Table("job", "kind", "NICs", "iterations", "last ms", box=None)
            for job in fleet_state["jobs"]:
                last = "-" if job["time_ns"] is None else f"{job['time_ns'] / 1e6:.2f}"
                table.add_row(job["job"], job["kind"], str(job["nics"]), f"{job['iterations']:,}", last)
            Console().print(table)
        for fault in fleet_state["faults"]:
            _plain(_text_of(fault))
        for window in fleet_state["contention"]:
            standing_s = (fleet_state["now_ns"] - window["begin_ns"]) / 1e9
            kind = window["kind"].replace("_", " ").lower()
            _plain(f"queue stands {standing_s:.1f} s at {window['link']}: {kind}")


@app.command(epilog=GRAMMAR.replace("\n", "\n\n"))
def fault(
    line: Annotated[
        str,
        typer.Argument(
            help="as in 'grey 20% leaf1>spine2 for 10s'; all forms: docs/simulation.md", show_default=False
        ),
    ],
    duration: Annotated[str | None, typer.Option("--for", help="heal by itself, as in 10s")] = None,
    directory: DataDir = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Break a part of the simulated fleet."""
    with _clear_errors():
        text = line if duration is None else f"{line} for {duration}"
        parse_fault(text)
        new_fault = ask(_path(directory, config), "fault", line=text)
        if as_json:
            print(json.dumps(new_fault))
        else:
            _plain(_text_of(new_fault))


@app.command()
def clear(
    which: Annotated[str | None, typer.Argument(help="number or line of a fault; all without")] = None,
    directory: DataDir = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Heal one fault, or all faults."""
    with _clear_errors():
        healed = ask(_path(directory, config), "clear", fault=which)
        if as_json:
            print(json.dumps(healed))
            return
        for cleared in healed:
            active_s = max(0.0, (cleared["end_ns"] - cleared["begin_ns"]) / 1e9)
            _plain(f"fault {cleared['fault']} cleared after {active_s:.1f} s: {cleared['line']}")
        if not healed:
            _plain("no fault in force")


def _text_of(fault: TrueFault) -> str:
    links = fault["links"]
    more = f" and {len(links) - _LINKS_SHOWN} more" if len(links) > _LINKS_SHOWN else ""
    return f"fault {fault['fault']}: {fault['line']}; on {', '.join(links[:_LINKS_SHOWN])}{more}"


def _path(directory: Path | None, config: Path | None) -> Path:
    return socket_path(load(config).up.data_directory if directory is None else directory)


def _plain(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Report an error in one line on standard error and exit with code 1, or 2 for a wrong argument."""
    try:
        yield
    except NoFleet as error:
        typer.echo(f"fabrictime sim: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        typer.echo(f"fabrictime sim: {error}", err=True)
        raise typer.Exit(2) from None
