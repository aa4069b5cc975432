"""The command line: parses arguments and calls the module of the command.

Each command imports its module only when the command runs, so that `fabrictime --help` is fast. A usage error
prints one line and exits with code 2.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fabrictime.commands.alert.command import alert_app
from fabrictime.commands.audit.command import audit_app
from fabrictime.commands.bench_command import bench
from fabrictime.commands.config.command import config_app
from fabrictime.commands.config.pause_command import pause, resume
from fabrictime.commands.crash import CRASH_EXIT, crash_line, write_traceback
from fabrictime.commands.grafana_command import grafana_app
from fabrictime.commands.install.command import doctor, init
from fabrictime.commands.jobs.command import explain, jobs
from fabrictime.commands.mcp_command import mcp
from fabrictime.commands.metrics_command import metrics_app, size
from fabrictime.commands.options import (
    INSTALL_SERVER,
    ConfigFile,
    DataDir,
    Log,
    running_log,
    settings_of,
    stop,
)
from fabrictime.commands.overview.command import report, top
from fabrictime.commands.replay.command import replay
from fabrictime.commands.token_command import token
from fabrictime.commands.up.command import demo, status, up
from fabrictime.commands.views.command import actions, alerts, clock, links, tail
from fabrictime.commands.views.topology_command import topology_app

_OURS = {"schemas", "native", "producers", "streams", "actuators", "grafana", "fabrictime"}

app = typer.Typer(
    name="fabrictime",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="One nanosecond timeline for every NIC of a GPU cluster, from software alone.",
)


class _Lazy(TyperGroup):
    """A group of commands whose module is imported only when a command of the group is called."""

    module = ""

    def _commands(self) -> TyperGroup:
        group = typer.main.get_command(import_module(self.module).app)
        if not isinstance(group, TyperGroup):
            raise TypeError(f"{self.module}.app: expected a group of commands")
        return group

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return self._commands().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name; None if there is none."""
        return self._commands().get_command(ctx, cmd_name)


class _Fabric(_Lazy):
    module = "fabrictime.testbed.cli"


class _Sim(_Lazy):
    module = "fabrictime.commands.sim"


fabric = typer.Typer(
    cls=_Fabric, no_args_is_help=True, help="Build, load and break a fabric of real packets."
)
sim = typer.Typer(cls=_Sim, no_args_is_help=True, help="Inspect and break the running simulated fleet.")
topics_app = typer.Typer(no_args_is_help=True, help="Topics on a Kafka cluster.")
SEE, JOBS, ACT, RUN, TRY = "See the fleet", "Jobs and hosts", "Act", "Install and run", "Try and measure"
"""Groups of commands in the help."""
for _group, _name, _panel in (
    (topology_app, "topology", SEE),
    (audit_app, "audit", JOBS),
    (alert_app, "alert", ACT),
    (config_app, "config", ACT),
    (topics_app, "topics", RUN),
    (grafana_app, "grafana", RUN),
    (metrics_app, "metrics", RUN),
    (fabric, "fabric", TRY),
    (sim, "sim", TRY),
):
    app.add_typer(_group, name=_name, rich_help_panel=_panel)


@fabric.callback()
@sim.callback()
def _lazy_group() -> None:
    pass


def _version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(version("fabrictime"))
        except PackageNotFoundError:  # a checkout
            import tomllib

            project = Path(__file__).resolve().parents[2] / "pyproject.toml"
            typer.echo(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_COMMANDS: dict[str, tuple[Callable[..., Any], ...]] = {
    SEE: (top, links, alerts, actions, clock, tail, report, mcp),
    JOBS: (explain, jobs),
    ACT: (pause, resume),
    RUN: (init, doctor, up, status, token, size),
    TRY: (demo, bench, replay),
}
for _panel, _functions in _COMMANDS.items():
    for _command in _functions:
        app.command(rich_help_panel=_panel)(_command)


@topics_app.command("create")
def topics_create(log: Log = None, directory: DataDir = None, config: ConfigFile = None) -> None:
    """Create the topics on a Kafka cluster, and report how existing topics differ."""
    from fabrictime.runtime import topics_admin

    try:
        settings = settings_of(config, directory, log)
        for line in topics_admin.create(running_log(settings), settings):
            typer.echo(line)
    except ValueError as error:
        stop(str(error))


@topics_app.command("acls")
def topics_acls(
    name: Annotated[
        str | None, typer.Argument(metavar="[SERVICE]", help="One service; default: all.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--principal", metavar="PREFIX", help="Beginning of the services' principals.")
    ] = "User:fabrictime-",
) -> None:
    """Print the options of Kafka's kafka-acls.sh that allow each service its own topics alone."""
    from schemas.kafka import acls

    try:
        for service in [name] if name is not None else acls.services():
            for line in acls.command_lines(service, f"{prefix}{service}"):
                typer.echo(line)
    except ValueError as error:
        stop(str(error))


@app.command(hidden=True)
def service(
    name: Annotated[str, typer.Argument()],
    config: ConfigFile = None,
    nic: Annotated[str | None, typer.Option(help="NIC of the fleet that the prober serves.")] = None,
) -> None:
    """Run one service in this process, for the supervisor and for containers."""
    from fabrictime.runtime import service as runner

    raise typer.Exit(runner.run(name, config, nic))


@app.command(rich_help_panel=RUN)
def notify(config: ConfigFile = None, directory: DataDir = None, log: Log = None) -> None:
    """Send alerts to the receivers in the settings, in this process. `up` runs it if there are receivers."""
    from actuators.notify.service import main as run_notifier
    from fabrictime.metrics.export import start

    settings = settings_of(config, directory, log)
    try:
        own = settings.notify.model_copy(update={"kafka": running_log(settings)})
        metrics = settings.metrics
    except ValueError as error:
        stop(str(error))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with contextlib.closing(start(metrics)):
        raise typer.Exit(run_notifier(own))


def main() -> int:
    """Run the command line and return its exit code; an internal error prints one line and gives 70."""
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            return _crashed(error, sys.argv[1:])
        typer.echo(f"fabrictime: needs the package {error.name}: {INSTALL_SERVER}", err=True)
        return 2
    except Exception as error:  # noqa: BLE001 - the last resort: reported, not swallowed
        return _crashed(error, sys.argv[1:])
    return 0


def _crashed(error: Exception, arguments: list[str]) -> int:
    if arguments[:1] in (["--debug"], ["service"]):  # the log of a service shows the traceback
        traceback.print_exception(error)
    typer.echo(f"fabrictime: {crash_line(error, write_traceback(error, arguments))}", err=True)
    return CRASH_EXIT


if __name__ == "__main__":
    sys.exit(main())
