"""The command line. In: arguments. Out: text, or JSON with --json; one line and exit code 2 where wrong.

Nothing heavy is imported before a command needs it: `fabrictime --help` answers at once.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

USAGE_EXIT = 2

app = typer.Typer(
    name="fabrictime", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="One nanosecond timeline for every NIC of a GPU cluster, from software alone.",
)  # fmt: skip


class _Fabric(TyperGroup):
    """The `fabric` commands, imported when one of them is called."""

    def _commands(self) -> TyperGroup:
        from fabrictime.testbed.cli import app as fabric_app

        group = typer.main.get_command(fabric_app)
        if not isinstance(group, TyperGroup):
            raise TypeError("fabrictime.testbed.cli.app: expected a group of commands")
        return group

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return self._commands().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return one command; None where there is none of that name."""
        return self._commands().get_command(ctx, cmd_name)


fabric = typer.Typer(
    cls=_Fabric, no_args_is_help=True, help="Build, load and break a fabric of real packets."
)
config_app = typer.Typer(no_args_is_help=True, help="Show and check the settings.")
topics_app = typer.Typer(no_args_is_help=True, help="The topics on a Kafka cluster.")
grafana_app = typer.Typer(no_args_is_help=True, help="The Grafana dashboards.")
app.add_typer(fabric, name="fabric")
app.add_typer(config_app, name="config")
app.add_typer(topics_app, name="topics")
app.add_typer(grafana_app, name="grafana")


@fabric.callback()
def _fabric_group() -> None:
    pass


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file; fabrictime.toml here where it is there."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Log = Annotated[str | None, typer.Option("--log", metavar="URL", help="host:port of Kafka.")]
DataDir = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Data directory.")]


def _stop(message: str, code: int = USAGE_EXIT) -> NoReturn:
    for line in message.splitlines() or ["failed"]:
        typer.echo(f"fabrictime: {line}", err=True)
    raise typer.Exit(code)


def duration_s(text: str) -> float:
    """Return seconds for `500ms`, `30s`, `5m`, `1h` or a bare number of seconds.

    Raises typer.BadParameter for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    seconds = float(found[1]) * {"ms": 0.001, "m": 60.0, "h": 3600.0}.get(found[2], 1.0) if found else 0.0
    if not 0 < seconds <= 366 * 86_400:
        raise typer.BadParameter(f"{text!r}: expected a duration such as 30s, 5m or 1h")
    return seconds


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(version("fabrictime"))
        except PackageNotFoundError:  # a checkout: its own file knows
            import tomllib

            project = Path(__file__).resolve().parent.parent / "pyproject.toml"
            typer.echo(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def up(
    fleet: Annotated[
        str | None, typer.Option(metavar="KIND", help="fabric, loopback, none, or a fleet file.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after this time, with a scorecard.")
    ] = None,
    log: Log = None,
    history: Annotated[
        str | None, typer.Option(metavar="URL", help="http://host:port of ClickHouse.")
    ] = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Faust workers on this machine.")] = None,
    as_json: Json = False,
) -> None:
    """Start everything on this machine and show it live. Ctrl-C stops it and leaves nothing behind."""
    from fabrictime import up as runner

    seconds = None if for_ is None else duration_s(for_)
    changes = {
        "fleet": fleet, "log_url": log, "history_url": history, "workers": workers,
        "data_directory": None if directory is None else str(directory),
    }  # fmt: skip
    given = {key: value for key, value in changes.items() if value is not None}
    try:
        code = runner.main(config, given, for_s=seconds, as_json=as_json)
    except (ValueError, OSError) as error:
        _stop(str(error))
    raise typer.Exit(code)


@app.command()
def status(config: ConfigFile = None, directory: DataDir = None, as_json: Json = False) -> None:
    """Say what a running `up` is doing: its processes, ports, ages and the page's address."""
    from fabrictime import status as reader

    try:
        found = reader.read(_config(config, directory).up.data_directory)
    except ValueError as error:
        _stop(str(error), 1)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        reader.show(found)


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="Topic, as in docs/topics.md.")],
    start: Annotated[str, typer.Option("--from", help="beginning or end.")] = "end",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print the records of a topic, decoded, as they come."""
    from fabrictime import tail as reader

    if start not in ("beginning", "end"):
        _stop(f"--from {start!r}: expected beginning or end")
    try:
        settings = _config(config, directory, log)
        reader.main(
            _running_log(settings), topic, from_beginning=start == "beginning", limit=limit, as_json=as_json,
            schema_registry_url=settings.schema_registry.url,
        )  # fmt: skip
    except ValueError as error:
        _stop(str(error))


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="Which, or all.")] = None,
    as_json: Json = False,
    quick: Annotated[bool, typer.Option(help="Measure shorter: proves only that it runs.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the benches and their targets.")] = False,
) -> None:
    """Measure this machine against the project's figures."""
    from fabrictime.bench import _show, names

    if listed:
        _show.print_list(as_json=as_json)
        return
    if name != "all" and name not in names():
        _stop(f"bench {name or ''}: expected one of {', '.join([*names(), 'all'])}")
    raise typer.Exit(_show.run(names() if name == "all" else [name], as_json=as_json, quick=quick))


@config_app.command("show")
def config_show(config: ConfigFile = None, directory: DataDir = None) -> None:
    """Print every setting in force, as JSON."""
    try:
        typer.echo(_config(config, directory).dump())
    except ValueError as error:
        _stop(str(error))


@config_app.command("check")
def config_check(
    file: Annotated[Path | None, typer.Argument(help="As --config.", show_default=False)] = None,
    config: ConfigFile = None,
) -> None:
    """Check the file and say what is wrong with it, a line for each key."""
    if file is not None and config is not None:
        _stop("config check: expected one file")
    try:
        found = _config(file or config, None)
        found.check()
    except ValueError as error:
        _stop(str(error))
    typer.echo(f"{found.source}: correct")


@config_app.command("example")
def config_example() -> None:
    """Print a file with every key, its meaning and its default, as docs/fabrictime.toml."""
    from fabrictime.example import example

    typer.echo(example(), nl=False)


@topics_app.command("create")
def topics_create(log: Log = None, config: ConfigFile = None) -> None:
    """Create the topics on a cluster, or check those that are there."""
    from fabrictime import topics_admin

    try:
        settings = _config(config, None, log)
        for line in topics_admin.create(settings):
            typer.echo(line)
    except ValueError as error:
        _stop(str(error))


@grafana_app.command("push")
def grafana_push(
    url: Annotated[str, typer.Argument(help="http://host:port of the Grafana.")],
    token_file: Annotated[Path | None, typer.Option(help="File with a service account's token.")] = None,
    user: Annotated[str | None, typer.Option(help="User name, where there is no token.")] = None,
    password_file: Annotated[Path | None, typer.Option(help="File with that user's password.")] = None,
    history: Annotated[
        str | None, typer.Option(metavar="URL", help="ClickHouse, as that Grafana reaches it.")
    ] = None,
    history_user: Annotated[str, typer.Option(help="User name there.")] = "reader",
    history_password_file: Annotated[Path | None, typer.Option(help="File with its password.")] = None,
) -> None:
    """Put data source and dashboards into a Grafana that stands elsewhere."""
    from grafana import push

    try:
        lines = push.push(
            url, token_file, user=user, password=_secret(password_file),
            history_url=history, history_user=history_user, history_password=_secret(history_password_file),
        )  # fmt: skip
    except (ValueError, OSError) as error:
        _stop(str(error))
    for line in lines:
        typer.echo(line)


def _secret(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="utf-8").strip()


@app.command(hidden=True)
def service(
    name: Annotated[str, typer.Argument()],
    config: ConfigFile = None,
    nic: Annotated[str | None, typer.Option(help="Which NIC of the fleet, for a prober.")] = None,
) -> None:
    """Run one service in this process: what the supervisor and the containers start."""
    from fabrictime import service as runner

    raise typer.Exit(runner.run(name, config, nic))


def _running_log(settings: Any) -> str:
    """Return the log's address: of the `up` that runs on the data directory, else as the settings say."""
    from fabrictime import status as reader

    if settings.up.log_url is None:
        try:
            return str(reader.read(settings.up.data_directory)["addresses"]["log"])
        except ValueError:  # none is running: the settings are all there is
            return str(settings.bootstrap)
    return str(settings.bootstrap)


def _config(path: Path | None, directory: Path | None, log: str | None = None) -> Any:
    from fabrictime.config import load

    given = {"data_directory": None if directory is None else str(directory), "log_url": log}
    try:
        return load(path, {"up": {key: value for key, value in given.items() if value is not None}})
    except ValueError as error:
        _stop(str(error))


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
