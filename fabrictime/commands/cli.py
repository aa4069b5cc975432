"""The command line. In: arguments. Out: text, or JSON with --json; one line and exit code 2 where wrong.

Nothing heavy is imported before a command needs it: `fabrictime --help` answers at once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

USAGE_EXIT = 2

app = typer.Typer(
    name="fabrictime", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="One nanosecond timeline for every NIC of a GPU cluster, from software alone.",
)  # fmt: skip


class _Lazy(TyperGroup):
    """Commands of another module, imported when one of them is called."""

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
        """Return one command; None where there is none of that name."""
        return self._commands().get_command(ctx, cmd_name)


class _Fabric(_Lazy):
    module = "fabrictime.testbed.cli"


class _Sim(_Lazy):
    module = "fabrictime.commands.sim"


fabric = typer.Typer(
    cls=_Fabric, no_args_is_help=True, help="Build, load and break a fabric of real packets."
)
sim = typer.Typer(cls=_Sim, no_args_is_help=True, help="Look into the running simulated fleet and break it.")
config_app = typer.Typer(no_args_is_help=True, help="Show and check the settings; change what is live.")
replay_app = typer.Typer(no_args_is_help=True, help="Judge a time of the log once more.")
topics_app = typer.Typer(no_args_is_help=True, help="The topics on a Kafka cluster.")
grafana_app = typer.Typer(no_args_is_help=True, help="The Grafana dashboards.")
app.add_typer(fabric, name="fabric")
app.add_typer(sim, name="sim")
app.add_typer(config_app, name="config")
app.add_typer(replay_app, name="replay")
app.add_typer(topics_app, name="topics")
app.add_typer(grafana_app, name="grafana")


@fabric.callback()
@sim.callback()
def _lazy_group() -> None:
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

            project = Path(__file__).resolve().parents[2] / "pyproject.toml"
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
        str | None, typer.Option(metavar="KIND", help="fabric, sim:NICS, loopback, none, or a fleet file.")
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
    from fabrictime.commands import up as runner

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
    from fabrictime.runtime import status as reader

    try:
        found = reader.read(_config(config, directory).up.data_directory)
    except ValueError as error:
        _stop(str(error), 1)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        reader.show(found)


@app.command()
def clock(
    clocks: Annotated[
        list[str] | None, typer.Argument(metavar="[CLOCK]...", help="Clocks, as h1/ptp0 or 'h1*'.")
    ] = None,
    host: Annotated[list[str] | None, typer.Option(help="Only the clocks of this host, or of 'h1*'.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show them live, until Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="List every clock.")] = False,
    worst: Annotated[int | None, typer.Option(min=1, help="List this many, the worst.")] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back to look for events.")] = "60s",
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 unless every clock is SYNCED, now.")
    ] = False,
    bound_us: Annotated[
        float | None, typer.Option(min=0, help="With --check: and its bound is at most this.")
    ] = None,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the fleet's clocks: state, offset, drift and bound, the worst first; and the suspect pairs."""
    from fabrictime.commands import clock as reader
    from fabrictime.commands.tail import registry_at

    if bound_us is not None and not check:
        _stop("--bound-us: expected with --check")
    if check and watch:
        _stop("--check: expected without --watch")
    wanted = reader.Wanted(
        tuple(clocks or ()), tuple(host or ()), worst, everything, duration_s(since), as_json=as_json
    )
    settings = _config(config, directory, log)
    registry = registry_at(settings.schema_registry.url)
    try:
        if watch:
            reader.watch(_running_log(settings), wanted, registry=registry)
            return
        found = reader.main(_running_log(settings), wanted, registry=registry)
    except ValueError as error:
        _stop(str(error))
    wrong = found.wrong(bound_us) if check else []
    if wrong:
        more = [f"and {len(wrong) - 10:,} more"] if len(wrong) > 10 else []
        _stop("\n".join([*wrong[:10], *more]), 1)


@app.command()
def topology(
    watch: Annotated[bool, typer.Option("--watch", help="Show it live, until Ctrl-C.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Exit with 1 where a rail is wired wrong, the file says otherwise, a cable of it is crossed "
            "by no path, or a path is not known from end to end.",
        ),
    ] = False,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what was found as a topology file (JSON).")
    ] = None,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the fabric as it was traced: switches, cables and how many paths cross them, and what is wrong."""
    from fabrictime.commands import topology as reader
    from fabrictime.commands.tail import registry_at

    if watch and (check or as_json or file is not None):
        _stop("--watch: expected without --check, --json and --file")
    settings = _config(config, directory, log)
    registry = registry_at(settings.schema_registry.url)
    try:
        source = reader.source_of(settings)
        if watch:
            reader.watch(_running_log(settings), source, registry=registry)
            return
        found = reader.main(
            _running_log(settings), topology=source.topology, as_json=as_json, file=file, registry=registry
        )
    except (ValueError, OSError) as error:
        _stop(str(error))
    wrong = found.wrong() if check else []
    if wrong:
        more = [f"and {len(wrong) - 10:,} more"] if len(wrong) > 10 else []
        _stop("\n".join([*wrong[:10], *more]), 1)


Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Only what has this in its name, as leaf1.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Show it live, until Ctrl-C.")]


@app.command()
def links(
    names: Names = None,
    watch: Watch = False,
    everything: Annotated[bool, typer.Option("--all", help="Also what is UP again.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 where anything is not UP.")] = False,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the links, NICs and hosts that are DOWN, GREY or FLAPPING, by which evidence, since when."""
    _board("links", names, everything, watch, check, as_json, _config(config, directory, log))


@app.command()
def alerts(
    names: Names = None,
    watch: Watch = False,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were cleared.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 where one stands.")] = False,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the alerts that stand: each cause once, with what belongs to it."""
    _board("alerts", names, everything, watch, check, as_json, _config(config, directory, log))


def _board(
    kind: str, names: list[str] | None, everything: bool, watch: bool, check: bool, as_json: bool, found: Any
) -> None:
    from fabrictime.commands import links as reader
    from fabrictime.commands.tail import registry_at

    if check and watch:
        _stop("--check: expected without --watch")
    wanted = reader.Wanted(tuple(names or ()), everything, as_json=as_json)
    try:
        registry = registry_at(found.schema_registry.url)
        if watch:
            reader.watch(_running_log(found), reader.KINDS[kind], wanted, registry=registry)
            return
        wrong = reader.main(_running_log(found), reader.KINDS[kind], wanted, registry=registry)
    except ValueError as error:
        _stop(str(error))
    if check and wrong:
        more = [f"and {len(wrong) - 10:,} more"] if len(wrong) > 10 else []
        _stop("\n".join([*(str(row["text"]) for row in wrong[:10]), *more]), 1)


@app.command()
def actions(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only flows or links with this, as h3.")
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back to look.")] = "5m",
    held: Annotated[bool, typer.Option("--held", help="Only what is held back now, and why.")] = False,
    watch: Watch = False,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what was decided for flows, why, what came of it, and what is held back; the mode in force."""
    from fabrictime.commands import actions as reader
    from fabrictime.commands.tail import registry_at

    found = _config(config, directory, log)
    wanted = reader.Wanted(tuple(names or ()), duration_s(since), held, as_json=as_json)
    try:
        registry = registry_at(found.schema_registry.url)
        show = reader.watch if watch else reader.main
        show(_running_log(found), wanted, registry=registry)
    except ValueError as error:
        _stop(str(error))


@app.command()
def why(
    flow: Annotated[
        str, typer.Argument(help="Its id or a part of it, or its source as address:port or host:port.")
    ],
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back to look for decisions.")] = "5m",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Tell why a flow goes where it goes: its links, other ways, what was decided, why, what came of it."""
    from fabrictime.commands import explain as reader
    from fabrictime.commands.tail import registry_at

    found = _config(config, directory, log)
    try:
        registry = registry_at(found.schema_registry.url)
        seconds = duration_s(since)
        reader.main(_running_log(found), flow, since_s=seconds, as_json=as_json, registry=registry)
    except ValueError as error:
        _stop(str(error))


@replay_app.callback()
def _replay_group() -> None:
    pass


@replay_app.command("alerts")
def replay_alerts(
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="2026-03-01T12:00:00 (UTC), or 2h for 2 hours ago.")
    ] = "1h",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="As --from, or now.")] = "now",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Judge a time of the log once more; exit code 1 where the alerts are not those that were published."""
    from fabrictime.commands import replay_alerts as replay

    def run(found: Any, span: Any, **more: Any) -> tuple[str, list[str], bool]:
        window_ns = int(found.value("streams", "window_ms")) * 1_000_000
        done = replay.main(_running_log(found), span, window_ns=window_ns, **more)
        return replay.as_json(done), replay.lines_of(done), bool(done.differences)

    _replay(run, start, end, _config(config, directory, log), as_json)


@replay_app.command("decisions")
def replay_decisions(
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="2026-03-01T12:00:00 (UTC), or 2h for 2 hours ago.")
    ] = "10m",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="As --from, or now.")] = "now",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Decide a time of the log once more; exit code 1 where the decisions are not those published."""
    from fabrictime.commands import replay_decisions as again

    def run(found: Any, span: Any, **more: Any) -> tuple[str, list[str], bool]:
        done = again.main(_running_log(found), span, **more)
        return again.as_json(done), again.lines_of(done), bool(done.differences)

    _replay(run, start, end, _config(config, directory, log), as_json)


def _replay(
    run: Callable[..., tuple[str, list[str], bool]], start: str, end: str, found: Any, as_json: bool
) -> None:
    """Run a replay, show it and exit by whether it differs."""
    import time

    from fabrictime.commands import replay_alerts as replay
    from fabrictime.commands.tail import registry_at
    from fabrictime.commands.topology import source_of
    from schemas.topology import TopologyError

    try:
        now_s = time.time()
        span = replay.Span(replay.parse_time(start, now_s), replay.parse_time(end, now_s))
        if span.to_ns <= span.from_ns:
            _stop(f"--to {end}: expected later than --from {start}")
        with replay.shown(span) as progress:
            text, lines, differs = run(
                found, span, topology=source_of(found).topology,
                registry=registry_at(found.schema_registry.url), progress=progress,
                default_shard=str(found.value("streams", "default_shard")),
            )  # fmt: skip
    except (ValueError, TopologyError) as error:
        _stop(str(error))
    typer.echo(text if as_json else "\n".join(lines))
    raise typer.Exit(1 if differs else 0)


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
    from fabrictime.commands import tail as reader

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
    parts: Annotated[list[str] | None, typer.Argument(help="Its parts; all where none is named.")] = None,
    as_json: Json = False,
    quick: Annotated[bool, typer.Option(help="Measure shorter: proves only that it runs.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the benches and their targets.")] = False,
) -> None:
    """Measure this machine against the project's figures."""
    from fabrictime.bench import _show, names, parts_of

    if listed:
        _show.print_list(as_json=as_json)
        return
    if name is None or name not in (*names(), "all"):
        _stop(f"bench {name or ''}: expected one of {', '.join([*names(), 'all'])}")
    wanted = tuple(parts or ())
    known = () if name == "all" else parts_of(name)
    if unknown := [part for part in wanted if part not in known]:
        _stop(f"bench {name} {unknown[0]}: expected {', '.join(known) or 'no part: it is measured whole'}")
    chosen = names() if name == "all" else [name]
    raise typer.Exit(_show.run(chosen, as_json=as_json, quick=quick, parts=wanted))


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
    from fabrictime.runtime.example_config import example

    typer.echo(example(), nl=False)


Host = Annotated[str, typer.Option("--host", help="For this host alone; * is for everyone.")]


@config_app.command("get")
def config_get(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Thresholds; all.")] = None,
    host: Host = "*",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what is told live: thresholds in force, latency rules, who set them."""
    from fabrictime.commands import live_config

    live = _live(log, config, directory)
    found = live_config.lines(live.records, host)
    unknown = set(names or ()) - {line.name for line in found}
    if unknown:
        _stop(f"threshold {sorted(unknown)[0]}: no such threshold, `fabrictime config get` lists them")
    found = [line for line in found if not names or line.name in names]
    if as_json:
        typer.echo(live_config.as_json(live.records, found, host))
    else:
        live_config.show(live.records, found, host)


@config_app.command("set")
def config_set(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="Thresholds; mode, allowed_actions, max_actions_per_s, max_moved_share, protected_jobs, "
            "slice.TENANT=20M:100M.",
        ),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Back to the default.")] = None,
    without_limit: Annotated[
        bool, typer.Option("--without-limit", help="Also where a limit is then none any more.")
    ] = False,
    host: Host = "*",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Change thresholds and limits of everything that runs, at once; checked before it is published."""
    from fabrictime.commands import live_config

    if not settings and not unset:
        _stop("config set: expected NAME=VALUE or --unset NAME")
    live = _live(log, config, directory)
    try:
        record = live_config.changed(live.records.get(host), host, settings or (), unset or ())
        wide = live_config.too_wide(record, live.records.get(host))
        if wide and not without_limit:
            _stop("\n".join([*wide, "nothing is set; --without-limit sets it all the same"]))
        live.publish(record)
    except ValueError as error:
        _stop(str(error))
    typer.echo(f"{host}: version {record['version']} is in force")


@config_app.command("rule")
def config_rule(
    name: Annotated[str, typer.Argument(help="The rule's name.")],
    way: Annotated[
        str | None, typer.Argument(metavar="FROM>TO", help="Groups: host, NIC, rack:NAME, rail:N or *.")
    ] = None,
    p99_us: Annotated[float | None, typer.Option(help="us that the p99 delay is to stay below.")] = None,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long it may be above.")] = "10s",
    remove: Annotated[bool, typer.Option("--remove", help="Take the rule back.")] = False,
    host: Host = "*",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
) -> None:
    """Promise a one-way delay between two groups, with an alert where it is not kept."""
    from fabrictime.commands import live_config

    if remove == (way is not None and p99_us is not None):
        _stop("config rule: expected FROM>TO and --p99-us, or --remove")
    live = _live(log, config, directory)
    try:
        rule = None if remove else live_config.parse_rule(name, way or "", p99_us or 0.0, duration_s(for_))
        record = live_config.with_rule(live.records.get(host), host, name, rule)
        live.publish(record)
    except ValueError as error:
        _stop(str(error))
    typer.echo(f"{host}: version {record['version']} is in force")


@config_app.command("diff")
def config_diff(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...", help="What these, as `config set` takes them, would change."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What a TOML file of NAME = value, and of that alone, would change."
        ),
    ] = None,
    host: Host = "*",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what differs from the defaults, or what settings or a file would change; exit code 1 where any."""
    from fabrictime.commands import live_config

    live = _live(log, config, directory)
    if settings or file is not None:
        _diff(live.records.get(host), host, settings, file, as_json)
        return
    found = [line for line in live_config.lines(live.records, host) if line.value != line.default]
    if as_json:
        typer.echo(live_config.as_json(live.records, found))
    else:
        for line in found:
            typer.echo(f"{line.name}: {line.value:g}, default {line.default:g}, set by {line.set_by}")
        for name, value, _ in _limits_set(live.records.get(host)):
            typer.echo(f"{name}: {value}, set by {host}")
    raise typer.Exit(1 if found or _limits_set(live.records.get(host)) else 0)


def _limits_set(record: dict[str, Any] | None) -> list[tuple[str, Any, Any]]:
    from fabrictime.commands import live_config

    names = live_config.LIMITS
    found = live_config.differences(record, None)
    return [row for row in found if row[0] in names or row[0].startswith("slice.")]


def _diff(
    record: dict[str, Any] | None, host: str, settings: list[str] | None, file: Path | None, as_json: bool
) -> None:
    """Show what settings, or a file, would change; exit code 1 where anything."""
    import tomllib

    from fabrictime.commands import live_config

    if settings and file is not None:
        _stop("config diff: expected settings or --file")
    try:
        if file is not None:
            given = tomllib.loads(file.read_text(encoding="utf-8"))
            after = live_config.from_file(record, host, given)
        else:
            after = live_config.changed(record, host, settings or ())
    except OSError as error:
        _stop(f"{file}: {error.strerror}")
    except ValueError as error:  # also what is no TOML
        _stop(str(error))
    found = live_config.differences(record, after)
    if as_json:
        rows = [{"name": name, "is": before, "would_be": then} for name, before, then in found]
        typer.echo(
            json.dumps({"host": host, "changes": rows, "too_wide": live_config.too_wide(after, record)})
        )
    else:
        for name, before, then in found:
            typer.echo(f"{name}: {_said(before)} -> {_said(then)}")
        for line in live_config.too_wide(after, record):
            typer.echo(f"{line}; `config set` wants --without-limit")
    raise typer.Exit(1 if found else 0)


def _said(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


@app.command()
def hold(
    revert: Annotated[bool, typer.Option("--revert", help="Also undo what is in force.")] = False,
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for actuators.")] = "5s",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Stop all action, everywhere, now; exit code 1 where an actuator does not say that it has stopped."""
    from fabrictime.commands import pause as holder

    live = _live(log, config, directory)
    try:
        found = holder.hold(live, revert=revert, wait_s=duration_s(wait), registry=live.registry)
    except ValueError as error:
        _stop(str(error))
    _say_stopped(found, "nothing is acted on any more", as_json)


@app.command()
def resume(
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for actuators.")] = "5s",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Take `fabrictime hold` back: every host goes on in the mode that it had."""
    from fabrictime.commands import pause as holder

    live = _live(log, config, directory)
    try:
        found = holder.resume(live, duration_s(wait), live.registry)
    except ValueError as error:
        _stop(str(error))
    _say_stopped(found, "in the former modes again", as_json)


def _say_stopped(found: Any, what: str, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(found)))
    elif found.actuators:
        typer.echo(
            f"{what}: {found.hosts} hosts of {found.actuators} actuators after {found.took_ms:.0f} ms, "
            f"{found.in_force} actions in force"
        )
    else:
        typer.echo(f"{what}; no actuator was heard within the last half minute")
    if found.missing:
        _stop("\n".join(f"actuator {name}: has not said so" for name in found.missing), 1)


def _live(log: str | None, config: Path | None, directory: Path | None) -> Any:
    """Return the records of fabric.config at the running log."""
    from fabrictime.commands.live_config import LiveRecords
    from fabrictime.commands.tail import registry_at

    settings = _config(config, directory, log)
    try:
        return LiveRecords(_running_log(settings), registry_at(settings.schema_registry.url))
    except ValueError as error:
        _stop(str(error))


@topics_app.command("create")
def topics_create(log: Log = None, config: ConfigFile = None) -> None:
    """Create the topics on a cluster, or check those that are there."""
    from fabrictime.runtime import topics_admin

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
    from fabrictime.runtime import service as runner

    raise typer.Exit(runner.run(name, config, nic))


def _running_log(settings: Any) -> str:
    """Return the log's address: of the `up` that runs on the data directory, else as the settings say."""
    from fabrictime.runtime import status as reader

    if settings.up.log_url is None:
        try:
            return str(reader.read(settings.up.data_directory)["addresses"]["log"])
        except ValueError:  # none is running: the settings are all there is
            return str(settings.bootstrap)
    return str(settings.bootstrap)


def _config(path: Path | None, directory: Path | None, log: str | None = None) -> Any:
    from fabrictime.runtime.config import load

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
