"""The `fabrictime replay` commands: replay an interval of the log and compare with the published records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from fabrictime.commands.options import ConfigFile, DataDir, Json, Log, running_log, settings_of, stop

__all__ = ["replay_app"]

replay_app = typer.Typer(no_args_is_help=True, help="Replay a past interval of the log and compare.")

From = Annotated[
    str,
    typer.Option("--from", metavar="TIME", help="Start: 2026-03-01T12:00:00 (UTC), or 2h for two hours ago."),
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="End: like --from, or now.")]


@replay_app.callback()
def _replay_group() -> None:
    pass


@replay_app.command("alerts")
def replay_alerts(
    start: From = "1h",
    end: To = "now",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Replay alert detection over an interval; exit code 1 if the alerts differ from the published ones."""
    from fabrictime.commands import replay_alerts as replay

    def run(found: Any, span: Any, **more: Any) -> tuple[str, list[str], bool]:
        window_ns = int(found.value("streams", "window_ms")) * 1_000_000
        done = replay.main(running_log(found), span, window_ns=window_ns, **more)
        return replay.as_json(done), replay.lines_of(done), bool(done.differences)

    _replay(run, start, end, settings_of(config, directory, log), as_json)


@replay_app.command("decisions")
def replay_decisions(
    start: From = "10m",
    end: To = "now",
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Replay the policy over an interval; exit code 1 if the decisions differ from the published ones."""
    from fabrictime.commands import replay_decisions as replay

    def run(found: Any, span: Any, **more: Any) -> tuple[str, list[str], bool]:
        done = replay.main(running_log(found), span, **more)
        return replay.as_json(done), replay.lines_of(done), bool(done.differences)

    _replay(run, start, end, settings_of(config, directory, log), as_json)


@replay_app.command("diagnosis")
def replay_diagnosis(
    start: From = "10m",
    end: To = "now",
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="NAME=NUMBER", help="Another rule, such as slow_ratio=1.3."),
    ] = None,
    log: Log = None,
    config: ConfigFile = None,
    directory: DataDir = None,
    as_json: Json = False,
) -> None:
    """Replay the diagnosis of jobs over an interval; exit code 1 if it differs from the published one."""
    from fabrictime.commands import replay_diagnosis as replay

    def run(found: Any, span: Any, *, registry: Any, progress: Any, **_: Any) -> tuple[str, list[str], bool]:
        rules = replay.rules_of(rule or ())
        done = replay.main(running_log(found), span, rules=rules, registry=registry, progress=progress)
        return replay.as_json(done), replay.lines_of(done), bool(done.differences)

    _replay(run, start, end, settings_of(config, directory, log), as_json)


def _replay(
    run: Callable[..., tuple[str, list[str], bool]], start: str, end: str, found: Any, as_json: bool
) -> None:
    """Run a replay and print its result; exit code 1 if it differs."""
    import time

    from fabrictime.commands import replay_alerts as replay
    from fabrictime.commands.topology import source_of
    from schemas.topology import TopologyError

    try:
        now_s = time.time()
        span = replay.Span(replay.parse_time(start, now_s), replay.parse_time(end, now_s))
        if span.to_ns <= span.from_ns:
            stop(f"--to {end}: expected later than --from {start}")
        with replay.shown(span) as progress:
            text, lines, differs = run(
                found,
                span,
                topology=source_of(found).topology,
                registry=found.kafka.registry(),
                progress=progress,
                default_shard=str(found.value("streams", "default_shard")),
            )
    except (ValueError, TopologyError) as error:
        stop(str(error))
    typer.echo(text if as_json else "\n".join(lines))
    raise typer.Exit(1 if differs else 0)
