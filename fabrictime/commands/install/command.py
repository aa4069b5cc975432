"""The commands that set up and check an agent's host: `init` and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fabrictime.commands.options import (
    Everything,
    Json,
    stop,
    with_settings,
)

FOLDER = Path("/etc/fabrictime")
DATA = Path("/var/lib/fabrictime")


def init(
    log: Annotated[str, typer.Option("--log", metavar="URL", help="host:port of the fleet's Kafka.")],
    join: Annotated[
        Path | None,
        typer.Option(
            metavar="KEYFILE",
            help="The fleet's probe key, from the first host; - reads it from standard input.",
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the files; without it, show them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that hold other values.")] = False,
    device: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A NIC of the fabric; may be repeated.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="This host's name in the fleet.")] = None,
    rack: Annotated[str | None, typer.Option(help="This host's rack.")] = None,
    netns: Annotated[
        str | None, typer.Option(metavar="PATH", help="Network namespace that holds the NICs.")
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = FOLDER,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data directory of the agent.")] = DATA,
    user: Annotated[
        str | None, typer.Option(help="User of the agent; without it `fabrictime` if root runs this.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find this host's NICs; write settings, fleet file and probe key for its agent.

    The first host makes the fleet's probe key. Bring it to each further host by ssh or by a tool for secrets:
    ssh first cat /etc/fabrictime/probe.key | ssh next fabrictime init --log kafka:9092 --join - --write

    Exit code 1: a file holds other values, and nothing was written.
    """
    from fabrictime.commands.install import init as runner

    try:
        code = runner.main(
            runner.Request(log, join, tuple(device or ()), host, rack, netns, folder, data, user),
            write=write,
            force=force,
            as_json=as_json,
        )
    except (ValueError, OSError) as error:
        stop(str(error))
    raise typer.Exit(code)


@with_settings
def doctor(
    settings: Any,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AREA",
            help="files, agent, host, nics, clock, kafka or history; may be repeated.",
        ),
    ] = None,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Check settings, host, NICs, clock, Kafka and ClickHouse; print a fix for each fault.

    Nothing is changed. Exit code 0: no check failed, 1: a check failed, 2: the settings cannot be read.
    """
    from fabrictime.commands.install import doctor as runner

    code = runner.main(settings, only or (), everything=everything, as_json=as_json)
    raise typer.Exit(code)
