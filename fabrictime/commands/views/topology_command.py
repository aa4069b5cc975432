"""The command `fabrictime topology`, with the import of other tools' descriptions of a fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fabrictime.commands.options import (
    ConfigFile,
    DataDir,
    Json,
    Log,
    running_log,
    settings_of,
    stop,
    stop_if_any,
    with_settings,
)

topology_app = typer.Typer(
    invoke_without_command=True,
    help="Show the traced fabric: switches, cables, the paths that cross them, and miswirings.",
)


@topology_app.callback()
@with_settings
def topology(
    settings: Any,
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the view live until Ctrl-C.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Exit with code 1 if a rail is miswired, a cable differs from the topology file or is "
            "crossed by no path, or a path is incomplete.",
        ),
    ] = False,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the traced topology to this file (JSON).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the traced fabric: switches, cables, the paths that cross them, and miswirings."""
    if context.invoked_subcommand is not None:
        return
    from fabrictime.commands.views import topology as reader

    if watch and (check or as_json or file is not None):
        stop("--watch: expected without --check, --json and --file")
    try:
        source = reader.source_of(settings)
        if watch:
            reader.watch(running_log(settings), source, registry=settings.kafka.registry())
            return
        picture = reader.main(
            running_log(settings),
            topology=source.topology,
            as_json=as_json,
            file=file,
            registry=settings.kafka.registry(),
        )
    except OSError as error:
        stop(str(error))
    if check:
        stop_if_any(picture.wrong())


@topology_app.command("export")
def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="slurm-tree, slurm-block, slurm-yaml, kubernetes-labels or json."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here; without it to standard output."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read this topology file instead of the traced fabric."),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="Only this network, where the fabric has several.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="Compare with an earlier export; exit with code 1 and the lines that differ.",
        ),
    ] = None,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Write the measured fabric for a scheduler: which hosts share a leaf, a pod, a network."""
    from fabrictime.commands.views import topology_export

    if output is not None and check is not None:
        stop("--output: expected without --check")
    try:
        settings = None if file is not None else settings_of(config, directory, log)
        text = topology_export.exported(name, file, settings, network)
        if check is not None:
            stop_if_any(topology_export.differences(check, text))
        elif output is not None:
            output.write_text(text, encoding="utf-8")
        else:
            typer.echo(text, nl=False)
    except (ValueError, OSError) as error:
        stop(str(error))


@topology_app.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files of one or more hosts or switches.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here; without it to standard output."),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--format",
            help="lldp, sonic, minigraph, containerlab, slurm, ibnetdiscover, nccl, ptm or netbox; without "
            "it the format is recognised.",
        ),
    ] = "",
    host: Annotated[
        str, typer.Option(help="Host that the file describes; without it the file's name without suffix.")
    ] = "",
    device: Annotated[str, typer.Option(help="Network device of hosts, where the file names none.")] = "eth0",
    hosts: Annotated[
        str,
        typer.Option(metavar="PATTERN", help="More nodes that are hosts, such as 'gpu*'."),
    ] = "",
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave nodes out, such as 'oob-*' for a management network; may be repeated.",
        ),
    ] = None,
    skip_conflicts: Annotated[
        bool,
        typer.Option(
            "--skip-conflicts",
            help="Leave out a cable whose port another one has already, with a line for each.",
        ),
    ] = False,
) -> None:
    """Make a topology file from files of other tools: LLDP, SONiC, containerlab, Slurm, InfiniBand …

    If no cable is found, nothing is written, and the exit code is 1.
    """
    from fabrictime.imports.base import Hints, NoCable
    from fabrictime.imports.formats import import_files

    conflicts: list[str] | None = [] if skip_conflicts else None
    try:
        hints = Hints(host, device, hosts, tuple(without or ()))
        topology_file = import_files(files, name, hints, conflicts)
        text = topology_file.model_dump_json(indent=2, exclude_defaults=True) + "\n"
        if output is None:
            typer.echo(text, nl=False)
        else:
            output.write_text(text, encoding="utf-8")
    except NoCable as error:
        stop(f"{error}; nothing is written", 1)
    except (ValueError, OSError) as error:
        stop(str(error))
    for conflict in conflicts or ():
        typer.echo(f"left out: {conflict}", err=True)
    count = sum(node.kind == "host" for node in topology_file.nodes)
    typer.echo(
        f"{count} hosts, {len(topology_file.nodes) - count} switches, {len(topology_file.links)} cables",
        err=True,
    )
