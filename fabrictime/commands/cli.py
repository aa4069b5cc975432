"""The command line: parses arguments and calls the module of the command.

Each command imports its module only when it runs, so that `fabrictime --help` answers at once. A usage error
prints one line and exits with code 2.
"""

from __future__ import annotations

import json
import sys
import traceback
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fabrictime.commands.audit_command import audit_app
from fabrictime.commands.config_commands import config_app
from fabrictime.commands.crash import CRASH_EXIT, crash_line, write_traceback
from fabrictime.commands.job_commands import explain, jobs
from fabrictime.commands.options import (
    INSTALL_SERVER,
    ConfigFile,
    DataDir,
    Json,
    Log,
    Names,
    Watch,
    duration_s,
    evidence_of,
    live_records,
    running_log,
    settings_of,
    stop,
    stop_if_any,
)
from fabrictime.commands.replay import replay
from fabrictime.commands.topology_command import topology_app

_OURS = {"schemas", "native", "producers", "streams", "actuators", "grafana", "fabrictime"}

app = typer.Typer(
    name="fabrictime",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="One nanosecond timeline for every NIC of a GPU cluster, from software alone.",
)


class _Lazy(TyperGroup):
    """A group of commands whose module is imported only when one of them is called."""

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
        """Return the command with this name, or None."""
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
grafana_app = typer.Typer(no_args_is_help=True, help="Grafana dashboards.")
app.add_typer(fabric, name="fabric")
app.add_typer(sim, name="sim")
app.add_typer(config_app, name="config")

app.add_typer(audit_app, name="audit")
app.add_typer(topology_app, name="topology")
app.add_typer(topics_app, name="topics")
app.add_typer(grafana_app, name="grafana")


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


class _Part(StrEnum):
    SERVICES = "services"


@app.command()
def up(
    fleet: Annotated[
        str | None, typer.Option(metavar="KIND", help="fabric, sim:NICS, loopback, none, or a fleet file.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Stop after this time and print a scorecard.")
    ] = None,
    log: Log = None,
    history: Annotated[
        str | None, typer.Option(metavar="URL", help="http://host:port of ClickHouse.")
    ] = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Faust workers on this machine.")] = None,
    with_: Annotated[
        _Part | None, typer.Option("--with", help="Start workers, history and page beside the agent.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start the pipeline on this machine and show it live; Ctrl-C stops every process.

    With a fleet file and --log, only this host's agent starts: workers, history and page run once for all
    hosts.
    """
    from fabrictime.commands import up as runner

    seconds = None if for_ is None else duration_s(for_)
    changes = {
        "fleet": fleet,
        "log_url": log,
        "history_url": history,
        "workers": workers,
        "services": None if with_ is None else "on",
        "data_directory": None if directory is None else str(directory),
    }
    overrides = {key: value for key, value in changes.items() if value is not None}
    try:
        code = runner.main(config, overrides, for_s=seconds, as_json=as_json)
    except (ValueError, OSError) as error:
        stop(str(error))
    raise typer.Exit(code)


@app.command()
def demo(
    observe: Annotated[
        bool, typer.Option("--observe", help="Carry out no action; show what the policy would do.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Draw the faults of an earlier tour again.")
    ] = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Take a guided tour: load the testbed's fabric with two jobs, break it five times, and heal it."""
    from fabrictime.commands import demo as tour

    raise typer.Exit(tour.main(config, directory, observe=observe, as_json=as_json, seed=seed))


@app.command()
def status(
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if a service fails, or evidence is missing.")
    ] = False,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the processes, ports and addresses of the running `up`, and what does not work."""
    from fabrictime.runtime import status as reader

    try:
        run_status = reader.read(settings_of(config, directory).up.data_directory)
    except ValueError as error:
        stop(str(error), 1)
    if as_json:
        typer.echo(json.dumps(run_status))
    else:
        reader.show(run_status)
    if check:
        stop_if_any(reader.wrong(run_status))


@app.command()
def clock(
    clocks: Annotated[
        list[str] | None, typer.Argument(metavar="[CLOCK]...", help="Clocks such as h1/ptp0 or 'h1*'.")
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
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show all clocks with state, offset, drift and bound, the worst first, and the suspect pairs."""
    from fabrictime.commands import clock as reader
    from fabrictime.commands.clock_table import Wanted

    if bound_us is not None and not check:
        stop("--bound-us: expected with --check")
    if check and watch:
        stop("--check: expected without --watch")
    query = Wanted(
        tuple(clocks or ()), tuple(host or ()), worst, everything, duration_s(since), as_json=as_json
    )
    settings = settings_of(config, directory, log)
    try:
        if watch:
            reader.watch(running_log(settings), query, registry=settings.kafka.registry())
            return
        picture = reader.main(running_log(settings), query, registry=settings.kafka.registry())
    except ValueError as error:
        stop(str(error))
    if check:
        stop_if_any(picture.wrong(bound_us))


@app.command()
def links(
    names: Names = None,
    watch: Watch = False,
    everything: Annotated[bool, typer.Option("--all", help="Include those that are UP again.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if anything is not UP, or evidence is missing.")
    ] = False,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show links, NICs and hosts that are DOWN, GREY or FLAPPING, since when, and the evidence."""
    _print_table("links", names, everything, watch, check, as_json, settings_of(config, directory, log))


@app.command()
def alerts(
    names: Names = None,
    watch: Watch = False,
    everything: Annotated[bool, typer.Option("--all", help="Include cleared alerts.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if an alert is active, or evidence is missing.")
    ] = False,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the active alerts, one per cause."""
    _print_table("alerts", names, everything, watch, check, as_json, settings_of(config, directory, log))


def _print_table(
    kind: str,
    names: list[str] | None,
    everything: bool,
    watch: bool,
    check: bool,
    as_json: bool,
    settings: Any,
) -> None:
    from fabrictime.commands import links as reader

    if check and watch:
        stop("--check: expected without --watch")
    query = reader.Wanted(tuple(names or ()), everything, as_json=as_json)
    try:
        if watch:
            reader.watch(evidence_of(settings), reader.KINDS[kind], query)
            return
        wrong = reader.main(evidence_of(settings), reader.KINDS[kind], query)
    except ValueError as error:
        stop(str(error))
    if check:
        stop_if_any(wrong)


@app.command()
def actions(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only flows or links that contain this, such as h3."),
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="Show decisions of this interval.")] = "5m",
    suppressed: Annotated[
        bool, typer.Option("--suppressed", help="Only actions that are suppressed now, with the reason.")
    ] = False,
    watch: Watch = False,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show decisions with cause and outcome, suppressed actions, and the mode in force."""
    from fabrictime.commands import actions as reader

    settings = settings_of(config, directory, log)
    query = reader.Wanted(tuple(names or ()), duration_s(since), suppressed, as_json=as_json)
    try:
        show = reader.watch if watch else reader.main
        show(running_log(settings), query, registry=settings.kafka.registry())
    except ValueError as error:
        stop(str(error))


app.command()(explain)
app.command()(jobs)
app.command()(replay)


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="Topic, as listed in docs/topics.md.")],
    start: Annotated[str, typer.Option("--from", help="Start at the beginning or the end.")] = "end",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Follow a topic and print its decoded records."""
    from fabrictime.commands import tail as reader

    if start not in ("beginning", "end"):
        stop(f"--from {start!r}: expected beginning or end")
    try:
        settings = settings_of(config, directory, log)
        reader.main(
            running_log(settings),
            topic,
            from_beginning=start == "beginning",
            limit=limit,
            as_json=as_json,
            registry=settings.kafka.registry(),
        )
    except ValueError as error:
        stop(str(error))


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="Bench to run, all, or compare.")] = None,
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="Parts of the bench, by default all; after compare: BENCH PART."),
    ] = None,
    as_json: Json = False,
    quick: Annotated[
        bool, typer.Option(help="Shorten the measurement; proves only that the bench runs.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the benches and their targets.")] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="With compare: measure this commit beside the checkout."),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="With compare: pairs of runs.")] = 3,
    own_benches: Annotated[
        bool, typer.Option("--own-benches", help="With compare: that commit runs its own benches.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With compare: keep the other commit's build there for the next time."
        ),
    ] = None,
) -> None:
    """Measure this machine against the project's figures."""
    from fabrictime.bench import _show, names

    if listed:
        _show.print_list(as_json=as_json)
        return
    if (name == "compare") != (against is not None):
        stop("bench compare: expected --against COMMIT, as in `bench compare --against HEAD~1 pipeline`")
    if against is not None:
        from fabrictime.bench import _compare

        compared, *their_parts = parts or ["pipeline"]
        _check_parts(compared, their_parts, names())
        run = partial(_compare.main, against, compared, their_parts, own_benches=own_benches, keep=keep)
        try:
            code = run(pairs=pairs, quick=quick, as_json=as_json)
        except ValueError as error:
            stop(f"bench compare: {error}", 1)
        raise typer.Exit(code)
    _check_parts(name or "", parts or [], [*names(), "all"])
    benches = names() if name == "all" else [str(name)]
    raise typer.Exit(_show.run(benches, as_json=as_json, quick=quick, parts=tuple(parts or ())))


def _check_parts(name: str, parts: list[str], benches: list[str]) -> None:
    """Stop with a usage error if a bench or a part of it does not exist."""
    from fabrictime.bench import parts_of

    if name not in benches:
        stop(f"bench {name}: expected one of {', '.join(benches)}")
    expected = () if name == "all" else parts_of(name)
    if unknown := [part for part in parts if part not in expected]:
        stop(f"bench {name} {unknown[0]}: expected {', '.join(expected) or 'no part'}")


@app.command()
def pause(
    revert: Annotated[bool, typer.Option("--revert", help="Also undo the actions in force.")] = False,
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for the actuators.")] = "5s",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Stop all action on all hosts; exit code 1 if an actuator does not confirm."""
    from fabrictime.commands import pause as actuation

    live = live_records(log, config, directory)
    try:
        confirmation = actuation.pause(live, revert=revert, wait_s=duration_s(wait), registry=live.registry)
    except ValueError as error:
        stop(str(error))
    _print_actuators(confirmation, "all action is paused", as_json)


@app.command()
def resume(
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for the actuators.")] = "5s",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """End a pause: every host returns to its former mode."""
    from fabrictime.commands import pause as actuation

    live = live_records(log, config, directory)
    try:
        confirmation = actuation.resume(live, duration_s(wait), live.registry)
    except ValueError as error:
        stop(str(error))
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


@grafana_app.command("push")
def grafana_push(
    url: Annotated[str, typer.Argument(help="Address of the Grafana: http://host:port.")],
    token_file: Annotated[Path | None, typer.Option(help="File with a service account's token.")] = None,
    user: Annotated[str | None, typer.Option(help="User name, without a token.")] = None,
    password_file: Annotated[Path | None, typer.Option(help="File with that user's password.")] = None,
    history: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of ClickHouse as Grafana reaches it.")
    ] = None,
    history_user: Annotated[str, typer.Option(help="ClickHouse user.")] = "reader",
    history_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of that user.")
    ] = None,
) -> None:
    """Install the data source and the dashboards in a Grafana."""
    from grafana import push

    try:
        lines = push.push(
            url,
            token_file,
            user=user,
            password=_secret(password_file),
            history_url=history,
            history_user=history_user,
            history_password=_secret(history_password_file),
        )
    except (ValueError, OSError) as error:
        stop(str(error))
    for line in lines:
        typer.echo(line)


@grafana_app.command("write")
def grafana_write(
    folder: Annotated[Path, typer.Argument(help="Folder for one JSON file a dashboard.")],
) -> None:
    """Write the dashboards to files, for the provisioning of a Grafana."""
    from grafana import dashboard_files

    try:
        dashboard_files.write_all(folder, dashboard_files.read_all())
    except (ValueError, OSError) as error:
        stop(str(error))


def _secret(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="utf-8").strip()


@app.command(hidden=True)
def service(
    name: Annotated[str, typer.Argument()],
    config: ConfigFile = None,
    nic: Annotated[str | None, typer.Option(help="NIC of the fleet that the prober serves.")] = None,
) -> None:
    """Run one service in this process, for the supervisor and for containers."""
    from fabrictime.runtime import service as runner

    raise typer.Exit(runner.run(name, config, nic))


def main() -> int:
    """Run the command line and return its exit code: 70 for an internal error, which is one line."""
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
