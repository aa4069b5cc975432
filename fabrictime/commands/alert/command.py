"""Commands of `fabrictime alert`: list, acknowledge, silence and comment alerts; plan maintenance windows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fabrictime.commands.options import (
    Json,
    duration_s,
    running_log,
    stop,
    with_settings,
)
from schemas.input_error import InputError

if TYPE_CHECKING:
    from fabrictime.commands.alert.notes import AlertNotes
    from fabrictime.runtime.config import Config
    from schemas.records import AlertNote

NS_PER_S = 1_000_000_000
DEFAULT_WINDOW = "4h"

alert_app = typer.Typer(
    no_args_is_help=True, help="List alerts with their notes; acknowledge, silence and comment them."
)

Subjects = Annotated[
    list[str],
    typer.Argument(metavar="SUBJECT...", help="Subject or id of an alert, or a unique part of one."),
]
Comment = Annotated[str, typer.Option("--comment", "-m", metavar="TEXT", help="Comment for the others.")]
Owner = Annotated[
    str | None, typer.Option("--owner", metavar="NAME", help="Person or team that works on it.")
]
Until = Annotated[
    str, typer.Option("--until", metavar="TIME", help="End: 2026-11-29T22:00 in UTC, or +2h from now.")
]


def _opened(settings: Config) -> AlertNotes:
    from fabrictime.commands.alert.notes import AlertNotes

    return AlertNotes(running_log(settings), settings.kafka.registry())


@alert_app.command("list")
@with_settings
def alert_list(
    settings: Any,
    everything: Annotated[bool, typer.Option("--all", help="Include notes about no active alert.")] = False,
    as_json: Json = False,
) -> None:
    """Show the active alerts with acknowledgement, silence, owner and last comment."""
    from fabrictime.commands.alert import table

    notes = _opened(settings)
    if as_json:
        typer.echo(json.dumps(table.as_json(notes, everything=everything)))
    else:
        table.show(notes, everything=everything)


@alert_app.command("ack")
@with_settings
def alert_ack(
    settings: Any,
    subjects: Subjects,
    comment: Comment = "",
    owner: Owner = None,
) -> None:
    """Acknowledge the active alerts of subjects: no reminder is sent. A later alert is not acknowledged."""
    from fabrictime.commands.alert.notes import changed_note, now_ns

    notes, at_ns = _opened(settings), now_ns()
    new = [
        changed_note(notes.note_of(subject, at_ns), at_ns, comment=comment, owner=owner, acknowledge=True)
        for subject in map(notes.subject_of, subjects)
    ]
    _publish(notes, new, "acknowledged")


@alert_app.command("silence")
@with_settings
def alert_silence(
    settings: Any,
    subjects: Subjects,
    until: Until = f"+{DEFAULT_WINDOW}",
    comment: Comment = "",
    owner: Owner = None,
) -> None:
    """Send no notification about subjects until a time, by default for 4 hours."""
    from fabrictime.commands.alert.notes import changed_note, now_ns, time_ns

    notes, at_ns = _opened(settings), now_ns()
    until_ns = time_ns(until, at_ns)
    if until_ns <= at_ns:
        raise InputError(f"--until {until}: expected a time in the future")
    new = [
        changed_note(
            notes.note_of(subject, at_ns), at_ns, comment=comment, owner=owner, silence=(at_ns, until_ns)
        )
        for subject in map(notes.subject_of, subjects)
    ]
    _publish(notes, new, "silent")


@alert_app.command("comment")
@with_settings
def alert_comment(
    settings: Any,
    subject: Annotated[str, typer.Argument(help="Subject or id of an alert, or a unique part of one.")],
    text: Annotated[str, typer.Argument(help="Comment.")],
    owner: Owner = None,
) -> None:
    """Add a comment about a subject, or set its owner."""
    from fabrictime.commands.alert.notes import changed_note, now_ns

    notes, at_ns = _opened(settings), now_ns()
    note = notes.note_of(notes.subject_of(subject), at_ns)
    new = [changed_note(note, at_ns, comment=text, owner=owner)]
    _publish(notes, new, "commented")


@alert_app.command("maintenance")
@with_settings
def alert_maintenance(
    settings: Any,
    scope: Annotated[str, typer.Argument(help="host, rack or link.")],
    pattern: Annotated[str, typer.Argument(help="Names with * and ?, such as 'h1*' or '*leaf3:*'.")],
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start, like --until; default: now.")
    ] = "",
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="Duration.")] = DEFAULT_WINDOW,
    comment: Comment = "",
    owner: Owner = None,
) -> None:
    """Plan a maintenance window: alerts whose hosts, racks or links all match send no notification."""
    from fabrictime.commands.alert.notes import changed_note, now_ns, time_ns

    length_ns = round(duration_s(duration) * NS_PER_S)
    notes, at_ns = _opened(settings), now_ns()
    from_ns = time_ns(start, at_ns) if start else at_ns
    note = notes.window_note(scope, pattern, at_ns)
    window = (from_ns, from_ns + length_ns)
    new = [changed_note(note, at_ns, comment=comment, owner=owner, silence=window)]
    _publish(notes, new, "in maintenance")


@alert_app.command("end")
@with_settings
def alert_end(
    settings: Any,
    subjects: Annotated[
        list[str], typer.Argument(metavar="SUBJECT...", help="Subject, or window such as 'host:h1*'.")
    ],
) -> None:
    """End silences, maintenance windows and acknowledgements now."""
    from fabrictime.commands.alert.notes import ended_note, now_ns

    notes, at_ns = _opened(settings), now_ns()
    new = [ended_note(notes.note_of(subject, at_ns), at_ns) for subject in map(notes.subject_of, subjects)]
    _publish(notes, new, "ended")


def _publish(notes: AlertNotes, new: list[AlertNote], state: str) -> None:
    from fabrictime.commands.alert.table import until_text

    try:
        notes.publish(new)
    except InputError as error:
        stop(str(error), 1)
    for note in new:
        typer.echo(f"{note['subject']}: {state}{until_text(note) if state in _TIMED else ''}")


_TIMED = frozenset({"silent", "in maintenance"})
"""Results whose line states the times."""
