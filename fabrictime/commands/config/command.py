"""Commands of `fabrictime config`: check the settings file, read and change the live configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fabrictime.commands.options import (
    ConfigFile,
    DataDir,
    Host,
    Json,
    duration_s,
    live_records,
    settings_of,
    stop,
    with_settings,
)

if TYPE_CHECKING:
    from schemas.records import ActuatorConfig

config_app = typer.Typer(
    no_args_is_help=True, help="Show and check the settings; change the live configuration."
)


@config_app.command("show")
def config_show(config: ConfigFile = None, directory: DataDir = None) -> None:
    """Print all settings in force as JSON."""
    try:
        typer.echo(settings_of(config, directory).dump())
    except ValueError as error:
        stop(str(error))


@config_app.command("check")
def config_check(
    file: Annotated[
        Path | None, typer.Argument(help="Settings file, like --config.", show_default=False)
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Check a settings file; print one line per invalid key."""
    if file is not None and config is not None:
        stop("config check: expected one file")
    try:
        settings = settings_of(file or config, None)
        settings.check()
    except ValueError as error:
        stop(str(error))
    typer.echo(f"{settings.source}: correct")


@config_app.command("example")
def config_example() -> None:
    """Print a settings file with every key, its meaning and its default."""
    from fabrictime.runtime.example_config import example

    typer.echo(example(), nl=False)


@config_app.command("get")
@with_settings
def config_get(
    settings: Any,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Thresholds to show; without a name, all.")
    ] = None,
    host: Host = "*",
    as_json: Json = False,
) -> None:
    """Show the live configuration: thresholds and latency rules in force, and their authors."""
    from fabrictime.commands.config import live_config

    live = live_records(settings)
    lines = live_config.lines(live.records, host)
    unknown = set(names or ()) - {line.name for line in lines}
    if unknown:
        stop(f"threshold {sorted(unknown)[0]}: no such threshold, `fabrictime config get` lists them")
    lines = [line for line in lines if not names or line.name in names]
    if as_json:
        typer.echo(live_config.as_json(live.records, lines, host))
    else:
        live_config.show(live.records, lines, host)


@config_app.command("set")
@with_settings
def config_set(
    settings: Any,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="A threshold, or mode, allowed_actions, max_actions_per_s, max_moved_share, protected_jobs, "
            "slice.TENANT=20M:100M.",
        ),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Restore the default.")] = None,
    without_limit: Annotated[
        bool, typer.Option("--without-limit", help="Accept a change that removes a limit.")
    ] = False,
    host: Host = "*",
) -> None:
    """Change thresholds and limits of all running stages and actuators, after a check."""
    from fabrictime.commands.config import live_config

    if not assignments and not unset:
        stop("config set: expected NAME=VALUE or --unset NAME")
    live = live_records(settings)
    record = live_config.changed(live.records.get(host), host, assignments or (), unset or ())
    wide = live_config.too_wide(record, live.records.get(host))
    if wide and not without_limit:
        stop("\n".join([*wide, "nothing was set; --without-limit accepts the change"]))
    live.publish(record)
    typer.echo(f"{host}: version {record['version']} is in force")


@config_app.command("rule")
@with_settings
def config_rule(
    settings: Any,
    name: Annotated[str, typer.Argument(help="Name of the rule.")],
    pair: Annotated[
        str | None, typer.Argument(metavar="FROM>TO", help="Groups: host, NIC, rack:NAME, rail:N or *.")
    ] = None,
    p99_us: Annotated[float | None, typer.Option(help="Objective: p99 of the one-pair delay in us.")] = None,
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long the delay may exceed the objective.")
    ] = "10s",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the rule.")] = False,
    host: Host = "*",
) -> None:
    """Set a latency SLO between two groups; an alert reports a violation."""
    from fabrictime.commands.config import live_config

    if remove == (pair is not None and p99_us is not None):
        stop("config rule: expected FROM>TO and --p99-us, or --remove")
    live = live_records(settings)
    rule = None if remove else live_config.parse_rule(name, pair or "", p99_us or 0.0, duration_s(for_))
    record = live_config.with_rule(live.records.get(host), host, name, rule)
    live.publish(record)
    typer.echo(f"{host}: version {record['version']} is in force")


@config_app.command("diff")
@with_settings
def config_diff(
    settings: Any,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Show the effect of these settings."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Show the effect of a TOML file of NAME = value."),
    ] = None,
    host: Host = "*",
    as_json: Json = False,
) -> None:
    """Show differences from the defaults, or the effect of settings or a file; exit code 1 if any."""
    from fabrictime.commands.config import live_config

    live = live_records(settings)
    if assignments or file is not None:
        _print_changes(live.records.get(host), host, assignments, file, as_json)
        return
    lines = [line for line in live_config.lines(live.records, host) if line.value != line.default]
    if as_json:
        typer.echo(live_config.as_json(live.records, lines))
    else:
        for line in lines:
            typer.echo(f"{line.name}: {line.value:g}, default {line.default:g}, set by {line.set_by}")
        for name, value, _ in _changed_limits(live.records.get(host)):
            typer.echo(f"{name}: {value}, set by {host}")
    raise typer.Exit(1 if lines or _changed_limits(live.records.get(host)) else 0)


def _changed_limits(record: ActuatorConfig | None) -> list[tuple[str, Any, Any]]:
    from fabrictime.commands.config import live_config

    names = live_config.LIMITS
    differences = live_config.differences(record, None)
    return [row for row in differences if row[0] in names or row[0].startswith("slice.")]


def _print_changes(
    record: ActuatorConfig | None, host: str, settings: list[str] | None, file: Path | None, as_json: bool
) -> None:
    """Print the effect of settings or a file; exit with code 1 if there is any effect."""
    from fabrictime.commands.config import live_config
    from schemas.settings_file import BadFile, read_tables

    if settings and file is not None:
        stop("config diff: expected settings or --file")
    try:
        if file is not None:
            values = read_tables(file)
            after = live_config.from_file(record, host, values)
        else:
            after = live_config.changed(record, host, settings or ())
    except BadFile as error:
        stop(f"{file}: {error}")
    differences = live_config.differences(record, after)
    if as_json:
        rows = [{"name": name, "is": before, "would_be": then} for name, before, then in differences]
        typer.echo(
            json.dumps({"host": host, "changes": rows, "too_wide": live_config.too_wide(after, record)})
        )
    else:
        for name, before, then in differences:
            typer.echo(f"{name}: {value_text(before)} -> {value_text(then)}")
        for line in live_config.too_wide(after, record):
            typer.echo(f"{line}; `config set` requires --without-limit")
    raise typer.Exit(1 if differences else 0)


@config_app.command("new-key")
def config_new_key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File for the private key; FILE.pub: the public one.")
    ],
) -> None:
    """Create the key with which policy workers and this command line sign (`control.signing_key_file`)."""
    from schemas.signing import new_key

    try:
        public = new_key(file)
    except OSError as error:
        stop(f"{error.filename}: {error.strerror}")
    typer.echo(f"{file}: keep it secret; add {public} to control.accepted_keys_file on all hosts first")


@config_app.command("sign")
@with_settings
def config_sign(settings: Any) -> None:
    """Publish the configuration again, signed with the present key.

    Run it once before signatures are required, and after a key change before the former key is removed. It
    signs all records that are in force here: check them with `config show` before.
    """
    from fabrictime.commands.config import live_config

    live = live_records(settings)
    records = [live_config.successor(record, host) for host, record in sorted(live.records.items())]
    live.publish(*records)
    typer.echo(f"{len(records)} records are signed")


def value_text(value: Any) -> str:
    """Return a configuration value as JSON text."""
    return "not set" if value is None else json.dumps(value)
