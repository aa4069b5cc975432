"""The command `fabrictime replay`: recomputes a past interval with this code, or with changed rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fabrictime.commands.options import (
    Json,
    running_log,
    stop,
    with_settings,
)

if TYPE_CHECKING:
    from fabrictime.commands.replay.run import Replayed

ALL = "all"
GC_OBJECTS = 100_000
"""Number of new objects after which garbage is collected. It is large, because most objects of a replay only
wait and have no cycles.
"""
STAGES_HELP = (
    "delays, clock, links, queues, contention, alerts, diagnosis, policy, or all: in one pass over the log."
)

From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Start: 2026-03-01T12:00:00 (UTC), 2h for two hours ago, or seconds since the epoch.",
    ),
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="End: like --from, or now.")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="NAME=NUMBER",
        help="Another rule of diagnosis, such as slow_ratio=1.3, or another threshold: alert_clear_s=5.",
    ),
]


@with_settings
def replay(
    settings: Any,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help=STAGES_HELP)],
    start: From = "10m",
    end: To = "now",
    rule: Rules = None,
    as_json_lines: Json = False,
) -> None:
    """Recompute a past interval of the log and compare the outputs; nothing is published.

    It needs a running log. Each line DIFFERENT names a record that this code would not publish, or not with
    these values. `replay_same` is the share of equal records. A killed worker loses the steps of its last
    half second: the records of that time are counted as without steps. Exit codes: 0 all equal, 1 records
    differ or a worker cannot be replayed, 2 the log or an option cannot be used.
    """
    import gc
    import time

    from fabrictime.commands.replay import reader as replay_reader
    from fabrictime.commands.replay import run as replay_run
    from fabrictime.commands.views.topology import source_of

    names = list(replay_run.STAGES)
    if stage != ALL and stage not in names:
        stop(f"{stage}: no such stage, expected {', '.join(names)} or {ALL}")
    gc.set_threshold(GC_OBJECTS)
    now_s = time.time()
    from_ns, to_ns = replay_reader.parse_time(start, now_s), replay_reader.parse_time(end, now_s)
    if to_ns <= from_ns:
        stop(f"--to {end}: expected later than --from {start}")
    span = replay_reader.Span(from_ns, to_ns)
    changes = replay_run.changes_of(rule or ())
    with replay_reader.shown(span) as progress:
        run = replay_run.Replay(
            running_log(settings),
            span,
            settings.streams,
            source_of(settings).topology,
            settings.kafka.registry(),
            changes,
            progress,
        )
        done = replay_run.replay(names if stage == ALL else [stage], run)
    typer.echo(
        as_json(done)
        if as_json_lines
        else "\n".join(line for replayed in done for line in lines_of(replayed))
    )
    raise typer.Exit(1 if any(replayed.differences or replayed.failed for replayed in done) else 0)


def as_json(done: Sequence[Replayed]) -> str:
    """Return the results of the replayed stages as one line of JSON."""
    return json.dumps(
        {
            "from_ns": done[0].span.from_ns,
            "to_ns": done[0].span.to_ns,
            "stages": [
                {
                    "stage": replayed.stage,
                    "messages": replayed.messages,
                    "took_s": round(replayed.took_s, 3),
                    "published": replayed.published,
                    "replayed": replayed.count,
                    "unrecorded": replayed.unrecorded,
                    "replay_same": replayed.same,
                    "notes": [*replayed.failed, *replayed.notes],
                    "records": replayed.records,
                    "differences": [
                        {
                            "topic": difference.topic,
                            "identity": difference.identity,
                            "kind": difference.kind,
                            "fields": {
                                name: {"published": was, "replayed": now}
                                for name, (was, now) in difference.fields.items()
                            },
                        }
                        for difference in replayed.differences
                    ],
                }
                for replayed in done
            ],
        },
        allow_nan=False,
        default=bytes.hex,
    )


def lines_of(done: Replayed) -> list[str]:
    """Return the lines to print for a replayed stage: each difference, and the totals."""
    from schemas.units import seconds_text

    lines = [f"DIFFERENT {difference.line()}" for difference in done.differences] + done.failed + done.notes
    speed = done.covered_s / max(done.took_s, 1e-3)
    unrecorded = (
        f"; {done.unrecorded} without steps: of a killed worker, newer than the last steps, or of steps that "
        "cannot be replayed"
        if done.unrecorded
        else ""
    )
    if not done.published and not done.count:
        return [*lines, f"{done.stage}: nothing was published in {seconds_text(done.covered_s)} of the log"]
    verdict = f"{len(done.differences)} differ" if done.differences else "all the same"
    lines.append(
        f"{done.stage}: {seconds_text(done.covered_s)} of the log, {done.messages:,} messages in "
        f"{done.took_s:.1f} s, {speed:,.0f} times real time: {done.published} published, {done.count} "
        f"replayed, replay_same {done.same:.1%}: {verdict}{unrecorded}"
    )
    return lines
