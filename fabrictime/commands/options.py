"""Options that several commands share, and functions that resolve them to settings and addresses."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fabrictime.commands.completion import link_names
from schemas.input_error import InputError

if TYPE_CHECKING:
    from fabrictime.runtime.config import Config
    from fabrictime.state.evidence_reader import EvidenceSettings
    from schemas.kafka.settings import KafkaSettings

USAGE_EXIT = 2
INSTALL_SERVER = "pip install --find-links DIST 'fabrictime[server]', with the folder DIST of the wheels"
"""Advice if a package of the workers, log, history or page is missing."""
MAX_LISTED = 10
"""Number of failures that a check prints; further ones are only counted."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file; without it fabrictime.toml of this directory, if it exists.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Log = Annotated[str | None, typer.Option("--log", metavar="URL", help="host:port of Kafka.")]
AuditRunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of a run, or a file that --json wrote.")
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a fleet's report as one HTML page.")
]
JunitFile = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write a fleet's report as JUnit XML.")
]
Everything = Annotated[bool, typer.Option("--all", help="Show passed and skipped checks too.")]
DataDir = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Data directory.")]


def host_list(text: str) -> tuple[str, ...]:
    """Return the distinct host names or patterns in a list such as `h1,h2`."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def stop(message: str, code: int = USAGE_EXIT) -> NoReturn:
    """Print an error message, which may have several lines, and exit."""
    for line in message.splitlines() or ["failed"]:
        typer.echo(f"fabrictime: {line}", err=True)
    raise typer.Exit(code)


def duration_s(text: str) -> float:
    """Return seconds for `500ms`, `30s`, `5m`, `1h` or a bare number of seconds.

    Raises typer.BadParameter for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    seconds = float(match[1]) * {"ms": 0.001, "m": 60.0, "h": 3600.0}.get(match[2], 1.0) if match else 0.0
    if not 0 < seconds <= 366 * 86_400:
        raise typer.BadParameter(f"{text!r}: expected a duration such as 30s, 5m or 1h")
    return seconds


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Only entries whose name contains this text, such as leaf1.",
        autocompletion=link_names,
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Keep the table live until Ctrl-C.")]
Host = Annotated[str, typer.Option("--host", help="Only this host; * stands for all hosts.")]


def stop_if_any(failures: list[str]) -> None:
    """If there are failures, print the first ones and the number of the rest, and exit with code 1."""
    if failures:
        more = [f"and {len(failures) - MAX_LISTED:,} more"] if len(failures) > MAX_LISTED else []
        stop("\n".join([*failures[:MAX_LISTED], *more]), 1)


def running_log(settings: Config) -> KafkaSettings:
    """Return the log that the command line, the settings or the running `up` name; exit if none does.

    `--log` comes first, then the `up` of `--dir`, then `up.log_url`, then the `up` of the data directory. A
    default port is never tried: another fleet may listen there.
    """
    cluster = log_if_any(settings)
    if isinstance(cluster, str):
        stop(cluster, 1)
    return cluster


def log_if_any(settings: Config) -> KafkaSettings | str:
    """Return the log that `running_log` finds; if there is none, the reason as text."""
    from fabrictime.runtime import status as reader

    up = settings.up
    by_address = up.log_url is not None and "data_directory" not in settings.command_line
    if by_address or "log_url" in settings.command_line:
        return settings.kafka
    try:
        address = reader.read(up.data_directory)["addresses"]["log"]
    except reader.NotReady as error:
        return str(error)
    except InputError as error:
        named = "data_directory" in settings.command_line
        return str(error) if named else f"{error}: start it, or name another by --dir DIR or --log HOST:PORT"
    return settings.kafka.model_copy(update={"bootstrap": address})


def evidence_of(settings: Config) -> EvidenceSettings:
    """Return the settings for reading evidence from the running log."""
    return evidence_settings(settings, running_log(settings))


def evidence_settings(settings: Config, log: KafkaSettings, shards: tuple[str, ...] = ()) -> EvidenceSettings:
    """Return the settings for reading evidence from a log: its address, and the periods of its sources.

    `shards`: the only shards whose evidence is read; by default the whole fleet's is.
    """
    from fabrictime.state.evidence_reader import EvidenceSettings, fresh_s_of

    web = settings.web
    return EvidenceSettings(log, web.links_group, fresh_s_of(web.window_ms, web.commit_interval_ms), shards)


def settings_of(path: Path | None, directory: Path | None, log: str | None = None) -> Any:
    """Load the settings. The command line's data directory and log override the values in the file."""
    from fabrictime.runtime.config import load

    overrides = {"data_directory": None if directory is None else str(directory), "log_url": log}
    try:
        settings = load(path, {"up": {key: value for key, value in overrides.items() if value is not None}})
        print_state_directory(settings)
        return settings
    except InputError as error:
        stop(str(error))


def print_state_directory(settings: Config) -> None:
    """Print the data directory if the settings do not name it and it is not the default one."""
    from fabrictime.runtime.user import state_directory

    if "data_directory" not in settings.tables["up"] and (reason := state_directory()[1]):
        typer.echo(f"fabrictime: {reason}", err=True)


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --log, --config and --dir, and pass it the resulting `settings`.

    An InputError of the command becomes its error message and exit code 2. Any other exception is a defect:
    `cli.main` writes its traceback to a file, which the message names, and the exit code is 70.

    Typer reads options from the signature, so the returned function has the command's signature with the
    three options in place of `settings`.
    """
    shared: dict[str, Any] = {"log": Log, "config": ConfigFile, "directory": DataDir}
    signature = inspect.signature(command, eval_str=True)
    parameters = [one for one in signature.parameters.values() if one.name != "settings"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters += [
        inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in shared.items()
    ]

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        paths = {name: values.pop(name, None) for name in shared}
        try:
            return command(settings_of(paths["config"], paths["directory"], paths["log"]), **values)
        except InputError as error:
            stop(str(error))

    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    return with_options


def live_records(settings: Config) -> Any:
    """Return the records of `fabric.config` in the running log."""
    from fabrictime.commands.config.live_config import LiveRecords

    return LiveRecords(running_log(settings), settings.kafka.registry(), settings.control)
